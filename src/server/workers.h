// A few threads for work that would hold up the loop: reading bodies, making
// prompts. Bounded: who comes when the queue is full is sent away.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace galley::server {

class Workers {
 public:
  Workers(int32_t thread_count, size_t queue_max);
  // Finishes what was taken.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // False: the queue is full, and the work was not taken. Any thread.
  bool post(std::function<void()> work);

 private:
  void run();

  const size_t queue_max_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace galley::server
