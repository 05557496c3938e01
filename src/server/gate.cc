#include "server/gate.h"

#include <algorithm>
#include <utility>

namespace galley::server {
namespace {

constexpr std::string_view kBearer = "bearer ";

std::optional<std::string_view> presented_key(const net::HttpRequest& request) {
  if (const auto field = request.field("authorization")) {
    if (field->size() > kBearer.size() &&
        net::equal_ignoring_case(field->substr(0, kBearer.size()), kBearer)) {
      return field->substr(kBearer.size());
    }
  }
  return request.field("x-api-key");
}

// "host", "host:port" or "[v6]:port" without the port.
std::string_view host_of(std::string_view authority) {
  if (authority.starts_with('[')) return authority.substr(0, authority.find(']') + 1);
  return authority.substr(0, authority.find(':'));
}

// A number, or the one name that nobody else can own.
bool is_address_or_localhost(std::string_view host) {
  if (host == "localhost" || host.starts_with('[')) return true;
  return !host.empty() && std::all_of(host.begin(), host.end(),
                                      [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
}

}  // namespace

bool is_honest_neighbour(const net::HttpRequest& request) {
  const std::string_view host = request.field("host").value_or("");
  if (!host.empty() && !is_address_or_localhost(host_of(host))) return false;
  const auto origin = request.field("origin");
  if (!origin) return true;
  const size_t scheme = origin->find("://");
  return scheme != std::string_view::npos && origin->substr(scheme + 3) == host;
}

std::optional<GateRefusal> Guest::take_place(TimePoint now) {
  if (rate_ == nullptr || counted_) return std::nullopt;
  if (auto refusal = rate_->start(limits_, now)) {
    return GateRefusal{GateRefusal::Kind::kLimit, std::move(refusal->message),
                       refusal->retry_after_s};
  }
  counted_ = true;
  return std::nullopt;
}

std::optional<GateRefusal> Guest::reserve_tokens(int64_t tokens, TimePoint now) const {
  if (rate_ == nullptr) return std::nullopt;
  auto refusal = rate_->reserve_tokens(tokens, limits_, now);
  if (!refusal) return std::nullopt;
  return GateRefusal{GateRefusal::Kind::kLimit, std::move(refusal->message),
                     refusal->retry_after_s};
}

std::vector<net::HttpField> Guest::limit_fields() const {
  std::vector<net::HttpField> fields;
  if (rate_ == nullptr) return fields;
  if (limits_.requests_per_minute) {
    fields.push_back({"x-ratelimit-limit-requests", std::to_string(*limits_.requests_per_minute)});
    fields.push_back(
        {"x-ratelimit-remaining-requests", std::to_string(rate_->requests_left(limits_))});
  }
  if (limits_.tokens_per_minute) {
    fields.push_back({"x-ratelimit-limit-tokens", std::to_string(*limits_.tokens_per_minute)});
    fields.push_back({"x-ratelimit-remaining-tokens", std::to_string(rate_->tokens_left(limits_))});
  }
  return fields;
}

std::variant<Guest, GateRefusal> Gate::admit(const net::HttpRequest& request, Scope scope,
                                             TimePoint now) {
  using Kind = GateRefusal::Kind;
  if (!keys_) {
    if (options_.check_origin && !is_honest_neighbour(request)) {
      return GateRefusal{Kind::kOrigin,
                         "without API keys this server answers programs of this machine only, "
                         "not web pages of other origins"};
    }
    return Guest();
  }
  const auto presented = presented_key(request);
  if (!presented) {
    return GateRefusal{Kind::kNoKey,
                       "no API key; send it as \"Authorization: Bearer KEY\" or as x-api-key"};
  }
  const ApiKey* key = keys_->find(*presented);
  if (key == nullptr) return GateRefusal{Kind::kUnknownKey, "this API key is not known here"};
  return let_in(*key, scope, now);
}

std::variant<Guest, GateRefusal> Gate::admit_again(const std::string& name, Scope scope,
                                                   TimePoint now) {
  if (!keys_) return Guest();
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_->all()) {
    if (key.name == name && (found == nullptr || key.may(scope))) found = &key;
  }
  if (found != nullptr) return let_in(*found, scope, now);
  return GateRefusal{GateRefusal::Kind::kUnknownKey,
                     "the key \"" + name + "\" that asked for this is not known here any more"};
}

std::variant<Guest, GateRefusal> Gate::let_in(const ApiKey& key, Scope scope, TimePoint now) {
  if (!key.may(scope)) {
    return GateRefusal{GateRefusal::Kind::kScope,
                       "the key " + key.name + " lacks the scope for this"};
  }
  std::shared_ptr<RateLimit>& rate = rates_[key.name];
  if (rate == nullptr) {
    // Names of keys that are gone are forgotten when nobody of theirs is in.
    if (rates_.size() > kApiKeysMax) {
      std::erase_if(rates_, [&](const auto& each) {
        return each.second != nullptr && each.second->running() == 0;
      });
    }
    std::shared_ptr<RateLimit>& fresh = rates_[key.name];
    fresh = std::make_shared<RateLimit>(now);
    return Guest(key.name, key.limits, fresh);
  }
  return Guest(key.name, key.limits, rate);
}

}  // namespace galley::server
