// The tickets of the kitchen view: who is in hand, in which phase since when,
// and who left a moment ago.
//
// A request gets a ticket when it is accepted. The thread that moves the request
// (the engine's) writes into the ticket without a lock and without allocating;
// a viewer reads while it writes and may see a token count that is one behind.
// The board itself is locked only when a ticket is opened and when somebody
// looks. Knows no text and no clock: times are handed in, in milliseconds since
// the server started.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/kitchen_state.h"

namespace galley::serve {

// One request on the board. One thread writes at a time, any may read.
class OpenTicket {
 public:
  struct Order {
    std::string id = {};
    std::string priority = {};
    int64_t prompt_tokens = 0;
    int64_t output_tokens_max = 0;
  };

  OpenTicket(Order order, int64_t now_ms);

  // The phase that begins now; the same phase again changes nothing.
  void enter(KitchenPhase phase, int64_t now_ms);
  void add_output(int64_t tokens) { output_tokens_.fetch_add(tokens, std::memory_order_relaxed); }
  void set_hit(int64_t cached_tokens, int64_t replayed_tokens);
  // The first call counts. `finish` lives as long as the program.
  void close(const char* finish, int64_t now_ms);

  bool closed() const { return finish_.load(std::memory_order_acquire) != nullptr; }
  int64_t closed_ms() const { return closed_ms_.load(std::memory_order_relaxed); }
  KitchenTicket view() const;

 private:
  struct Change {
    std::atomic<KitchenPhase> phase{KitchenPhase::kWaiting};
    std::atomic<int64_t> from_ms{0};
  };

  const Order order_;
  std::array<Change, kKitchenSpansMax> changes_;
  std::atomic<size_t> change_count_{0};  // written after the change that it counts
  std::atomic<int64_t> output_tokens_{0};
  std::atomic<int64_t> cached_tokens_{0};
  std::atomic<int64_t> replayed_tokens_{0};
  std::atomic<int64_t> closed_ms_{0};
  std::atomic<const char*> finish_{nullptr};
};

class KitchenBoard {
 public:
  static constexpr int64_t kKeptMs = 60'000;  // how long a closed ticket is shown

  // Tickets beyond `tickets_max` push out the oldest: the board shows, it does not keep books.
  explicit KitchenBoard(size_t tickets_max = 4096) : tickets_max_(tickets_max) {}

  std::shared_ptr<OpenTicket> open(OpenTicket::Order order, int64_t now_ms);

  // Those that run, then those that wait, then the last that left; at most kKitchenTicketsMax.
  std::vector<KitchenTicket> tickets(int64_t now_ms);

 private:
  void drop_old(int64_t now_ms);

  const size_t tickets_max_;
  std::mutex mutex_;
  // In order of arrival; shared with whoever moves the request.
  std::deque<std::shared_ptr<OpenTicket>> tickets_;
};

}  // namespace galley::serve
