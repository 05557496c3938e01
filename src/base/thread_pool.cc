#include "base/thread_pool.h"

#include <sched.h>

#include "base/check.h"
#include "base/thread_name.h"

namespace galley {
namespace {

// About 50 us of spinning before a worker sleeps: longer than the gap between
// two jobs of a step, far shorter than the gap between two requests.
constexpr int kSpins = 4000;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int thread_count) {
  CHECK(thread_count >= 1);
  runs_ = std::make_unique<Run[]>(static_cast<size_t>(thread_count));
  workers_.reserve(static_cast<size_t>(thread_count - 1));
  for (int thread = 1; thread < thread_count; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_job(Job job, int64_t part_count) {
  CHECK(part_count < (int64_t{1} << 32));
  job_ = job;
  part_count_ = part_count;
  finished_.store(0, std::memory_order_relaxed);
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  const int64_t threads = thread_count();
  for (int64_t thread = 0; thread < threads; ++thread) {
    const int64_t count =
        run_begin(part_count, thread + 1, threads) - run_begin(part_count, thread, threads);
    runs_[thread].claims.store((uint64_t{generation} << 32) | static_cast<uint64_t>(count),
                               std::memory_order_release);
  }
  generation_.store(generation, std::memory_order_release);
  generation_.notify_all();
  take_parts(generation, 0);
  int spins = 0;
  int64_t done = finished_.load(std::memory_order_acquire);
  while (done != part_count) {
    if (++spins < kSpins) {
      pause_cpu();
    } else {
      finished_.wait(done, std::memory_order_acquire);
    }
    done = finished_.load(std::memory_order_acquire);
  }
}

void ThreadPool::take_parts(uint32_t generation, int thread) {
  const int64_t threads = thread_count();
  int64_t part_count = 0;
  int64_t done = 0;
  for (int64_t step = 0; step < threads; ++step) {
    const int64_t owner = (thread + step) % threads;
    std::atomic<uint64_t>& run = runs_[owner].claims;
    uint64_t claims = run.load(std::memory_order_acquire);
    for (;;) {
      const uint64_t left = claims & 0xFFFFFFFFU;
      if ((claims >> 32) != generation || left == 0) break;
      if (!run.compare_exchange_weak(claims, claims - 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
        continue;
      }
      part_count = part_count_;
      job_.call(job_.body, run_begin(part_count, owner + 1, threads) - static_cast<int64_t>(left),
                thread);
      ++done;
      claims = run.load(std::memory_order_acquire);
    }
  }
  // Without a claim the job may have ended: nothing of it may be touched any more.
  if (done == 0) return;
  if (finished_.fetch_add(done, std::memory_order_acq_rel) + done == part_count) {
    finished_.notify_one();
  }
}

void ThreadPool::work(int thread) {
  name_thread("galley-kernels");
  uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        pause_cpu();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    take_parts(seen, thread);
  }
}

int usable_cpu_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count < 1 ? 1 : count;
}

}  // namespace galley
