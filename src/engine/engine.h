// The engine as many threads see it: requests in, token events out.
//
// Owns one thread, which runs a Generator step after step. Everybody else only
// touches a bounded inbox and counters. Refuses to know text, HTTP and models:
// an Executor computes. Any member may be called from any thread, except that
// stop() and drain() must not be called from a sink.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/executor.h"
#include "engine/generator.h"
#include "engine/glance.h"
#include "engine/prefill_pace.h"
#include "engine/request.h"

namespace galley::engine {

// Where a sequence's events go: in order, the last one with a finish reason.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // On the engine thread: every running sequence waits for it, so it must not block. The
  // event's spans live until it returns.
  virtual void on_event(const TokenEvent& event) = 0;
};

enum class EngineState : uint8_t {
  kRunning,
  kDraining,  // takes nothing new, finishes what it has
  kFailed,    // the executor failed; everything was ended as kFailed, nothing is taken
  kStopped,
};

// Counters since the start, each read on its own: a glance, not a snapshot.
struct EngineStats {
  EngineState state = EngineState::kRunning;
  int32_t running = 0;
  int32_t waiting = 0;  // accepted, not running
  int32_t sequences_max = 0;
  int32_t page_count = 0;
  int32_t pages_free = 0;    // can be had: free, or kept for their prefix alone
  int32_t pages_cached = 0;  // findable by their prefix, in use or not
  int64_t steps = 0;
  SchedulerCounts rows;  // and tokens: what was computed, cached, replayed
  int64_t output_tokens = 0;
  int64_t evictions = 0;
  int64_t expiries = 0;
  int64_t snapshot_bytes = 0;  // of snapshot memory in use
  int64_t snapshot_bytes_max = 0;
  std::array<int64_t, kFinishReasonCount> finished = {};  // by FinishReason
  std::chrono::nanoseconds step_time{};                   // of all steps together
  std::chrono::nanoseconds last_step_time{};
  // Since the last step ended, while there was work all along; 0 when idle. A machine's slowest
  // step bounds it: much more means that the engine is stuck.
  std::chrono::nanoseconds since_progress{};
};

class Engine {
 public:
  // The executor outlives the engine and is used by its thread alone.
  Engine(Executor& executor, const GeneratorOptions& options);
  ~Engine();  // stop()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Unique in this engine; every request needs one, and none is used twice.
  SequenceId next_id() { return SequenceId{next_id_.fetch_add(1, std::memory_order_relaxed)}; }

  // Accepted: the sink gets events, the last one with a finish reason, whatever happens. Refused:
  // kInvalid when it can never run, kExhausted when `waiting_max` are in hand already, kCancelled
  // when the engine takes nothing any more, with the reason.
  Result<void> submit(GenerateRequest request, std::shared_ptr<TokenSink> sink);

  // It ends as kCancelled soon, unless it ended by itself; unknown ids are ignored.
  void cancel(SequenceId id);

  EngineStats stats() const;
  // As it was when the last one was asked for, or a step later: `at` says when. Asks for the
  // next, and never waits for a step.
  EngineGlance glance();
  const GeneratorOptions& options() const { return options_; }
  // Why the state is kFailed; empty otherwise.
  std::string failure() const;

  // Refuses new requests from now on and waits for those in hand, at most `patience`. True when
  // none is left.
  bool drain(std::chrono::nanoseconds patience);
  // Refuses new requests, cancels those in hand and ends the thread. Returns when the step in
  // flight and their last events are done.
  void stop();

 private:
  struct Submission {
    GenerateRequest request;
    std::shared_ptr<TokenSink> sink;
  };
  using Clock = std::chrono::steady_clock;

  void run();
  // Waits for work and moves it into the generator. False: stopped, and nothing is left to do.
  bool take_inbox();
  void move_inbox();
  bool step();
  void note_step(const StepOutcome& outcome, std::chrono::nanoseconds time);
  void deliver(const TokenEvent& event);
  void fail(const Error& error);
  void forget_ended();
  void publish_counts();
  void publish_glance();

  const GeneratorOptions options_;
  std::atomic<uint64_t> next_id_{1};

  // Between the threads.
  mutable std::mutex mutex_;
  std::condition_variable wake_;               // there is work, or an end
  std::condition_variable ended_;              // live_ shrank
  std::vector<Submission> inbox_;              // at most waiting_max
  std::vector<SequenceId> cancels_;            // at most one for each of live_
  std::unordered_map<SequenceId, bool> live_;  // id -> cancelled; at most waiting_max
  EngineState state_ = EngineState::kRunning;
  bool stop_ = false;
  bool look_ = false;  // somebody asked for a glance
  std::string failure_;

  std::mutex glance_mutex_;
  EngineGlance glance_;

  // Of the engine thread.
  Generator generator_;
  PrefillPace pace_;
  TimePoint step_ended_;
  std::unordered_map<SequenceId, std::shared_ptr<TokenSink>> sinks_;
  std::vector<Submission> arrived_;
  std::vector<SequenceId> to_cancel_;
  std::vector<SequenceId> ended_ids_;

  static constexpr std::array kRowCounts = {
      &SchedulerCounts::decode_rows,   &SchedulerCounts::prefill_rows,
      &SchedulerCounts::replay_rows,   &SchedulerCounts::recomputed_rows,
      &SchedulerCounts::wasted_rows,   &SchedulerCounts::prompt_tokens,
      &SchedulerCounts::cached_tokens, &SchedulerCounts::preemptions,
      &SchedulerCounts::spills,        &SchedulerCounts::resumes,
      &SchedulerCounts::snapshots,     &SchedulerCounts::branches,
      &SchedulerCounts::snapshot_hits,
  };
  static_assert(sizeof(SchedulerCounts) == kRowCounts.size() * sizeof(int64_t), "one is left out");

  // Written by the engine thread, read by stats().
  struct Counts {
    std::atomic<int32_t> running{0};
    std::atomic<int32_t> pages_free{0};
    std::atomic<int32_t> pages_cached{0};
    std::atomic<int64_t> steps{0};
    std::array<std::atomic<int64_t>, kRowCounts.size()> rows{};
    std::atomic<int64_t> output_tokens{0};
    std::atomic<int64_t> evictions{0};
    std::atomic<int64_t> expiries{0};
    std::atomic<int64_t> snapshot_bytes{0};
    std::array<std::atomic<int64_t>, kFinishReasonCount> finished{};
    std::atomic<int64_t> step_ns{0};
    std::atomic<int64_t> last_step_ns{0};
    std::atomic<int64_t> progress_at_ns{0};  // of Clock; 0 = idle
  };
  Counts counts_;

  std::mutex stopping_;  // one stop() at a time joins
  std::thread thread_;   // last: everything it uses is there when it starts
};

}  // namespace galley::engine
