#include "serve/kitchen_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace galley::serve {
namespace {

using Json = nlohmann::ordered_json;

Json span_json(const KitchenSpan& span) {
  return {{"phase", phase_name(span.phase)},
          {"from_ms", span.from_ms},
          {"to_ms", span.to_ms ? Json(*span.to_ms) : Json(nullptr)}};
}

Json ticket_json(const KitchenTicket& ticket) {
  Json spans = Json::array();
  for (const KitchenSpan& span : ticket.spans) spans.push_back(span_json(span));
  return {{"id", ticket.id},
          {"priority", ticket.priority},
          {"prompt_tokens", ticket.prompt_tokens},
          {"cached_tokens", ticket.cached_tokens},
          {"replayed_tokens", ticket.replayed_tokens},
          {"output_tokens", ticket.output_tokens},
          {"output_tokens_max", ticket.output_tokens_max},
          {"finish", ticket.finish.empty() ? Json(nullptr) : Json(ticket.finish)},
          {"spans", std::move(spans)}};
}

Json tier_json(const KitchenTier& tier) {
  Json cached = Json::array();
  for (const KitchenAgeBand& band : tier.cached) {
    cached.push_back({{"under_s", band.under_s == 0 ? Json(nullptr) : Json(band.under_s)},
                      {"pages", band.pages}});
  }
  return {{"name", tier.name},
          {"page_count", tier.page_count},
          {"free_pages", tier.free_pages},
          {"held_pages", tier.held_pages},
          {"cached", std::move(cached)}};
}

Json counts_json(const std::vector<std::pair<std::string, int64_t>>& counts) {
  Json out = Json::object();
  for (const auto& [name, count] : counts) out[name] = count;
  return out;
}

Json totals_json(const KitchenTotals& totals) {
  return {{"steps", totals.steps},
          {"step_us", totals.step_us},
          {"prefill_rows", totals.prefill_rows},
          {"replay_rows", totals.replay_rows},
          {"decode_rows", totals.decode_rows},
          {"wasted_rows", totals.wasted_rows},
          {"prompt_tokens", totals.prompt_tokens},
          {"cached_tokens", totals.cached_tokens},
          {"replayed_tokens", totals.replayed_tokens},
          {"output_tokens", totals.output_tokens},
          {"drafted_tokens", totals.drafted_tokens},
          {"accepted_tokens", totals.accepted_tokens},
          {"finished", counts_json(totals.finished)},
          {"misses", counts_json(totals.misses)}};
}

}  // namespace

const char* phase_name(KitchenPhase phase) {
  switch (phase) {
    case KitchenPhase::kWaiting:
      return "waiting";
    case KitchenPhase::kReplay:
      return "replay";
    case KitchenPhase::kPrefill:
      return "prefill";
    case KitchenPhase::kDecode:
      return "decode";
    case KitchenPhase::kSpilled:
      return "spilled";
  }
  return "waiting";
}

std::string kitchen_state_json(const KitchenState& state) {
  Json tiers = Json::array();
  for (const KitchenTier& tier : state.tiers) tiers.push_back(tier_json(tier));
  Json tickets = Json::array();
  const size_t shown = std::min(state.tickets.size(), kKitchenTicketsMax);
  for (size_t i = 0; i < shown; ++i) tickets.push_back(ticket_json(state.tickets[i]));
  const Json json = {{"model", state.model},
                     {"state", state.state},
                     {"now_ms", state.now_ms},
                     {"running", state.running},
                     {"waiting", state.waiting},
                     {"running_max", state.running_max},
                     {"waiting_max", state.waiting_max},
                     {"page_tokens", state.page_tokens},
                     {"last_step_us", state.last_step_us},
                     {"totals", totals_json(state.totals)},
                     {"tiers", std::move(tiers)},
                     {"tickets", std::move(tickets)}};
  // A request id may be the client's own bytes: never a reason to throw.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace galley::serve
