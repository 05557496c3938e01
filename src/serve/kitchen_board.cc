#include "serve/kitchen_board.h"

#include <algorithm>
#include <utility>

namespace galley::serve {
namespace {

// The order on the rail: what cooks, what waits, what left.
int rank(const KitchenTicket& ticket) {
  if (!ticket.finish.empty()) return 2;
  return ticket.spans.back().phase == KitchenPhase::kWaiting ? 1 : 0;
}

}  // namespace

OpenTicket::OpenTicket(Order order, int64_t now_ms) : order_(std::move(order)) {
  changes_[0].from_ms.store(now_ms, std::memory_order_relaxed);
  change_count_.store(1, std::memory_order_release);
}

void OpenTicket::enter(KitchenPhase phase, int64_t now_ms) {
  const size_t count = change_count_.load(std::memory_order_relaxed);
  if (changes_[count - 1].phase.load(std::memory_order_relaxed) == phase || closed()) return;
  if (count == changes_.size()) {
    // No room: the last span takes the new phase and keeps its beginning.
    changes_[count - 1].phase.store(phase, std::memory_order_relaxed);
    return;
  }
  changes_[count].phase.store(phase, std::memory_order_relaxed);
  changes_[count].from_ms.store(now_ms, std::memory_order_relaxed);
  change_count_.store(count + 1, std::memory_order_release);
}

void OpenTicket::set_hit(int64_t cached_tokens, int64_t replayed_tokens) {
  cached_tokens_.store(cached_tokens, std::memory_order_relaxed);
  replayed_tokens_.store(replayed_tokens, std::memory_order_relaxed);
}

void OpenTicket::close(const char* finish, int64_t now_ms) {
  if (closed()) return;
  closed_ms_.store(now_ms, std::memory_order_relaxed);
  finish_.store(finish, std::memory_order_release);
}

KitchenTicket OpenTicket::view() const {
  const char* finish = finish_.load(std::memory_order_acquire);
  KitchenTicket ticket{.id = order_.id,
                       .priority = order_.priority,
                       .spans = {},
                       .prompt_tokens = order_.prompt_tokens,
                       .cached_tokens = cached_tokens_.load(std::memory_order_relaxed),
                       .replayed_tokens = replayed_tokens_.load(std::memory_order_relaxed),
                       .output_tokens = output_tokens_.load(std::memory_order_relaxed),
                       .output_tokens_max = order_.output_tokens_max,
                       .finish = finish == nullptr ? "" : finish};
  const size_t count = change_count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    const int64_t from_ms = changes_[i].from_ms.load(std::memory_order_relaxed);
    if (i > 0) ticket.spans.back().to_ms = from_ms;
    ticket.spans.push_back({changes_[i].phase.load(std::memory_order_relaxed), from_ms, {}});
  }
  if (finish != nullptr) ticket.spans.back().to_ms = closed_ms();
  return ticket;
}

std::shared_ptr<OpenTicket> KitchenBoard::open(OpenTicket::Order order, int64_t now_ms) {
  auto ticket = std::make_shared<OpenTicket>(std::move(order), now_ms);
  const std::lock_guard lock(mutex_);
  drop_old(now_ms);
  if (tickets_.size() >= tickets_max_) tickets_.pop_front();
  tickets_.push_back(ticket);
  return ticket;
}

std::vector<KitchenTicket> KitchenBoard::tickets(int64_t now_ms) {
  std::vector<KitchenTicket> out;
  {
    const std::lock_guard lock(mutex_);
    drop_old(now_ms);
    out.reserve(tickets_.size());
    // Newest first, so that what does not fit are those that left long ago.
    for (auto it = tickets_.rbegin(); it != tickets_.rend(); ++it) out.push_back((*it)->view());
  }
  std::stable_sort(out.begin(), out.end(), [](const KitchenTicket& a, const KitchenTicket& b) {
    return rank(a) < rank(b);
  });
  if (out.size() > kKitchenTicketsMax) out.resize(kKitchenTicketsMax);
  return out;
}

void KitchenBoard::drop_old(int64_t now_ms) {
  std::erase_if(tickets_, [now_ms](const std::shared_ptr<OpenTicket>& ticket) {
    return ticket->closed() && now_ms - ticket->closed_ms() > kKeptMs;
  });
}

}  // namespace galley::serve
