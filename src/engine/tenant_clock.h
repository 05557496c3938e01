// Fairness among tenants: how much each has had, in virtual tokens.
//
// Whoever had least goes first. A tenant that comes back starts no earlier than
// whoever was served last, so that idling saves nothing up, and keeps what it
// owes. Source of the idea: start-time fair queueing, Goyal et al. 1996.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace galley::engine {

// What a token costs its tenant: the ratios of DeepSeek's prices for missed, cached and
// generated tokens, with room (spec/system.md 10.1).
constexpr double kMissedTokenCost = 1.0;
constexpr double kCachedTokenCost = 0.02;
constexpr double kOutputTokenCost = 4.0;

class TenantClock {
 public:
  struct Tenant {
    double time = 0;
    int32_t sequences = 0;  // that run or wait
  };

  // The tenant's record, which stays where it is until leave() was called as often.
  Tenant* enter(uint64_t tenant) {
    if (tenants_.size() >= kTenantsMax) forget_idle();
    Tenant& record = tenants_[tenant];
    if (record.sequences++ == 0) record.time = std::max(record.time, served_);
    return &record;
  }
  void leave(Tenant* tenant) { --tenant->sequences; }

  static void charge(Tenant* tenant, double cost) { tenant->time += cost; }
  // A sequence of this tenant starts to run.
  void serve(const Tenant* tenant) { served_ = std::max(served_, tenant->time); }

 private:
  // Of idle tenants; those with sequences are bounded by the sequences.
  static constexpr size_t kTenantsMax = 4096;

  void forget_idle() {
    std::erase_if(tenants_, [](const auto& entry) { return entry.second.sequences == 0; });
  }

  std::unordered_map<uint64_t, Tenant> tenants_;
  double served_ = 0;
};

}  // namespace galley::engine
