// How much one key may still use: requests at once, requests and tokens a minute.
//
// The rates are buckets that refill steadily and hold one minute's worth. A
// prompt is charged before it runs, and refused when the bucket has no room for
// it; what a request was charged and did not use is given back at its end, and
// what it produced is charged then, so a bucket may go below nothing: the next
// request waits until it is above. Knows no clock: times are handed in.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "server/api_keys.h"

namespace galley::server {

class RateLimit {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit RateLimit(TimePoint now) : refilled_(now) {}

  struct Refusal {
    std::string message;
    int64_t retry_after_s = 1;
  };

  // Counts a request, or says why not yet. The limits may change from call to call.
  std::optional<Refusal> start(const KeyLimits& limits, TimePoint now);
  // Charges a prompt, or says when there will be room. One larger than a minute's worth is taken
  // when the bucket is full: it would never be else.
  std::optional<Refusal> reserve_tokens(int64_t tokens, const KeyLimits& limits, TimePoint now);
  // Negative: gives back.
  void charge_tokens(int64_t tokens) {
    tokens_used_ = std::max(0.0, tokens_used_ + static_cast<double>(tokens));
  }
  void finish() { --running_; }

  int64_t running() const { return running_; }
  // What is left of this minute, for the client's information.
  int64_t requests_left(const KeyLimits& limits) const;
  int64_t tokens_left(const KeyLimits& limits) const;

 private:
  void refill(const KeyLimits& limits, TimePoint now);

  TimePoint refilled_;
  int64_t running_ = 0;
  double requests_used_ = 0;  // of the bucket: 0 = full
  double tokens_used_ = 0;
};

}  // namespace galley::server
