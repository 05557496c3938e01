// A row's logits are the same bits whatever shares the step: every split of a
// prompt, batch mates of other kinds, arrival order, slot, page size, page ids,
// thread count, drafts that were taken back.
//
// The yardstick is one sequence prefilled whole, alone, on one thread. Random
// histories print their seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "driver.h"

namespace galley::testing {
namespace {

class Invariance : public ::testing::TestWithParam<std::string> {
 protected:
  static const model::Model& text_model() {
    static const std::unique_ptr<model::Model> model = golden_model("g1-micro-text");
    return *model;
  }

  DriverOptions options() const { return {.ops = GetParam(), .positions_max = 256}; }

  static std::vector<int32_t> random_tokens(std::mt19937& random, size_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& id : tokens) id = static_cast<int32_t>(random() % 512);
    return tokens;
  }

  std::vector<Logits> whole(const std::vector<int32_t>& tokens) const {
    Driver driver(text_model(), options());
    Sequence sequence = driver.start(tokens);
    return driver.prefill(sequence, {static_cast<int64_t>(tokens.size())});
  }

  // rows[i] against expected[begin + i].
  static void expect_same(const std::vector<Logits>& rows, const std::vector<Logits>& expected,
                          int64_t begin, const std::string& what) {
    ASSERT_LE(static_cast<size_t>(begin) + rows.size(), expected.size()) << what;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Logits& want = expected[static_cast<size_t>(begin) + i];
      ASSERT_EQ(rows[i].size(), want.size());
      ASSERT_EQ(std::memcmp(rows[i].data(), want.data(), want.size() * sizeof(float)), 0)
          << what << ": position " << begin + static_cast<int64_t>(i);
    }
  }
};

// Also prefill against prefill and decode at both parities: the second part may be one row.
TEST_P(Invariance, EverySplitInTwo) {
  std::mt19937 random(11);
  const std::vector<int32_t> tokens = random_tokens(random, 38);
  const std::vector<Logits> expected = whole(tokens);
  for (int64_t split = 1; split < 38; ++split) {
    Driver driver(text_model(), options());
    Sequence sequence = driver.start(tokens);
    expect_same(driver.prefill(sequence, {split, 38}), expected, 0,
                "split at " + std::to_string(split));
  }
}

// Long enough for top-k, pool and YaRN to matter at both ratios.
TEST_P(Invariance, RowByRowAndByOddChunks) {
  std::mt19937 random(12);
  const std::vector<int32_t> tokens = random_tokens(random, 170);
  const std::vector<Logits> expected = whole(tokens);
  for (const int64_t size : {1, 3, 17, 50}) {
    Driver driver(text_model(), options());
    Sequence sequence = driver.start(tokens);
    std::vector<int64_t> ends;
    for (int64_t end = size; end < 170; end += size) ends.push_back(end);
    ends.push_back(170);
    expect_same(driver.prefill(sequence, ends), expected, 0, "chunks of " + std::to_string(size));
  }
}

