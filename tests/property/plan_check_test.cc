// Plans that a step cannot carry out are refused with one line that names the
// field, before anything is computed; the step goes on working.
#include <gtest/gtest.h>

#include <functional>

#include "driver.h"

namespace galley::testing {
namespace {

class PlanCheck : public ::testing::Test {
 protected:
  PlanCheck() : model_(golden_model("g1-micro-text")), driver_(*model_, options()) {
    sequence_ = driver_.start({5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
  }
  static DriverOptions options() {
    return {.replay = model::DecoderReplay::kWindowAndGlobal,
            .rows_max = 8,
            .sequences_max = 2,
            .positions_max = 64};
  }

  void expect_refused(const std::string& part,
                      const std::function<void(model::SequencePlan&)>& change) {
    model::SequencePlan plan = driver_.plan({.sequence = &sequence_, .begin = 4, .end = 8});
    change(plan);
    const auto result = driver_.forward().run(std::span(&plan, 1));
    ASSERT_FALSE(result) << part;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalid);
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
  }

  std::unique_ptr<model::Model> model_;
  Driver driver_;
  Sequence sequence_;
};

TEST_F(PlanCheck, NamesWhatIsWrong) {
  driver_.run({.sequence = &sequence_, .begin = 0, .end = 4});
  const std::vector<int32_t> wrong_id = {5, 512, 3, 4};
  const std::vector<int32_t> wrong_page = {0, 99};
  const std::vector<int32_t> many(9, 3);
  const std::vector<uint8_t> flags(3);
  using Plan = model::SequencePlan;
  expect_refused("no rows", [](Plan& plan) { plan.tokens = {}; });
  expect_refused("token id 512", [&](Plan& plan) { plan.tokens = wrong_id; });
  expect_refused("look-back token id 512", [&](Plan& plan) { plan.look_back = wrong_id; });
  expect_refused("look_back has 0 ids", [](Plan& plan) { plan.look_back = {}; });
  expect_refused("slot 2", [](Plan& plan) { plan.slot = 2; });
  expect_refused("slot -1", [](Plan& plan) { plan.slot = -1; });
  expect_refused("page_table has 0", [](Plan& plan) { plan.page_table = {}; });
  expect_refused("page 99", [&](Plan& plan) { plan.page_table = wrong_page; });
  expect_refused("context", [](Plan& plan) { plan.first_position = 62; });
  expect_refused("9 rows", [&](Plan& plan) { plan.tokens = many; });
  expect_refused("image flags", [&](Plan& plan) { plan.in_image = flags; });
  expect_refused("window_floor", [](Plan& plan) { plan.window_floor = 5; });
  expect_refused("splits a group", [](Plan& plan) {
    plan.window_floor = 3;
    plan.first_position = 4;
    plan.global_begin = 3;
    plan.first_position = 3;
  });
  expect_refused("held", [](Plan& plan) { plan.hold_inputs = true; });
  expect_refused("does not run to the end", [](Plan& plan) {
    plan.tail_begin = 6;
    plan.logits_begin = 0;
  });
  const Plan plan = driver_.plan({.sequence = &sequence_, .begin = 4, .end = 8});
  const std::vector<Plan> twice = {plan, plan};
  const auto both = driver_.forward().run(twice);
  ASSERT_FALSE(both);
  EXPECT_NE(both.error().message.find("sequence 1 of the plan: slot 0 is in the plan twice"),
            std::string::npos);
  EXPECT_EQ(driver_.run({.sequence = &sequence_, .begin = 4, .end = 8}).size(), 4U);
}

TEST_F(PlanCheck, ReplayMustBeOnToCut) {
  DriverOptions off = options();
  off.replay = model::DecoderReplay::kOff;
  Driver driver(*model_, off);
  Sequence sequence = driver.start({5, 6, 7, 8});
  model::SequencePlan plan = driver.plan({.sequence = &sequence, .begin = 0, .end = 4});
  plan.tail_begin = 2;
  plan.logits_begin = 3;
  const auto result = driver.forward().run(std::span(&plan, 1));
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("replay is off"), std::string::npos);
}

}  // namespace
}  // namespace galley::testing
