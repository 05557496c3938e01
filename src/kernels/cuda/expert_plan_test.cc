// Plans of experts, made by one block and by a cluster, against plain loops: places, factors and
// token blocks are exactly what the rule of expert_plan.h says.
//
// Skipped without a usable device.
#include "kernels/cuda/expert_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/weight_tiles.h"

namespace galley::kernels::cuda {
namespace {

struct PlanCase {
  int64_t choices;
  int32_t experts;
  int32_t drawn_from;  // more than `experts`: some are elsewhere
  int32_t block_tokens;
};

// One after another: experts ascending, each from a multiple of 8 on, choices in their order. Large
// blocks are listed by the size of their expert's, the largest first.
struct ExpectedPlan {
  ExpectedPlan(const PlanCase& c, const std::vector<int32_t>& chosen) {
    std::vector<int32_t> next(static_cast<size_t>(c.experts));
    int32_t begin = 0;
    for (int32_t e = 0; e < c.experts; ++e) {
      const auto count = static_cast<int32_t>(std::count(chosen.begin(), chosen.end(), e));
      next[static_cast<size_t>(e)] = begin;
      int32_t most = c.block_tokens;
      if (most == kRowTilesBlock && count > most) {
        // Units of 64, as few blocks of up to four as can be, alike but for the last.
        const int32_t units = (count + 63) / 64;
        most = 1;
        while ((units + most - 1) / most > (units + 3) / 4) ++most;
        most *= 64;
      } else if (most >= kPairStripsBlock && count > most) {
        // As few as can be, alike: the least multiple of 8 that they can all have.
        const int32_t parts = (count + most - 1) / most;
        most = 8;
        while (most * parts < count) most += 8;
      }
      for (int32_t row = 0; row < count; row += most) {
        blocks.push_back({e, begin + row, std::min(most, count - row), 0});
      }
      begin += (count + 7) / 8 * 8;
    }
    places = begin;
    if (c.block_tokens >= kPairStripsBlock) {
      std::vector<int32_t> size(static_cast<size_t>(c.experts));
      for (const TokenBlock& b : blocks) {
        auto& most = size[static_cast<size_t>(b.expert)];
        most = std::max(most, b.rows);
      }
      std::ranges::stable_sort(blocks, [&](const TokenBlock& a, const TokenBlock& b) {
        return size[static_cast<size_t>(a.expert)] > size[static_cast<size_t>(b.expert)];
      });
    }
    for (const int32_t e : chosen) {
      place.push_back(e >= 0 && e < c.experts ? next[static_cast<size_t>(e)]++ : -1);
    }
  }
  std::vector<int32_t> place;
  std::vector<TokenBlock> blocks;
  int32_t places = 0;
};

TEST(CudaExpertPlan, PlacesFollowTheRule) {
  if (const auto device = open_device(0); !device) GTEST_SKIP() << device.error().message;
  const auto memory = make_device_memory(nullptr, [] {});
  std::mt19937 random(1);
  for (const PlanCase& c : {PlanCase{6, 384, 384, 8},
                            {18, 12, 12, 80},
                            {384, 7, 7, 80},
                            {768, 7, 7, kPairStripsBlock},
                            {4160, 52, 60, kPairStripsBlock},
                            {4096, 384, 384, 80},
                            {4097, 384, 384, 80},
                            {33'000, 1024, 1024, 80},
                            {98'304, 384, 384, kPairStripsBlock},
                            {5000, 3, 5, kRowTilesBlock},
                            {4600, 7, 7, kRowTilesBlock},
                            {33'000, 1024, 1024, kRowTilesBlock},
                            {98'304, 384, 384, kRowTilesBlock},
                            {98'304, 7, 384, kRowTilesBlock}}) {
    SCOPED_TRACE(std::to_string(c.choices) + " choices of " + std::to_string(c.experts));
    std::vector<int32_t> chosen;
    std::vector<float> weights;
    for (int64_t i = 0; i < c.choices; ++i) {
      const double u = std::uniform_real_distribution<double>()(random);
      // Skewed; experts of others by their number or as -1.
      const auto e = static_cast<int32_t>(u * u * c.drawn_from);
      chosen.push_back(e >= c.experts && e % 2 == 0 ? -1 : e);
      weights.push_back(static_cast<float>(i));
    }
    const ExpectedPlan expected(c, chosen);

    const int64_t places = plan_places(c.choices, c.experts);
    const int64_t blocks_max = plan_blocks(c.choices, c.experts, std::min(c.block_tokens, 128));
    ASSERT_LE(std::ssize(expected.blocks), blocks_max);
    const auto block = [&](int64_t count, size_t size) {
      return MemoryBlock::create(*memory, count * static_cast<int64_t>(size), "a test").value();
    };
    const MemoryBlock ids = block(c.choices, sizeof(int32_t));
    const MemoryBlock factors = block(c.choices, sizeof(float));
    const MemoryBlock place = block(c.choices, sizeof(int32_t));
    const MemoryBlock row_weight = block(places + 256, sizeof(float));
    const MemoryBlock blocks = block(blocks_max, sizeof(TokenBlock));
    const MemoryBlock totals = block(1, sizeof(PlanTotals));
    memory->write(ids.data(), chosen.data(), ids.bytes());
    memory->write(factors.data(), weights.data(), factors.bytes());
    const ExpertPlan plan{.place = reinterpret_cast<int32_t*>(place.data()),
                          .row_weight = reinterpret_cast<float*>(row_weight.data()),
                          .blocks = reinterpret_cast<TokenBlock*>(blocks.data()),
                          .totals = reinterpret_cast<PlanTotals*>(totals.data())};
    plan_experts(nullptr, reinterpret_cast<const int32_t*>(ids.data()),
                 reinterpret_cast<const float*>(factors.data()), c.choices, c.experts,
                 c.block_tokens, plan);
    ASSERT_TRUE(check_launch("a plan"));

    std::vector<int32_t> our_place(chosen.size());
    std::vector<float> our_factors(static_cast<size_t>(places));
    std::vector<TokenBlock> our_blocks(static_cast<size_t>(blocks_max));
    PlanTotals our_totals{-1, -1, -1};
    memory->read(our_place.data(), place.data(), place.bytes());
    memory->read(our_factors.data(), row_weight.data(), places * int64_t{sizeof(float)});
    memory->read(our_blocks.data(), blocks.data(), blocks.bytes());
    memory->read(&our_totals, totals.data(), totals.bytes());
    EXPECT_TRUE(our_place == expected.place);
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (expected.place[i] < 0) continue;
      ASSERT_EQ(our_factors[static_cast<size_t>(expected.place[i])], weights[i]) << "choice " << i;
    }
    ASSERT_EQ(our_totals.blocks, std::ssize(expected.blocks));
    EXPECT_EQ(our_totals.places, expected.places);
    EXPECT_EQ(our_totals.drawn, 0);
    for (size_t i = 0; i < expected.blocks.size(); ++i) {
      const TokenBlock& ours = our_blocks[i];
      const TokenBlock& theirs = expected.blocks[i];
      ASSERT_TRUE(ours.expert == theirs.expert && ours.row == theirs.row &&
                  ours.rows == theirs.rows)
          << "block " << i;
    }
  }
}

// Codes that are copied to their places are the ones that would be made there: of few choices by
// the plan's own launch, of many by the next one.
TEST(CudaExpertPlan, SpreadCodesAreThoseMadeThere) {
  if (const auto device = open_device(0); !device) GTEST_SKIP() << device.error().message;
  const auto memory = make_device_memory(nullptr, [] {});
  std::mt19937 random(2);
  constexpr int64_t kChunks = 3;
  constexpr int32_t kExperts = 40;
  constexpr int32_t kTopK = 6;
  constexpr int32_t kTokens = 80;
  for (const int64_t rows : {1, 8, 13, 170, 171, 700}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const int64_t choices = rows * kTopK;
    const int64_t places = plan_places(choices, kExperts);
    std::vector<Bf16> x;
    for (int64_t i = 0; i < rows * kChunks * kChunk; ++i) {
      x.push_back({static_cast<uint16_t>(random() % 0x4100 | (random() % 2 << 15))});
    }
    std::vector<int32_t> chosen;
    for (int64_t i = 0; i < choices; ++i) {  // some are another rank's
      chosen.push_back(static_cast<int32_t>(random() % (kExperts + 2)));
    }
    const std::vector<float> weights(static_cast<size_t>(choices), 0.5F);
    std::vector<MemoryBlock> blocks;
    const auto block = [&](int64_t bytes) {
      blocks.push_back(MemoryBlock::create(*memory, bytes, "a test").value());
      const std::vector<uint8_t> zeros(static_cast<size_t>(bytes));
      memory->write(blocks.back().data(), zeros.data(), bytes);
      return blocks.back().data();
    };
    const auto placed = [&]<class T>(const std::vector<T>& host) {
      const auto bytes = std::ssize(host) * static_cast<int64_t>(sizeof(T));
      auto* at = block(bytes);
      memory->write(at, host.data(), bytes);
      return reinterpret_cast<T*>(at);
    };
    const auto quantised = [&](int64_t count) {
      return QuantisedRows{reinterpret_cast<uint8_t*>(block(count * kChunks * kChunk)),
                           reinterpret_cast<float*>(block(count * kChunks * 4)), count};
    };
    const auto plan = [&] {
      return ExpertPlan{.place = reinterpret_cast<int32_t*>(block(choices * 4)),
                        .row_weight = reinterpret_cast<float*>(block((places + 256) * 4)),
                        .blocks = reinterpret_cast<TokenBlock*>(block(
                            plan_blocks(choices, kExperts, kTokens) * int64_t{sizeof(TokenBlock)})),
                        .totals = reinterpret_cast<PlanTotals*>(block(sizeof(PlanTotals)))};
    };
    const Rows<const Bf16> input(placed(x), rows, kChunks * kChunk);
    const int32_t* experts = placed(chosen);
    const float* factors = placed(weights);
    const ExpertPlan made_plan = plan();
    const QuantisedRows made = quantised(places);
    const QuantisedRows in_order = quantised((rows + 7) / 8 * 8);
    plan_experts(nullptr, experts, factors, choices, kExperts, kTokens, made_plan);
    quantise_choices(nullptr, input, made_plan.place, kTopK, made, in_order);
    const ExpertPlan spread_plan = plan();
    const QuantisedRows spread = quantised(places);
    plan_and_spread(nullptr, experts, factors, rows, kTopK, kExperts, kTokens, spread_plan,
                    in_order, spread, kChunks);
    ASSERT_TRUE(check_launch("a plan"));
    const auto same = [&](const void* a, const void* b, int64_t bytes) {
      std::vector<uint8_t> host_a(static_cast<size_t>(bytes));
      std::vector<uint8_t> host_b(static_cast<size_t>(bytes));
      memory->read(host_a.data(), a, bytes);
      memory->read(host_b.data(), b, bytes);
      return host_a == host_b;
    };
    EXPECT_TRUE(same(made.x8, spread.x8, places * kChunks * kChunk));
    EXPECT_TRUE(same(made.scale, spread.scale, places * kChunks * 4));
    EXPECT_TRUE(same(made_plan.place, spread_plan.place, choices * 4));
    EXPECT_TRUE(same(made_plan.row_weight, spread_plan.row_weight, places * 4));
    EXPECT_TRUE(same(made_plan.blocks, spread_plan.blocks,
                     plan_blocks(choices, kExperts, kTokens) * int64_t{sizeof(TokenBlock)}));
    EXPECT_TRUE(same(made_plan.totals, spread_plan.totals, sizeof(PlanTotals)));
  }
}

}  // namespace
}  // namespace galley::kernels::cuda
