// Decoder replay (spec/model.md 8.3) and bounded prefix replay (8.2): what must
// equal the full run does so to the bit, what is approximate differs, and
// neither chunking nor the way the last window was kept changes a result.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "driver.h"

namespace galley::testing {
namespace {

using model::DecoderReplay;

constexpr DecoderReplay kReadings[] = {DecoderReplay::kLayerWhole, DecoderReplay::kWindowAndGlobal,
                                       DecoderReplay::kGlobalOnly};

// Streams leaving each layer, by position.
class LayerOutputs : public model::StepObserver {
 public:
  void layer_out(int32_t layer, const model::ObservedRows& rows, Bf16Rows streams,
                 F32Rows) override {
    for (int64_t r = 0; r < streams.rows; ++r) {
      std::vector<uint16_t>& row = at[{layer, rows.positions[static_cast<size_t>(r)]}];
      row.clear();
      for (int64_t i = 0; i < streams.cols; ++i) row.push_back(streams.row(r)[i].bits);
    }
  }
  std::map<std::pair<int32_t, int64_t>, std::vector<uint16_t>> at;
};

class Replay : public ::testing::TestWithParam<std::string> {
 protected:
  static const model::Model& model() {
    static const std::unique_ptr<model::Model> loaded = golden_model("g2-micro-full");
    return *loaded;
  }
  static int64_t window() { return model().config().window; }
  static int32_t cut() { return model().config().decoder_source(); }

  DriverOptions options(DecoderReplay replay, bool hold = false) const {
    return {.ops = GetParam(), .replay = replay, .hold_inputs = hold, .positions_max = 128};
  }

  static std::vector<int32_t> tokens(size_t count) {
    std::mt19937 random(21);
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 512);
    return ids;
  }

  // The prompt, then the rest of the ids one by one; logits of prompt end and rest.
  static std::vector<Logits> generate(Driver& driver, Sequence& sequence,
                                      const std::vector<int64_t>& ends, bool hold = false) {
    std::vector<Logits> rows = driver.prefill(sequence, ends, false, hold);
    rows = {rows.back()};
    for (int64_t t = ends.back(); t < static_cast<int64_t>(sequence.tokens.size()); ++t) {
      rows.push_back(driver
                         .run({.sequence = &sequence,
                               .begin = t,
                               .end = t + 1,
                               .kind = model::RowKind::kDecode})
                         .front());
    }
    return rows;
  }

