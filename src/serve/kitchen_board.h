// The tickets of the kitchen view: who is in hand, in which phase since when,
// and who left a moment ago.
//
// A request gets a ticket when it is accepted; whoever hears of its progress
// writes it down. Knows no text and no clock: times are handed in, in
// milliseconds since the server started. Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/kitchen_state.h"

namespace galley::serve {

// One request on the board.
class OpenTicket {
 public:
  // `order` says who it is and what it wants; it waits from now on.
  OpenTicket(KitchenTicket order, int64_t now_ms);

  // The phase that begins now; the same phase again changes nothing.
  void enter(KitchenPhase phase, int64_t now_ms);
  // The prompt's part, known at any moment: since when it runs, and until when it replayed. Says
  // nothing new when a later phase was entered.
  void run_prompt(int64_t admitted_ms, std::optional<int64_t> replayed_ms, bool replays);
  void add_output(int64_t tokens) { ticket_.output_tokens += tokens; }
  void set_hit(int64_t cached_tokens, int64_t replayed_tokens);
  // The first call counts, and nothing changes after it.
  void close(std::string finish, int64_t now_ms);

  bool closed() const { return !ticket_.finish.empty(); }
  const KitchenTicket& view() const { return ticket_; }

 private:
  KitchenTicket ticket_;  // with one span at least
};

class KitchenBoard {
 public:
  static constexpr int64_t kKeptMs = 60'000;  // how long a closed ticket is shown

  // Tickets beyond `tickets_max` push out the oldest: the board shows, it does not keep books.
  explicit KitchenBoard(size_t tickets_max = 4096) : tickets_max_(tickets_max) {}

  std::shared_ptr<OpenTicket> open(KitchenTicket order, int64_t now_ms);

  // Those that run, then those that wait, then the last that left; at most kKitchenTicketsMax.
  std::vector<KitchenTicket> tickets(int64_t now_ms);

 private:
  void drop_old(int64_t now_ms);

  const size_t tickets_max_;
  // In order of arrival; shared with whoever moves the request.
  std::deque<std::shared_ptr<OpenTicket>> tickets_;
};

}  // namespace galley::serve
