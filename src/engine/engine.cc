#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"

namespace galley::engine {
namespace {

int64_t nanoseconds(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

template <class T>
void add(std::atomic<T>& counter, T amount) {
  // One writer: no read-modify-write is needed.
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

template <class T>
T read(const std::atomic<T>& counter) {
  return counter.load(std::memory_order_relaxed);
}

}  // namespace

Engine::Engine(Executor& executor, const GeneratorOptions& options)
    : options_(options), generator_(executor, options), pace_({.rows_max = options.rows_max}) {
  glance_.running.reserve(static_cast<size_t>(options.sequences_max));
  publish_counts();
  publish_glance();
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() { stop(); }

Result<void> Engine::submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) {
  CHECK(sink != nullptr);
  TRY(check_request(request, options_));
  {
    const std::lock_guard lock(mutex_);
    if (state_ == EngineState::kFailed) {
      return Error{ErrorCode::kCancelled, "the engine has failed: " + failure_};
    }
    if (state_ != EngineState::kRunning) {
      return Error{ErrorCode::kCancelled, "the engine is shutting down"};
    }
    if (live_.contains(request.id)) {
      return Error{ErrorCode::kInvalid, "a sequence of this id runs already"};
    }
    if (live_.size() >= static_cast<size_t>(options_.waiting_max)) {
      return Error{ErrorCode::kExhausted,
                   std::to_string(options_.waiting_max) + " sequences run or wait already"};
    }
    live_.emplace(request.id, false);
    inbox_.push_back({std::move(request), std::move(sink)});
  }
  wake_.notify_one();
  return {};
}

void Engine::cancel(SequenceId id) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(id);
    if (found == live_.end() || found->second) return;
    found->second = true;
    cancels_.push_back(id);
  }
  wake_.notify_one();
}

EngineStats Engine::stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(mutex_);
    stats.state = state_;
    stats.waiting = static_cast<int32_t>(live_.size());
  }
  stats.running = read(counts_.running);
  stats.waiting = std::max(0, stats.waiting - stats.running);
  stats.sequences_max = options_.sequences_max;
  stats.page_count = options_.page_count;
  stats.pages_free = read(counts_.pages_free);
  stats.steps = read(counts_.steps);
  stats.pages_cached = read(counts_.pages_cached);
  stats.evictions = read(counts_.evictions);
  stats.expiries = read(counts_.expiries);
  stats.snapshot_bytes = read(counts_.snapshot_bytes);
  stats.snapshot_bytes_max = options_.snapshot_blocks * options_.block_bytes;
  for (size_t i = 0; i < kRowCounts.size(); ++i) stats.rows.*kRowCounts[i] = read(counts_.rows[i]);
  stats.output_tokens = read(counts_.output_tokens);
  for (size_t i = 0; i < stats.finished.size(); ++i) stats.finished[i] = read(counts_.finished[i]);
  stats.step_time = std::chrono::nanoseconds(read(counts_.step_ns));
  stats.last_step_time = std::chrono::nanoseconds(read(counts_.last_step_ns));
  const int64_t progress_at = read(counts_.progress_at_ns);
  if (progress_at != 0) {
    const int64_t since = nanoseconds(Clock::now()) - progress_at;
    stats.since_progress = std::chrono::nanoseconds(std::max<int64_t>(0, since));
  }
  return stats;
}

EngineGlance Engine::glance() {
  {
    const std::lock_guard lock(mutex_);
    look_ = true;
  }
  wake_.notify_one();
  const std::lock_guard lock(glance_mutex_);
  return glance_;
}

std::string Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool Engine::drain(std::chrono::nanoseconds patience) {
  std::unique_lock lock(mutex_);
  if (state_ == EngineState::kRunning) state_ = EngineState::kDraining;
  return ended_.wait_for(lock, patience, [this] { return live_.empty(); });
}

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == EngineState::kRunning) state_ = EngineState::kDraining;
    stop_ = true;
    for (auto& [id, cancelled] : live_) {
      if (!cancelled) cancels_.push_back(id);
      cancelled = true;
    }
  }
  wake_.notify_one();
  const std::lock_guard joining(stopping_);
  if (!thread_.joinable()) return;
  thread_.join();
  const std::lock_guard lock(mutex_);
  state_ = EngineState::kStopped;
}

void Engine::run() {
  name_thread("galley-engine");
  while (take_inbox()) {
    if (!step()) return;
  }
}

