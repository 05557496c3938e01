// What the kitchen view of the web page shows, as one plain value, and its JSON:
// the body of GET /kitchen/state.
//
// Counts and times only. There is no text, no token and no key in it, and there
// must never be: an operator may look at strangers' requests. Totals grow from
// the start of the server; the page takes rates from their differences, so
// that any number of viewers cost nothing and none needs a session. Times are
// milliseconds since the server started, on one steady clock.
// The server fills it from the engine, the cache and the kitchen_board; knows
// none of them. With API keys configured the route needs the admin scope.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace galley::serve {

// Where a request is. Replay, prefill and decode are the rows that it has in the steps.
enum class KitchenPhase : uint8_t {
  kWaiting,  // accepted, without a slot
  kReplay,   // after a hit: the window is computed again
  kPrefill,  // the prompt is computed
  kDecode,   // tokens come
  kSpilled,  // preempted: its slot is kept on the host
};

const char* phase_name(KitchenPhase phase);

struct KitchenSpan {
  KitchenPhase phase = KitchenPhase::kWaiting;
  int64_t from_ms = 0;
  std::optional<int64_t> to_ms = {};  // absent: goes on
};

constexpr size_t kKitchenSpansMax = 16;     // of one ticket: a later change stretches the last
constexpr size_t kKitchenTicketsMax = 256;  // shown: those that run first

struct KitchenTicket {
  std::string id = {};  // as in the log and the response header
  std::string priority = {};
  std::vector<KitchenSpan> spans = {};  // in order, without gaps
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;    // of the prompt, from the prefix cache
  int64_t replayed_tokens = 0;  // of those, computed again
  int64_t output_tokens = 0;
  int64_t output_tokens_max = 0;
  std::string finish = {};  // empty while it is open
};

// Pages whose last use is younger than `under_s` and not in a younger band.
struct KitchenAgeBand {
  int64_t under_s = 0;  // 0: all the rest
  int64_t pages = 0;
};

struct KitchenTier {
  std::string name = {};   // "device", "host", "peer", "store"
  int64_t page_count = 0;  // room for
  int64_t free_pages = 0;
  int64_t held_pages = 0;                   // by running sequences
  std::vector<KitchenAgeBand> cached = {};  // kept for reuse, youngest first
};

struct KitchenTotals {
  int64_t steps = 0;
  int64_t step_us = 0;  // all steps together
  int64_t prefill_rows = 0;
  int64_t replay_rows = 0;
  int64_t decode_rows = 0;
  int64_t wasted_rows = 0;  // of sequences that had ended when the step was over
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t replayed_tokens = 0;
  int64_t output_tokens = 0;
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
  std::vector<std::pair<std::string, int64_t>> finished = {};  // by reason
  std::vector<std::pair<std::string, int64_t>> misses = {};    // by reason
};

struct KitchenState {
  std::string model = {};  // as it is served
  std::string state = {};  // "running", "draining", "failed", "stopped"
  int64_t now_ms = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t running_max = 0;
  int64_t waiting_max = 0;
  int64_t page_tokens = 0;
  int64_t last_step_us = 0;
  KitchenTotals totals = {};
  std::vector<KitchenTier> tiers = {};
  std::vector<KitchenTicket> tickets = {};  // at most kKitchenTicketsMax
};

// One line of JSON. Field names are those above; an absent time is null.
std::string kitchen_state_json(const KitchenState& state);

}  // namespace galley::serve