  std::vector<Logits> generate(const DriverOptions& with, size_t total,
                               const std::vector<int64_t>& ends, bool hold = false) const {
    Driver driver(model(), with);
    Sequence sequence = driver.start(tokens(total));
    sequence.prompt_end = ends.back();
    return generate(driver, sequence, ends, hold);
  }
};

TEST_P(Replay, PromptsWithinTheWindowAreExact) {
  for (const int64_t length : {int64_t{1}, window() - 1, window()}) {
    const auto total = static_cast<size_t>(length + 3);
    const std::vector<Logits> off = generate(options(DecoderReplay::kOff), total, {length});
    for (const DecoderReplay reading : kReadings) {
      EXPECT_EQ(generate(options(reading), total, {length}), off) << length;
    }
  }
}

TEST_P(Replay, ChunkingNeverChangesAResult) {
  const int64_t length = 2 * window() + 9;  // no multiple of the window
  const auto total = static_cast<size_t>(length + 3);
  const std::vector<Logits> off = generate(options(DecoderReplay::kOff), total, {length});
  for (const DecoderReplay reading : kReadings) {
    const std::vector<Logits> whole = generate(options(reading), total, {length});
    EXPECT_NE(whole, off) << "replay is approximate here";
    // plain/ is slow: every third split still meets both parities and the window's edge.
    const int64_t stride = GetParam() == "plain" ? 3 : 1;
    for (int64_t split = 1; split < length; split += stride) {
      ASSERT_EQ(generate(options(reading), total, {split, length}), whole) << "split " << split;
    }
    std::vector<int64_t> ends;
    for (int64_t end = 1; end <= length; ++end) ends.push_back(end);
    ASSERT_EQ(generate(options(reading), total, ends), whole) << "row by row";
  }
}

// Running the last window at once, from inputs held in the slot, gives what
// running each part of it in its own chunk gives.
TEST_P(Replay, HeldInputsGiveTheSameBits) {
  const int64_t length = 2 * window() + 9;
  const auto total = static_cast<size_t>(length + 3);
  for (const DecoderReplay reading :
       {DecoderReplay::kWindowAndGlobal, DecoderReplay::kGlobalOnly}) {
    const std::vector<Logits> whole = generate(options(reading), total, {length});
    for (const int64_t split : {int64_t{3}, length - window() - 1, length - window(),
                                length - window() + 1, length - 5, length - 1}) {
      EXPECT_EQ(generate(options(reading, true), total, {split, length}, true), whole) << split;
      EXPECT_EQ(generate(options(reading, true), total, {split / 2, split, length}, true), whole)
          << split;
    }
  }
}

TEST_P(Replay, GlobalKvIsExactAndTailRowsAreCounted) {
  const int64_t length = 2 * window() + 9;
  Driver off(model(), options(DecoderReplay::kOff));
  Sequence full = off.start(tokens(static_cast<size_t>(length)));
  off.prefill(full, {length}, false);
  EXPECT_EQ(off.last().tail_rows, length);
  for (const DecoderReplay reading : kReadings) {
    Driver driver(model(), options(reading));
    Sequence sequence = driver.start(full.tokens);
    driver.prefill(sequence, {20, length}, false);
    EXPECT_EQ(driver.last().full_rows, length - 20);
    EXPECT_EQ(driver.last().tail_rows, std::min(window(), length - 20));
    EXPECT_EQ(global_bytes(driver, sequence, length), global_bytes(off, full, length));
    // Rings up to the cut hold exact keys, slot by slot for the last window; those of the
    // layer after it too where the kept rows had whole windows at the cut.
    const int32_t record_bytes = driver.cache().layout().window_record_bytes;
    const int32_t exact_layers = cut() + (reading == DecoderReplay::kGlobalOnly ? 1 : 2);
    for (int32_t layer = 0; layer < exact_layers; ++layer) {
      for (int64_t t = length - window(); t < length; ++t) {
        EXPECT_EQ(bytes_at(driver, driver.cache().ring_record(0, layer, t), record_bytes),
                  bytes_at(off, off.cache().ring_record(0, layer, t), record_bytes))
            << "layer " << layer << " position " << t;
      }
    }
  }
}

// (a) and (b) give layer E's kept rows exact windows, (c) only the last row.
TEST_P(Replay, ReadingsDifferAtTheCutAsDescribed) {
  const int64_t length = 2 * window() + 9;
  const auto outputs = [&](DecoderReplay reading) {
    Driver driver(model(), options(reading));
    Sequence sequence = driver.start(tokens(static_cast<size_t>(length)));
    LayerOutputs observer;
    driver.set_observer(&observer);
    driver.prefill(sequence, {length}, false);
    return observer.at;
  };
  const auto off = outputs(DecoderReplay::kOff);
  const int64_t first = length - window();
  for (const DecoderReplay reading : kReadings) {
    const auto on = outputs(reading);
    const bool exact_at_cut = reading != DecoderReplay::kGlobalOnly;
    EXPECT_EQ(on.contains({cut(), first - 1}), reading == DecoderReplay::kLayerWhole);
    EXPECT_FALSE(on.contains({cut() + 1, first - 1}));
    EXPECT_EQ(on.at({cut(), first}) == off.at({cut(), first}), exact_at_cut);
    EXPECT_EQ(on.at({cut(), length - 1}), off.at({cut(), length - 1}));
    EXPECT_NE(on.at({cut() + 1, first}), off.at({cut() + 1, first}));
    // Its window at the next layer is whole and, for (a) and (b), exact.
    EXPECT_EQ(on.at({cut() + 1, length - 1}) == off.at({cut() + 1, length - 1}), exact_at_cut);
  }
}

TEST_P(Replay, CapturedTargetsDoNotDependOnChunks) {
  const int64_t length = 2 * window() + 9;
  for (const DecoderReplay reading :
       {DecoderReplay::kOff, DecoderReplay::kLayerWhole, DecoderReplay::kWindowAndGlobal}) {
    const auto captured = [&](const std::vector<int64_t>& ends) {
      DriverOptions with = options(reading);
      with.capture_targets = true;
      Driver driver(model(), with);
      Sequence sequence = driver.start(tokens(static_cast<size_t>(length)));
      std::vector<uint8_t> all;
      int64_t begin = 0;
      for (const int64_t end : ends) {
        driver.run({.sequence = &sequence, .begin = begin, .end = end, .all_logits = false});
        const auto hidden = driver.last().main_hidden;
        EXPECT_EQ(hidden.rows, driver.last().tail_rows);
        for (int64_t r = 0; r < hidden.rows; ++r) {
          const std::vector<uint8_t> row =
              bytes_at(driver, hidden.row(r), hidden.cols * int64_t{sizeof(uint16_t)});
          all.insert(all.end(), row.begin(), row.end());
        }
        begin = end;
      }
      return all;
    };
    const std::vector<uint8_t> whole = captured({length});
    EXPECT_FALSE(whole.empty());
    EXPECT_EQ(captured({7, length - 3, length}), whole);
  }
}

// Whatever an earlier sequence left in the slot lies before the floors and is not read.
TEST_P(Replay, FloorsHideWhatTheSlotHeldBefore) {
  const int64_t length = 2 * window() + 9;
  const auto total = static_cast<size_t>(length + 3);
  std::vector<int32_t> others = tokens(60);
  std::ranges::reverse(others);
  for (const DecoderReplay reading : kReadings) {
    Driver driver(model(), options(reading));
    Sequence earlier = driver.start(others);
    driver.prefill(earlier, {60}, false);
    Sequence sequence = earlier;
    sequence.tokens = tokens(total);
    sequence.prompt_end = length;
    EXPECT_EQ(generate(driver, sequence, {length}), generate(options(reading), total, {length}));
  }
  const auto after_hit = [&](bool used) {
    Driver driver(model(), options(DecoderReplay::kOff));
    Sequence cold = driver.start(tokens(70), 0);
    driver.prefill(cold, {70}, false);
    Sequence hit = cold;
    hit.slot = 1;
    if (used) {
      Sequence earlier = driver.start(others, 1);
      driver.prefill(earlier, {60}, false);
    }
    const int64_t begin = 48 - window();
    return driver.run(
        {.sequence = &hit, .begin = begin, .end = 70, .window_floor = begin, .global_begin = 48});
  };
  EXPECT_EQ(after_hit(true), after_hit(false));
}

// A prefix hit of H tokens: another slot, the pages of a cold run, rows from H - W.
TEST_P(Replay, PrefixHitLeavesTheCachedEntriesAlone) {
  const int64_t length = 70;
  const std::vector<int32_t> ids = tokens(static_cast<size_t>(length + 2));
  Driver driver(model(), options(DecoderReplay::kOff));
  Sequence cold = driver.start(ids, 0);
  cold.prompt_end = length;
  const std::vector<Logits> exact = generate(driver, cold, {length});
  const std::vector<uint8_t> cached = global_bytes(driver, cold, length);
  for (const int64_t hit : {window(), int64_t{32}, int64_t{48}}) {
    std::vector<Logits> whole;
    for (const std::vector<int64_t>& ends :
         {std::vector<int64_t>{length}, {hit, length}, {hit - 5, hit + 1, length}}) {
      Sequence again = cold;
      again.slot = 1;
      const int64_t start = hit - window();
      const std::vector<uint8_t> before = global_bytes(driver, cold, hit);
      std::vector<Logits> rows;
      int64_t begin = start;
      for (const int64_t end : ends) {
        rows = driver.run({.sequence = &again,
                           .begin = begin,
                           .end = end,
                           .all_logits = false,
                           .kind = end <= hit ? model::RowKind::kReplay : model::RowKind::kPrefill,
                           .window_floor = start,
                           .global_begin = hit});
        begin = end;
      }
      EXPECT_EQ(global_bytes(driver, cold, hit), before) << "hit " << hit;
      for (int64_t t = length; t < length + 2; ++t) {
        rows.push_back(driver.run({.sequence = &again, .begin = t, .end = t + 1}).front());
      }
      if (whole.empty()) whole = rows;
      EXPECT_EQ(rows, whole) << "hit " << hit;
    }
    // Replay from position 0 recomputes the cold run; later starts are approximate.
    EXPECT_EQ(whole == exact, hit == window()) << "hit " << hit;
  }
  EXPECT_FALSE(cached.empty());
}

INSTANTIATE_TEST_SUITE_P(Ops, Replay, ::testing::ValuesIn(ops_names()), [](const auto& parameter) {
  std::string text = parameter.param;
  std::ranges::replace(text, '-', '_');
  return text;
});

}  // namespace
}  // namespace galley::testing