// Random histories of several sequences: chunks, single rows and verify runs
// that are partly taken back, in one step or in many.
TEST_P(Invariance, RandomBatchesAndRollbacks) {
  std::mt19937 text(13);
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::vector<Logits>> expected;
  for (const size_t length : {70, 33, 95, 48, 17}) {
    texts.push_back(random_tokens(text, length));
    expected.push_back(whole(texts.back()));
  }
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    DriverOptions changed = options();
    changed.threads = static_cast<int>(1 + random() % 3);
    changed.page_tokens = std::vector<int32_t>{2, 6, 32, 128}[random() % 4];
    changed.verify_rows_max = 5;
    changed.page_seed = seed;
    Driver driver(text_model(), changed);
    std::vector<int32_t> slots = {0, 1, 2, 3, 4, 5, 6, 7};
    std::shuffle(slots.begin(), slots.end(), random);

    std::vector<Sequence> sequences;
    std::vector<int64_t> done(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      sequences.push_back(driver.start(texts[i], slots[i]));
    }
    const auto unfinished = [&] {
      for (size_t i = 0; i < texts.size(); ++i) {
        if (done[i] < static_cast<int64_t>(texts[i].size())) return true;
      }
      return false;
    };
    while (unfinished()) {
      std::vector<Part> parts;
      std::vector<size_t> owners;
      std::vector<std::vector<int32_t>> truth;
      for (size_t i = 0; i < texts.size(); ++i) {
        const int64_t left = static_cast<int64_t>(texts[i].size()) - done[i];
        if (left == 0 || random() % 3 == 0) continue;
        const auto kind = static_cast<model::RowKind>(random() % 3);
        const int64_t most = kind == model::RowKind::kPrefill  ? 40
                             : kind == model::RowKind::kDecode ? 1
                                                               : 5;
        const int64_t count = std::min(left, 1 + static_cast<int64_t>(random() % most));
        truth.push_back(sequences[i].tokens);
        if (kind == model::RowKind::kVerify) {  // drafts of which some tail is wrong
          const int64_t right = 1 + static_cast<int64_t>(random() % count);
          for (int64_t t = done[i] + right; t < done[i] + count; ++t) {
            sequences[i].tokens[static_cast<size_t>(t)] = static_cast<int32_t>(random() % 512);
          }
        }
        parts.push_back(
            {.sequence = &sequences[i], .begin = done[i], .end = done[i] + count, .kind = kind});
        owners.push_back(i);
      }
      if (parts.empty()) continue;
      const std::vector<std::vector<Logits>> rows = driver.step(parts);
      for (size_t p = 0; p < parts.size(); ++p) {
        const size_t i = owners[p];
        int64_t kept = 0;
        while (kept < parts[p].end - parts[p].begin &&
               sequences[i].tokens[static_cast<size_t>(parts[p].begin + kept)] ==
                   truth[p][static_cast<size_t>(parts[p].begin + kept)]) {
          ++kept;
        }
        sequences[i].tokens = truth[p];
        expect_same({rows[p].begin(), rows[p].begin() + kept}, expected[i], done[i],
                    "sequence " + std::to_string(i));
        done[i] += kept;
      }
      if (HasFatalFailure()) return;
    }
  }
}

// A slot and pages that another sequence used before.
TEST_P(Invariance, NothingRemainsOfAnEarlierSequence) {
  std::mt19937 random(14);
  const std::vector<int32_t> tokens = random_tokens(random, 60);
  const std::vector<Logits> expected = whole(tokens);
  Driver driver(text_model(), options());
  Sequence first = driver.start(random_tokens(random, 61), 2);
  driver.prefill(first, {61});
  Sequence second = first;
  second.tokens = tokens;
  expect_same(driver.prefill(second, {31, 60}), expected, 0, "second user");
}

TEST_P(Invariance, ImageSpansSurviveChunking) {
  std::mt19937 random(15);
  const std::vector<int32_t> tokens = random_tokens(random, 50);
  const auto* table = static_cast<const kernels::Bf16*>(text_model().weights().embed.data);
  const int64_t hidden = text_model().config().hidden;
  const auto with_images = [&](Driver& driver) {
    Sequence sequence = driver.start(tokens);
    sequence.embeddings.assign(50, nullptr);
    sequence.in_image.assign(50, 0);
    for (size_t t = 0; t < 50; ++t) {
      if ((t >= 5 && t < 9) || (t >= 20 && t < 41)) {
        sequence.in_image[t] = 1;
        sequence.embeddings[t] = table + static_cast<int64_t>((t * 7) % 512) * hidden;
      }
    }
    return sequence;
  };
  Driver driver(text_model(), options());
  Sequence sequence = with_images(driver);
  const std::vector<Logits> expected = driver.prefill(sequence, {50});
  // The span changes something at all.
  EXPECT_NE(expected[6], whole(tokens)[6]);
  EXPECT_EQ(expected[4], whole(tokens)[4]);
  for (int64_t split = 1; split < 50; split += 3) {
    Driver other(text_model(), options());
    Sequence again = with_images(other);
    expect_same(other.prefill(again, {split, 50}), expected, 0,
                "split at " + std::to_string(split));
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Invariance, ::testing::ValuesIn(ops_names()),
                         [](const auto& parameter) {
                           std::string text = parameter.param;
                           std::ranges::replace(text, '-', '_');
                           return text;
                         });

}  // namespace
}  // namespace galley::testing
