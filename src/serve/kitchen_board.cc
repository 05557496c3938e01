#include "serve/kitchen_board.h"

#include <algorithm>

namespace galley::serve {
namespace {

// The order on the rail: what cooks, what waits, what left.
int rank(const KitchenTicket& ticket) {
  if (!ticket.finish.empty()) return 2;
  return ticket.spans.back().phase == KitchenPhase::kWaiting ? 1 : 0;
}

}  // namespace

OpenTicket::OpenTicket(KitchenTicket order, int64_t now_ms) : ticket_(std::move(order)) {
  ticket_.spans = {{KitchenPhase::kWaiting, now_ms, {}}};
  ticket_.finish.clear();
}

void OpenTicket::enter(KitchenPhase phase, int64_t now_ms) {
  KitchenSpan& last = ticket_.spans.back();
  if (closed() || last.phase == phase) return;
  if (ticket_.spans.size() == kKitchenSpansMax) {
    last.phase = phase;  // no room: the last one keeps its beginning
    return;
  }
  last.to_ms = now_ms;
  ticket_.spans.push_back({phase, now_ms, {}});
}

void OpenTicket::run_prompt(int64_t admitted_ms, std::optional<int64_t> replayed_ms, bool replays) {
  const KitchenPhase now = ticket_.spans.back().phase;
  if (now != KitchenPhase::kWaiting && now != KitchenPhase::kReplay) return;
  if (replays || replayed_ms) enter(KitchenPhase::kReplay, admitted_ms);
  if (!replays) enter(KitchenPhase::kPrefill, replayed_ms.value_or(admitted_ms));
}

void OpenTicket::set_hit(int64_t cached_tokens, int64_t replayed_tokens) {
  ticket_.cached_tokens = cached_tokens;
  ticket_.replayed_tokens = replayed_tokens;
}

void OpenTicket::close(std::string finish, int64_t now_ms) {
  if (closed()) return;
  ticket_.finish = std::move(finish);
  ticket_.spans.back().to_ms = now_ms;
}

std::shared_ptr<OpenTicket> KitchenBoard::open(KitchenTicket order, int64_t now_ms) {
  drop_old(now_ms);
  if (tickets_.size() >= tickets_max_) tickets_.pop_front();
  tickets_.push_back(std::make_shared<OpenTicket>(std::move(order), now_ms));
  return tickets_.back();
}

std::vector<KitchenTicket> KitchenBoard::tickets(int64_t now_ms) {
  drop_old(now_ms);
  std::vector<const KitchenTicket*> order;
  order.reserve(tickets_.size());
  // Newest first, so that what does not fit are those that left long ago.
  for (auto it = tickets_.rbegin(); it != tickets_.rend(); ++it) order.push_back(&(*it)->view());
  std::stable_sort(order.begin(), order.end(), [](const KitchenTicket* a, const KitchenTicket* b) {
    return rank(*a) < rank(*b);
  });
  if (order.size() > kKitchenTicketsMax) order.resize(kKitchenTicketsMax);
  std::vector<KitchenTicket> out;
  out.reserve(order.size());
  for (const KitchenTicket* ticket : order) out.push_back(*ticket);
  return out;
}

// Of those that left only so many can ever be shown, and only for a while.
void KitchenBoard::drop_old(int64_t now_ms) {
  const auto closed_count = static_cast<size_t>(std::count_if(
      tickets_.begin(), tickets_.end(), [](const auto& ticket) { return ticket->closed(); }));
  size_t too_many = closed_count - std::min(closed_count, kKitchenTicketsMax);
  std::erase_if(tickets_, [&](const std::shared_ptr<OpenTicket>& ticket) {
    if (!ticket->closed()) return false;
    if (too_many > 0) {
      --too_many;
      return true;
    }
    return now_ms - ticket->view().spans.back().to_ms.value_or(now_ms) > kKeptMs;
  });
}

}  // namespace galley::serve
