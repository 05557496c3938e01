// Carries token events from the engine's thread to the loop's.
//
// The engine's thread only copies a small value under a lock that nobody holds
// for long, and wakes the loop once for all that has gathered. Bounded: what the
// loop does not fetch in time ends its sequence instead of filling the memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"

namespace galley::server {

class LiveRequest;

struct Mail {
  LiveRequest* to = nullptr;  // alive until its last event is delivered
  int32_t choice = 0;
  int32_t token = 0;
  bool has_token = false;
  bool lost_some = false;  // the box was full before this one
  engine::FinishReason finish = engine::FinishReason::kNone;
  float logprob = 0;
  std::vector<engine::TokenLogprob> top_logprobs;
  engine::Usage usage;
  engine::TimePoint at;  // when the engine had it
};

class TokenMailbox {
 public:
  static constexpr size_t kMailsMax = size_t{1} << 16;

  // `wake` is called on the engine's thread when the first mail comes into an empty box.
  explicit TokenMailbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  // The sink of one sequence. The receiver lives until it got a mail with a finish reason; the
  // mailbox outlives the engine.
  std::shared_ptr<engine::TokenSink> sink(LiveRequest* to, int32_t choice);

  // Everything that came, in order; `taken` is emptied first and its memory used again.
  void take(std::vector<Mail>& taken);

 private:
  class Sink;
  // False: full, and it was no last event.
  bool put(Mail mail);

  std::function<void()> wake_;
  std::mutex mutex_;
  std::vector<Mail> mails_;
};

}  // namespace galley::server
