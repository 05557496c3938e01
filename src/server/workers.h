// A few threads for work that would hold up the loop: reading bodies, making
// prompts. Bounded in number and in bytes: who comes when the queue is full is
// sent away. Memory that large work took is given back to the system.
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
  Workers(int32_t thread_count, size_t queue_max, size_t bytes_max);
  // Finishes what was taken.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // `bytes` are what the work holds while it waits. False: the queue is full, and the work was
  // not taken. Any thread.
  bool post(size_t bytes, std::function<void()> work);

 private:
  struct Job {
    size_t bytes;
    std::function<void()> work;
  };
  void run();

  const size_t queue_max_;
  const size_t bytes_max_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  size_t bytes_ = 0;  // of those that wait or run
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace galley::server
