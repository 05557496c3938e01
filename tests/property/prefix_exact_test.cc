// Exact replay after a prefix hit: logits of the prompt's end and of the tokens
// after it, and the global KV behind the hit, are those of a cold run to the bit,
// for every hit length, parity, reading of decoder replay and chunking. Rows are
// started where exact_replay_start says, which is not earlier than it must be.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "driver.h"

namespace galley::testing {
namespace {

using model::DecoderReplay;

constexpr DecoderReplay kReadings[] = {DecoderReplay::kOff, DecoderReplay::kLayerWhole,
                                       DecoderReplay::kWindowAndGlobal, DecoderReplay::kGlobalOnly};
constexpr int64_t kDecoded = 3;

class PrefixExact : public ::testing::TestWithParam<std::string> {
 protected:
  static const model::Model& model() {
    static const std::unique_ptr<model::Model> loaded = golden_model("g2-micro-full");
    return *loaded;
  }

  static DriverOptions options(DecoderReplay replay) {
    return {.ops = GetParam(), .replay = replay, .sequences_max = 2, .positions_max = 256};
  }

  static int64_t start(DecoderReplay replay, int64_t hit, int64_t prompt_end) {
    const model::Config& config = model().config();
    return model::exact_replay_start({.replay = replay,
                                      .window = config.window,
                                      .layers = config.layers,
                                      .decoder_source = config.decoder_source()},
                                     hit, prompt_end);
  }

  static std::vector<int32_t> tokens(size_t count) {
    std::mt19937 random(22);
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 512);
    return ids;
  }

  // Rows [begin, prompt end) in chunks that end at `ends`, then the rest one by one.
  static std::vector<Logits> generate(Driver& driver, Sequence& sequence, int64_t begin,
                                      int64_t hit, std::vector<int64_t> ends) {
    ends.push_back(sequence.prompt_end);
    for (int64_t i = 1; i <= kDecoded; ++i) ends.push_back(sequence.prompt_end + i);
    std::vector<Logits> rows;
    const int64_t floor = begin;
    for (const int64_t end : ends) {
      if (end <= begin) continue;
      const bool wanted = end >= sequence.prompt_end;
      const std::vector<Logits> got = driver.run({.sequence = &sequence,
                                                  .begin = begin,
                                                  .end = end,
                                                  .all_logits = false,
                                                  .window_floor = floor,
                                                  .global_begin = hit});
      if (wanted) rows.push_back(got.back());
      begin = end;
    }
    return rows;
  }

  // A cold run in slot 0 with `driver`; then hits on its pages in slot 1.
  struct Cold {
    Sequence sequence;
    std::vector<Logits> rows;
    std::vector<uint8_t> globals;
  };
  static Cold cold_run(Driver& driver, int64_t prompt_end) {
    Cold cold;
    cold.sequence = driver.start(tokens(static_cast<size_t>(prompt_end + kDecoded)), 0);
    cold.sequence.prompt_end = prompt_end;
    cold.rows = generate(driver, cold.sequence, 0, 0, {});
    cold.globals = global_bytes(driver, cold.sequence, prompt_end + kDecoded);
    return cold;
  }
};

TEST_P(PrefixExact, EveryHitLengthGivesTheBitsOfAColdRun) {
  const bool slow = GetParam() == "plain";
  for (const DecoderReplay reading : kReadings) {
    for (const int64_t prompt_end : {int64_t{190}, int64_t{191}}) {
      Driver driver(model(), options(reading));
      const Cold cold = cold_run(driver, prompt_end);
      int64_t worth = 0;
      // Even hits: whole groups of every ratio, as pages are. plain/ is slow: fewer of them.
      for (int64_t hit = slow ? 58 : 2; hit < prompt_end; hit += slow ? 66 : 10) {
        const int64_t begin = start(reading, hit, prompt_end);
        worth += begin > 0 ? 1 : 0;
        std::vector<std::vector<int64_t>> chunkings = {{hit - 1, std::min(hit + 1, prompt_end)}};
        if (!slow) chunkings.push_back({});
        if (!slow && hit + 7 < prompt_end) {
          chunkings.push_back({hit - 9, hit - 3, hit + 2, prompt_end - 5});
        }
        for (const std::vector<int64_t>& ends : chunkings) {
          Sequence again = cold.sequence;
          again.slot = 1;
          ASSERT_EQ(generate(driver, again, begin, hit, ends), cold.rows)
              << "reading " << static_cast<int>(reading) << " hit " << hit << " of " << prompt_end
              << " in chunks after " << (ends.empty() ? 0 : ends.front());
        }
        ASSERT_EQ(global_bytes(driver, cold.sequence, prompt_end + kDecoded), cold.globals)
            << "hit " << hit;
      }
      EXPECT_GT(worth, 0) << "no hit saved anything";
    }
  }
}

// One row fewer would not do: the start is where it must be, not merely early enough.
TEST_P(PrefixExact, StartingLaterLosesBits) {
  const int64_t prompt_end = 190;
  for (const DecoderReplay reading : kReadings) {
    if (GetParam() == "plain" && reading != DecoderReplay::kWindowAndGlobal) continue;
    Driver driver(model(), options(reading));
    const Cold cold = cold_run(driver, prompt_end);
    const int64_t hit = prompt_end - 2;
    const int64_t begin = start(reading, hit, prompt_end);
    ASSERT_GT(begin, 0);
    const auto from = [&](int64_t first) {
      Sequence again = cold.sequence;
      again.slot = 1;
      return generate(driver, again, first, hit, {});
    };
    EXPECT_EQ(from(begin), cold.rows);
    EXPECT_NE(from(begin + model().config().window), cold.rows)
        << "reading " << static_cast<int>(reading);
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, PrefixExact, ::testing::ValuesIn(ops_names()),
                         [](const auto& parameter) {
                           std::string text = parameter.param;
                           std::ranges::replace(text, '-', '_');
                           return text;
                         });

}  // namespace
}  // namespace galley::testing
