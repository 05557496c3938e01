// Tickets keep their phases in order and stay bounded whatever a request lives
// through.
#include "serve/kitchen_board.h"

#include <gtest/gtest.h>

#include <string>

namespace galley::serve {
namespace {

TEST(KitchenBoard, TellsTheLifeOfARequest) {
  KitchenBoard board;
  const auto open = board.open({.id = "a", .prompt_tokens = 100, .output_tokens_max = 9}, 10);
  open->enter(KitchenPhase::kReplay, 20);
  open->enter(KitchenPhase::kReplay, 25);  // the same phase: nothing begins
  open->enter(KitchenPhase::kPrefill, 30);
  open->set_hit(64, 32);
  open->enter(KitchenPhase::kDecode, 45);
  open->add_output(2);
  KitchenTicket ticket = board.tickets(50).at(0);
  ASSERT_EQ(ticket.spans.size(), 4u);
  EXPECT_EQ(ticket.spans[1].phase, KitchenPhase::kReplay);
  EXPECT_EQ(ticket.spans[1].from_ms, 20);
  EXPECT_EQ(ticket.spans[1].to_ms, 30);
  EXPECT_EQ(ticket.spans[3].to_ms, std::nullopt);
  EXPECT_EQ(ticket.cached_tokens, 64);
  EXPECT_EQ(ticket.output_tokens, 2);
  EXPECT_EQ(ticket.finish, "");

  open->close("stop", 60);
  open->close("length", 70);
  open->enter(KitchenPhase::kWaiting, 80);
  ticket = board.tickets(90).at(0);
  EXPECT_EQ(ticket.finish, "stop");
  EXPECT_EQ(ticket.spans.size(), 4u);
  EXPECT_EQ(ticket.spans[3].to_ms, 60);
}

TEST(KitchenBoard, APromptIsToldAtOnceOrInPieces) {
  const auto phases = [](const OpenTicket& ticket) {
    std::string out;
    for (const KitchenSpan& span : ticket.view().spans) {
      out += std::string(phase_name(span.phase)) + "@" + std::to_string(span.from_ms) + " ";
    }
    return out;
  };
  OpenTicket watched({.id = "w"}, 1);
  watched.run_prompt(5, {}, true);
  EXPECT_EQ(phases(watched), "waiting@1 replay@5 ");
  watched.run_prompt(5, 8, false);
  watched.run_prompt(5, 8, false);
  watched.enter(KitchenPhase::kDecode, 9);
  watched.run_prompt(5, 8, false);
  EXPECT_EQ(phases(watched), "waiting@1 replay@5 prefill@8 decode@9 ");
  OpenTicket unseen({.id = "u"}, 1);
  unseen.run_prompt(5, 8, false);
  EXPECT_EQ(phases(unseen), "waiting@1 replay@5 prefill@8 ");
  OpenTicket cold({.id = "c"}, 1);
  cold.run_prompt(5, {}, false);
  EXPECT_EQ(phases(cold), "waiting@1 prefill@5 ");
}

TEST(KitchenBoard, RunningThenWaitingThenGone) {
  KitchenBoard board;
  board.open({.id = "gone"}, 1)->close("stop", 2);
  board.open({.id = "waits"}, 3);
  board.open({.id = "runs"}, 4)->enter(KitchenPhase::kPrefill, 5);
  const auto tickets = board.tickets(10);
  ASSERT_EQ(tickets.size(), 3u);
  EXPECT_EQ(tickets[0].id, "runs");
  EXPECT_EQ(tickets[1].id, "waits");
  EXPECT_EQ(tickets[2].id, "gone");
  EXPECT_EQ(board.tickets(3 + KitchenBoard::kKeptMs).size(), 2u);  // the closed one is old now
}

TEST(KitchenBoard, IsBounded) {
  KitchenBoard board(3);
  for (int i = 0; i < 10; ++i) board.open({.id = std::to_string(i)}, i);
  const auto tickets = board.tickets(20);
  ASSERT_EQ(tickets.size(), 3u);
  EXPECT_EQ(tickets[0].id, "9");

  // Of those that left, only as many as can be shown; those that are in hand stay.
  KitchenBoard busy;
  const auto in_hand = busy.open({.id = "in hand"}, 0);
  for (int i = 0; i < 3000; ++i) busy.open({.id = "left"}, 1)->close("stop", 2);
  const auto shown = busy.tickets(3);
  EXPECT_EQ(shown.size(), kKitchenTicketsMax);
  EXPECT_EQ(shown[0].id, "in hand");
  EXPECT_EQ(in_hand.use_count(), 2);

  OpenTicket restless({.id = "r"}, 0);
  for (int64_t i = 1; i < 100; ++i) {
    restless.enter(i % 2 == 0 ? KitchenPhase::kDecode : KitchenPhase::kSpilled, i);
  }
  const KitchenTicket ticket = restless.view();
  EXPECT_EQ(ticket.spans.size(), kKitchenSpansMax);
  EXPECT_EQ(ticket.spans.back().phase, KitchenPhase::kSpilled);  // where it is now
  EXPECT_EQ(ticket.spans.back().to_ms, std::nullopt);
}

}  // namespace
}  // namespace galley::serve
