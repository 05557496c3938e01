// Layer roles that the released model does not have: Engram after the cut of
// decoder replay, no candidate pool, a pool from before the cut, other ratios,
// window-only layers at the end, no compression at all. On each of them
// chunking, decode and replay change no bit.
#include "roles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "driver.h"
#include "random_model.h"

namespace galley::testing {
namespace {

using model::DecoderReplay;

class LayerRoles : public ::testing::TestWithParam<Roles> {
 protected:
  LayerRoles() : model_(random_model(GetParam().change, 31)) {}

  static std::vector<int32_t> tokens(size_t count) {
    std::mt19937 random(32);
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 512);
    return ids;
  }

  // Logits of the prompt's end and of three decoded rows.
  std::vector<Logits> generate(const DriverOptions& with, const std::vector<int64_t>& ends,
                               bool hold = false) const {
    Driver driver(*model_, with);
    Sequence sequence = driver.start(tokens(static_cast<size_t>(ends.back()) + 3));
    sequence.prompt_end = ends.back();
    std::vector<Logits> rows = {driver.prefill(sequence, ends, false, hold).back()};
    for (int64_t t = ends.back(); t < ends.back() + 3; ++t) {
      rows.push_back(driver.run({.sequence = &sequence, .begin = t, .end = t + 1}).front());
    }
    return rows;
  }

  DriverOptions options(const std::string& ops, DecoderReplay replay) const {
    return {.ops = ops, .replay = replay, .positions_max = 128};
  }

  const std::unique_ptr<model::Model> model_;
};

TEST_P(LayerRoles, ChunkingAndDecodeChangeNoBit) {
  for (const std::string& ops : ops_names()) {
    const DriverOptions off = options(ops, DecoderReplay::kOff);
    const std::vector<int32_t> ids = tokens(61);
    Driver driver(*model_, off);
    Sequence sequence = driver.start(ids);
    const std::vector<Logits> whole = driver.prefill(sequence, {61});
    for (const std::vector<int64_t>& ends :
         {std::vector<int64_t>{1, 61}, {30, 61}, {31, 33, 34, 61}, {7, 14, 55, 56, 57, 58, 61}}) {
      Driver other(*model_, off);
      Sequence again = other.start(ids);
      ASSERT_EQ(other.prefill(again, ends), whole) << ops;
    }
    for (const Logits& row : whole) {
      ASSERT_TRUE(std::ranges::all_of(row, [](float v) { return std::isfinite(v); }));
    }
    EXPECT_NE(whole[20], whole[21]);
  }
}

TEST_P(LayerRoles, ReplayNeverDependsOnChunks) {
  const bool cuts = model_->config().decoder_source() >= 0;
  const bool early_pool = model_->config().candidate_source >= 0 &&
                          model_->config().candidate_source < model_->config().decoder_source();
  for (const std::string& ops : ops_names()) {
    for (const DecoderReplay reading : {DecoderReplay::kLayerWhole, DecoderReplay::kWindowAndGlobal,
                                        DecoderReplay::kGlobalOnly}) {
      const std::vector<Logits> whole = generate(options(ops, reading), {50});
      for (const std::vector<int64_t>& ends :
           {std::vector<int64_t>{20, 50}, {37, 50}, {49, 50}, {33, 40, 41, 50}}) {
        ASSERT_EQ(generate(options(ops, reading), ends), whole) << ops;
        if (!cuts || early_pool || reading == DecoderReplay::kLayerWhole) continue;
        DriverOptions held = options(ops, reading);
        held.hold_inputs = true;
        ASSERT_EQ(generate(held, ends, true), whole) << ops << ", held";
      }
      const std::vector<Logits> off = generate(options(ops, DecoderReplay::kOff), {50});
      EXPECT_EQ(whole != off, cuts);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayerRoles, ::testing::ValuesIn(kRoles),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace galley::testing
