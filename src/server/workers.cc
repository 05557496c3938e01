#include "server/workers.h"

#include <malloc.h>

#include <utility>

#include "base/thread_name.h"

namespace galley::server {
namespace {

// From here on a body's values are worth a walk over the heap, which takes about a millisecond.
constexpr size_t kLargeBytes = size_t{512} << 10;

}  // namespace

Workers::Workers(int32_t thread_count, size_t queue_max, size_t bytes_max)
    : queue_max_(queue_max), bytes_max_(bytes_max) {
  for (int32_t i = 0; i < thread_count; ++i) threads_.emplace_back([this] { run(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Workers::post(size_t bytes, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= queue_max_ || bytes_ + bytes > bytes_max_) return false;
    bytes_ += bytes;
    queue_.push_back({bytes, std::move(work)});
  }
  wake_.notify_one();
  return true;
}

void Workers::run() {
  name_thread("galley-worker");
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return ended_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    job.work();
    job.work = nullptr;
    // The allocator keeps freed memory for its thread; the next large body may be hours away.
    if (job.bytes >= kLargeBytes) ::malloc_trim(0);
    const std::lock_guard lock(mutex_);
    bytes_ -= job.bytes;
  }
}

}  // namespace galley::server
