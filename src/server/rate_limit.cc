#include "server/rate_limit.h"

#include <algorithm>
#include <cmath>

namespace galley::server {
namespace {

constexpr double kMinute = 60.0;

// Seconds until `used` has gone down to `wanted`.
int64_t wait_seconds(double used, double wanted, int64_t per_minute) {
  const double seconds = (used - wanted) * kMinute / static_cast<double>(per_minute);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(seconds)));
}

}  // namespace

void RateLimit::refill(const KeyLimits& limits, TimePoint now) {
  const double seconds = std::chrono::duration<double>(now - refilled_).count();
  refilled_ = now;
  const auto less = [&](double used, const std::optional<int64_t>& per_minute) {
    if (!per_minute) return 0.0;
    return std::max(0.0, used - seconds * static_cast<double>(*per_minute) / kMinute);
  };
  requests_used_ = less(requests_used_, limits.requests_per_minute);
  tokens_used_ = less(tokens_used_, limits.tokens_per_minute);
}

std::optional<RateLimit::Refusal> RateLimit::start(const KeyLimits& limits, TimePoint now) {
  refill(limits, now);
  if (limits.concurrency && running_ >= *limits.concurrency) {
    return Refusal{"this key may have " + std::to_string(*limits.concurrency) +
                       " requests at once, and has them",
                   1};
  }
  if (limits.requests_per_minute) {
    const auto most = static_cast<double>(*limits.requests_per_minute);
    if (requests_used_ + 1 > most) {
      return Refusal{"this key may make " + std::to_string(*limits.requests_per_minute) +
                         " requests a minute, and made them",
                     wait_seconds(requests_used_, most - 1, *limits.requests_per_minute)};
    }
  }
  if (limits.tokens_per_minute) {
    const auto most = static_cast<double>(*limits.tokens_per_minute);
    if (tokens_used_ >= most) {
      return Refusal{"this key may use " + std::to_string(*limits.tokens_per_minute) +
                         " tokens a minute, and used them",
                     wait_seconds(tokens_used_, most - 1, *limits.tokens_per_minute)};
    }
  }
  ++running_;
  requests_used_ += 1;
  return std::nullopt;
}

std::optional<RateLimit::Refusal> RateLimit::reserve_tokens(int64_t tokens, const KeyLimits& limits,
                                                            TimePoint now) {
  refill(limits, now);
  if (limits.tokens_per_minute) {
    const auto most = static_cast<double>(*limits.tokens_per_minute);
    const double room_for = std::min(static_cast<double>(tokens), most);
    if (tokens_used_ + room_for > most) {
      return Refusal{"this key may use " + std::to_string(*limits.tokens_per_minute) +
                         " tokens a minute, and has " + std::to_string(tokens_left(limits)) +
                         " left; the prompt has " + std::to_string(tokens),
                     wait_seconds(tokens_used_, most - room_for, *limits.tokens_per_minute)};
    }
  }
  charge_tokens(tokens);
  return std::nullopt;
}

int64_t RateLimit::requests_left(const KeyLimits& limits) const {
  const auto most = static_cast<double>(limits.requests_per_minute.value_or(0));
  return static_cast<int64_t>(std::max(0.0, most - requests_used_));
}

int64_t RateLimit::tokens_left(const KeyLimits& limits) const {
  const auto most = static_cast<double>(limits.tokens_per_minute.value_or(0));
  return static_cast<int64_t>(std::max(0.0, most - tokens_used_));
}

}  // namespace galley::server
