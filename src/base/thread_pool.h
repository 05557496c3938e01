// A fixed set of threads that run the numbered parts of one job together.
//
// The caller is one of the threads. Which thread runs which part never matters:
// parts write disjoint outputs, so results do not depend on the thread count.
// Workers spin briefly between jobs (a decode step is hundreds of jobs of a few
// microseconds each), then sleep. One job at a time; owned by one caller thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace galley {

class ThreadPool {
 public:
  // `thread_count` includes the calling thread; at least 1.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(part, thread) for every part in [0, part_count), in any order,
  // thread in [0, thread_count()); returns when all are done. Each thread starts on
  // its own run of neighbouring parts, so that jobs cut alike find their data in
  // that thread's caches; who has finished takes parts from the others' runs.
  template <class Body>
  void run(int64_t part_count, Body&& body) {
    if (part_count <= 1 || workers_.empty()) {
      for (int64_t part = 0; part < part_count; ++part) body(part, 0);
      return;
    }
    run_job({&body,
             [](void* context, int64_t part, int thread) {
               (*static_cast<std::remove_reference_t<Body>*>(context))(part, thread);
             }},
            part_count);
  }

 private:
  struct Job {
    void* body = nullptr;
    void (*call)(void* body, int64_t part, int thread) = nullptr;
  };

  void run_job(Job job, int64_t part_count);
  void work(int thread);
  // First part of a thread's run.
  static int64_t run_begin(int64_t part_count, int64_t thread, int64_t threads) {
    return part_count * thread / threads;
  }
  // Runs parts of the job of `generation` until none is left to claim.
  void take_parts(uint32_t generation, int thread);

  // Written between jobs only; read after claiming a part, when the job cannot end.
  Job job_;
  int64_t part_count_ = 0;
  // One thread's run of parts. Generation in the upper half, unclaimed parts in the
  // lower: a worker that wakes late finds another generation and claims nothing, so
  // nobody waits for it.
  struct alignas(64) Run {
    std::atomic<uint64_t> claims{0};
  };
  std::unique_ptr<Run[]> runs_;                      // [thread_count]
  alignas(64) std::atomic<int64_t> finished_{0};     // parts of the current job that are done
  alignas(64) std::atomic<uint32_t> generation_{0};  // what sleeping workers wait on
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// Threads this process may use: the CPU affinity mask's size, at least 1.
int usable_cpu_count();

}  // namespace galley
