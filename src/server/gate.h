// Who comes in: keys, scopes, limits of each key; without keys, only honest
// neighbours.
//
// Knows no API: a refusal says what is wrong and the caller says it in the
// client's words. Belongs to the loop's thread.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "net/http_message.h"
#include "server/api_keys.h"
#include "server/rate_limit.h"

namespace galley::server {

struct GateRefusal {
  enum class Kind : uint8_t {
    kNoKey,       // none was given
    kUnknownKey,  // not in the file
    kScope,       // not for this
    kOrigin,      // a web page of somebody else's
    kLimit,       // not now
  };
  Kind kind;
  std::string message;
  int64_t retry_after_s = 0;
};

// Somebody who came in. Keeps its place among the key's requests until destroyed.
class Guest {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Guest() = default;  // without a key
  Guest(std::string name, KeyLimits limits, std::shared_ptr<RateLimit> rate)
      : name_(std::move(name)), limits_(limits), rate_(std::move(rate)) {}
  ~Guest() {
    if (counted_) rate_->finish();
  }
  Guest(Guest&& other) noexcept
      : name_(std::move(other.name_)),
        limits_(other.limits_),
        rate_(std::move(other.rate_)),
        counted_(std::exchange(other.counted_, false)) {}
  Guest& operator=(Guest&&) = delete;

  // The key's name; empty without one.
  const std::string& name() const { return name_; }
  // Counts one request to generate, or says why not yet.
  std::optional<GateRefusal> take_place(TimePoint now);
  // Charges a prompt's tokens, or says why not yet.
  std::optional<GateRefusal> reserve_tokens(int64_t tokens, TimePoint now) const;
  // At the end: what was produced, less what was reserved and not used.
  void charge_tokens(int64_t tokens) const {
    if (rate_ != nullptr) rate_->charge_tokens(tokens);
  }
  // x-ratelimit-*, as far as the key has limits.
  std::vector<net::HttpField> limit_fields() const;

 private:
  std::string name_;
  KeyLimits limits_;
  std::shared_ptr<RateLimit> rate_;  // shared with the gate, which may forget the key
  bool counted_ = false;
};

struct GateOptions {
  bool check_origin = false;  // without keys on a local address
};

class Gate {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Without keys everybody may do everything.
  Gate(std::optional<ApiKeys> keys, GateOptions options)
      : keys_(std::move(keys)), options_(options) {}

  // What a key used so far stays with its name.
  void replace_keys(ApiKeys keys) { keys_ = std::move(keys); }
  bool has_keys() const { return keys_.has_value(); }

  std::variant<Guest, GateRefusal> admit(const net::HttpRequest& request, Scope scope,
                                         TimePoint now);
  // Somebody who was let in before, under the name of his key, and has work here still: the key
  // itself is not kept anywhere.
  std::variant<Guest, GateRefusal> admit_again(const std::string& name, Scope scope, TimePoint now);

 private:
  std::variant<Guest, GateRefusal> let_in(const ApiKey& key, Scope scope, TimePoint now);

  std::optional<ApiKeys> keys_;
  GateOptions options_;
  std::map<std::string, std::shared_ptr<RateLimit>> rates_;  // by name; at most kApiKeysMax
};

// Whether the request may come from a page of the server's own or from no page at all: a browser
// names the page's origin, and a name that was made to point here shows in Host.
bool is_honest_neighbour(const net::HttpRequest& request);

}  // namespace galley::server
