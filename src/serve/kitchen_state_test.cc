// The snapshot's JSON has every field under its name, never throws on a client's
// bytes, and stays bounded.
#include "serve/kitchen_state.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace galley::serve {
namespace {

using Json = nlohmann::json;

KitchenState busy() {
  KitchenState state{.model = "nano",
                     .state = "running",
                     .now_ms = 9000,
                     .running = 1,
                     .running_max = 32,
                     .page_tokens = 16};
  state.totals.prompt_tokens = 120;
  state.totals.wasted_rows = 3;
  state.totals.misses = {{"evicted", 2}};
  state.tiers = {{.name = "device",
                  .page_count = 8,
                  .free_pages = 1,
                  .held_pages = 4,
                  .cached = {{.under_s = 10, .pages = 2}, {.under_s = 0, .pages = 1}}}};
  state.tickets = {
      {.id = "req-1",
       .priority = "interactive",
       .spans = {{KitchenPhase::kWaiting, 10, 20}, {KitchenPhase::kDecode, 20, std::nullopt}},
       .prompt_tokens = 120}};
  return state;
}

TEST(KitchenState, SaysWhatItHolds) {
  const Json json = Json::parse(kitchen_state_json(busy()));
  EXPECT_EQ(json["model"], "nano");
  EXPECT_EQ(json["totals"]["prompt_tokens"], 120);
  EXPECT_EQ(json["totals"]["wasted_rows"], 3);
  EXPECT_EQ(json["totals"]["misses"]["evicted"], 2);
  EXPECT_EQ(json["tiers"][0]["cached"][0], (Json{{"under_s", 10}, {"pages", 2}}));
  EXPECT_TRUE(json["tiers"][0]["cached"][1]["under_s"].is_null());
  const Json& ticket = json["tickets"][0];
  EXPECT_TRUE(ticket["finish"].is_null());
  EXPECT_EQ(ticket["spans"][0], (Json{{"phase", "waiting"}, {"from_ms", 10}, {"to_ms", 20}}));
  EXPECT_EQ(ticket["spans"][1]["phase"], "decode");
  EXPECT_TRUE(ticket["spans"][1]["to_ms"].is_null());
}

TEST(KitchenState, IsOneLineAndTakesAnyBytes) {
  KitchenState state = busy();
  state.tickets[0].id = "a\xff\n\"b";
  const std::string text = kitchen_state_json(state);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(Json::parse(text)["tickets"][0]["id"], "a\xef\xbf\xbd\n\"b");
}

TEST(KitchenState, ShowsNoMoreThanItSays) {
  KitchenState state = busy();
  state.tickets.resize(kKitchenTicketsMax + 5, state.tickets[0]);
  EXPECT_EQ(Json::parse(kitchen_state_json(state))["tickets"].size(), kKitchenTicketsMax);
}

}  // namespace
}  // namespace galley::serve