bool Engine::take_inbox() {
  {
    std::unique_lock lock(mutex_);
    const auto has_work = [this] {
      return !inbox_.empty() || !cancels_.empty() || !generator_.idle();
    };
    for (;;) {
      if (!has_work()) counts_.progress_at_ns.store(0, std::memory_order_relaxed);
      wake_.wait(lock, [&] { return stop_ || look_ || has_work(); });
      if (!std::exchange(look_, false)) break;
      lock.unlock();
      publish_glance();
      lock.lock();
    }
    if (!has_work()) return false;
    arrived_.swap(inbox_);
    to_cancel_.swap(cancels_);
  }
  if (read(counts_.progress_at_ns) == 0) {
    counts_.progress_at_ns.store(nanoseconds(Clock::now()), std::memory_order_relaxed);
  }
  move_inbox();
  return true;
}

// Into the generator, outside the lock.
void Engine::move_inbox() {
  for (Submission& submission : arrived_) {
    const SequenceId id = submission.request.id;
    sinks_.emplace(id, std::move(submission.sink));
    // Checked at the door, and live_ bounds their number.
    const Result<void> accepted = generator_.submit(std::move(submission.request));
    CHECK(accepted.has_value());
  }
  arrived_.clear();
  for (const SequenceId id : to_cancel_) generator_.cancel(id);
  to_cancel_.clear();
}

bool Engine::step() {
  const TimePoint begin = Clock::now();
  // The step that is waited for began when the one before it ended, or now.
  const bool continues = generator_.in_flight() > 0;
  const Result<StepOutcome> outcome = generator_.step(begin);
  if (!outcome) {
    fail(outcome.error());
    return false;
  }
  for (const TokenEvent& event : outcome->events) deliver(event);
  const TimePoint end = Clock::now();
  if (outcome->computed()) note_step(*outcome, end - (continues ? step_ended_ : begin));
  step_ended_ = end;
  counts_.progress_at_ns.store(nanoseconds(end), std::memory_order_relaxed);
  publish_counts();
  forget_ended();
  return true;
}

void Engine::note_step(const StepOutcome& outcome, std::chrono::nanoseconds time) {
  pace_.note(outcome.prefill_cost, outcome.decode_rows,
             std::chrono::duration<double>(time).count());
  generator_.set_prefill_rows_beside_decode(pace_.rows_beside_decode());
  add(counts_.steps, int64_t{1});
  add(counts_.step_ns, int64_t{time.count()});
  counts_.last_step_ns.store(time.count(), std::memory_order_relaxed);
}

void Engine::deliver(const TokenEvent& event) {
  if (event.has_token) add(counts_.output_tokens, int64_t{1});
  const auto sink = sinks_.find(event.id);
  CHECK(sink != sinks_.end());
  sink->second->on_event(event);
  if (event.finish == FinishReason::kNone) return;
  add(counts_.finished[static_cast<size_t>(event.finish)], int64_t{1});
  sinks_.erase(sink);
  ended_ids_.push_back(event.id);
}

void Engine::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    state_ = EngineState::kFailed;
    failure_ = error.message;
    // Nobody submits any more; what still lies in the inbox ends like the rest.
    arrived_.swap(inbox_);
    to_cancel_.swap(cancels_);
  }
  move_inbox();
  for (const TokenEvent& event : generator_.fail_all()) deliver(event);
  publish_counts();
  counts_.progress_at_ns.store(0, std::memory_order_relaxed);
  forget_ended();
}

void Engine::forget_ended() {
  if (ended_ids_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    for (const SequenceId id : ended_ids_) live_.erase(id);
  }
  ended_ids_.clear();
  ended_.notify_all();
}

void Engine::publish_glance() {
  const Scheduler& scheduler = generator_.scheduler();
  const std::lock_guard lock(glance_mutex_);
  glance_.at = Clock::now();
  glance_.running.clear();
  for (const std::unique_ptr<Sequence>& sequence : scheduler.running()) {
    glance_.running.push_back({.id = sequence->request.id,
                               .usage = sequence->usage,
                               .replays = sequence->replays(),
                               .computed = sequence->computed});
  }
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(glance_.at.time_since_epoch());
  glance_.pages_unused = scheduler.cache().free_count();
  glance_.pages_kept = scheduler.cache().ages().bands(now.count());
}

void Engine::publish_counts() {
  counts_.running.store(generator_.running_count(), std::memory_order_relaxed);
  const Scheduler& scheduler = generator_.scheduler();
  counts_.pages_free.store(scheduler.available_page_count(), std::memory_order_relaxed);
  counts_.pages_cached.store(scheduler.cache().indexed_count(), std::memory_order_relaxed);
  counts_.evictions.store(scheduler.cache().evictions(), std::memory_order_relaxed);
  counts_.expiries.store(scheduler.cache().expiries(), std::memory_order_relaxed);
  counts_.snapshot_bytes.store(scheduler.snapshots().used_blocks() * options_.block_bytes,
                               std::memory_order_relaxed);
  for (size_t i = 0; i < kRowCounts.size(); ++i) {
    counts_.rows[i].store(scheduler.counts().*kRowCounts[i], std::memory_order_relaxed);
  }
}

}  // namespace galley::engine
