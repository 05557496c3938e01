// A later turn that starts from a reuse snapshot: nothing before the page boundary
// is computed again, and logits of the prompt's end, of the tokens after it and
// the global KV behind the boundary are those of a cold run to the bit, for every
// boundary in prompt and output, parity of the new prompt, reading of decoder
// replay, chunking, and however late the snapshot was taken.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "driver.h"

namespace galley::testing {
namespace {

using model::DecoderReplay;
using model::SlotPart;

constexpr int64_t kPage = 8;
constexpr int64_t kDecoded = 3;
// (a) holds no inputs (step.h).
constexpr DecoderReplay kReadings[] = {DecoderReplay::kOff, DecoderReplay::kWindowAndGlobal,
                                       DecoderReplay::kGlobalOnly};

struct Image {
  explicit Image(int64_t bytes) : memory(static_cast<size_t>(bytes)) {}
  model::HostBlocks view() { return {memory.data(), std::ssize(memory), blocks}; }
  std::vector<std::byte> memory;
  std::vector<int32_t> blocks = {0};
};

class SnapshotExact : public ::testing::TestWithParam<std::string> {
 protected:
  static const model::Model& model() {
    static const std::unique_ptr<model::Model> loaded = golden_model("g2-micro-full");
    return *loaded;
  }
  static int64_t window() { return model().config().window; }

  static DriverOptions options(DecoderReplay replay) {
    const bool off = replay == DecoderReplay::kOff;
    return {.ops = GetParam(),
            .replay = replay,
            .page_tokens = kPage,
            .hold_inputs = !off,
            .reuse_layers = off ? model().config().layers : model().config().decoder_source() + 1,
            .sequences_max = 3,
            .positions_max = 192};
  }

  static std::vector<int32_t> tokens(int64_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 512);
    return ids;
  }

  // Rows from `begin` in chunks that end at `ends`, then to the prompt's end and one by one;
  // the logits of the last row of each step from the prompt's end on.
  static std::vector<Logits> generate(Driver& driver, Sequence& sequence, int64_t begin,
                                      std::vector<int64_t> ends, int64_t held_rows,
                                      DecoderReplay replay) {
    const int64_t hit = begin;
    ends.push_back(sequence.prompt_end);
    for (int64_t i = 1; i <= kDecoded; ++i) ends.push_back(sequence.prompt_end + i);
    std::vector<Logits> rows;
    for (const int64_t end : ends) {
      if (end <= begin) continue;
      const std::vector<Logits> got =
          driver.run({.sequence = &sequence,
                      .begin = begin,
                      .end = end,
                      .all_logits = false,
                      .global_begin = hit,
                      .keep_inputs = replay != DecoderReplay::kOff,
                      .held_rows = begin == hit ? static_cast<int32_t>(held_rows) : 0});
      if (end >= sequence.prompt_end) rows.push_back(got.back());
      begin = end;
    }
    return rows;
  }

  // Over an image of nothing the same plan gives other logits: it is the image that counts.
  static void expect_other_bits_without_it(Driver& driver, const Sequence& first,
                                           const Sequence& place, DecoderReplay reading) {
    const int64_t boundary = first.prompt_end / kPage * kPage;
    Sequence warm = first;
    warm.prompt_end = boundary + 2;
    warm.slot = 2;
    warm.pages = place.pages;
    std::copy_n(first.pages.begin(), boundary / kPage, warm.pages.begin());
    const int64_t held = reading == DecoderReplay::kOff ? 0 : window() - 2;
    Image image(driver.cache().slot_image_bytes(SlotPart::kReuse));
    driver.cache().save_slot(0, SlotPart::kReuse, boundary, image.view());
    std::vector<std::vector<Logits>> runs;
    for (int i = 0; i < 2; ++i) {
      driver.cache().load_slot(2, SlotPart::kReuse, boundary, image.view());
      runs.push_back(generate(driver, warm, boundary, {}, held, reading));
      std::ranges::fill(image.memory, std::byte{0});
    }
    EXPECT_NE(runs[0], runs[1]);
  }
};

TEST_P(SnapshotExact, ALaterTurnHasTheBitsOfAColdRun) {
  const bool slow = GetParam() == "plain";
  const int64_t first_prompt = 3 * window() - 5;
  const int64_t first_end = first_prompt + 2 * kPage + 3;
  for (const DecoderReplay reading : kReadings) {
    Driver driver(model(), options(reading));
    const bool off = reading == DecoderReplay::kOff;
    Sequence first = driver.start(tokens(first_end, 1), 0);
    const Sequence cold_place = driver.start({}, 1);
    const Sequence warm_place = driver.start({}, 2);
    first.prompt_end = first_prompt;
    // The first turn: its prompt in two chunks, its output row by row.
    std::vector<std::pair<int64_t, Image>> images;
    const auto save = [&](int64_t computed) {
      const int64_t boundary = computed / kPage * kPage;
      if (boundary == 0) return;
      images.emplace_back(boundary, Image(driver.cache().slot_image_bytes(SlotPart::kReuse)));
      driver.cache().save_slot(0, SlotPart::kReuse, boundary, images.back().second.view());
    };
    int64_t begin = 0;
    for (int64_t end = slow ? first_prompt : 1; end <= first_end; ++end) {
      // Short chunks make every boundary of the prompt one that can be saved, early or late.
      if (end < first_prompt && (end % kPage) % 3 != 0) continue;
      driver.run({.sequence = &first,
                  .begin = begin,
                  .end = end,
                  .all_logits = false,
                  .keep_inputs = !off});
      begin = end;
      save(end);
    }
    ASSERT_GT(images.size(), slow ? 3U : 10U);

    int64_t from_held = 0;
    for (auto& [boundary, image] : images) {
      for (const int64_t more : {int64_t{1}, int64_t{2}, window() - 1, window(), window() + 6}) {
        if (slow && more != 1 && more != window() + 6) continue;
        Sequence cold = first;
        cold.prompt_end = boundary + more;
        cold.tokens.resize(static_cast<size_t>(boundary));
        const std::vector<int32_t> own = tokens(more + kDecoded, 7);
        cold.tokens.insert(cold.tokens.end(), own.begin(), own.end());
        cold.slot = 1;
        cold.pages = cold_place.pages;
        const std::vector<Logits> expected = generate(driver, cold, 0, {}, 0, reading);

        Sequence warm = cold;
        warm.slot = 2;
        warm.pages = warm_place.pages;
        std::copy_n(first.pages.begin(), boundary / kPage, warm.pages.begin());
        const int64_t held =
            off ? 0
                : std::max<int64_t>(0, boundary - std::max<int64_t>(0, warm.prompt_end - window()));
        from_held += held > 0 ? 1 : 0;
        for (const std::vector<int64_t>& ends :
             {std::vector<int64_t>{}, std::vector<int64_t>{boundary + 1, boundary + 5}}) {
          if (!ends.empty() && (slow || more < 7)) continue;
          driver.cache().load_slot(2, SlotPart::kReuse, boundary, image.view());
          ASSERT_EQ(generate(driver, warm, boundary, ends, held, reading), expected)
              << "reading " << static_cast<int>(reading) << " boundary " << boundary << " and "
              << more << " more";
          ASSERT_EQ(global_bytes(driver, warm, warm.prompt_end + kDecoded),
                    global_bytes(driver, cold, warm.prompt_end + kDecoded));
        }
      }
    }
    EXPECT_EQ(from_held > 0, !off);
    expect_other_bits_without_it(driver, first, warm_place, reading);
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, SnapshotExact, ::testing::ValuesIn(ops_names()),
                         [](const auto& parameter) {
                           std::string text = parameter.param;
                           std::ranges::replace(text, '-', '_');
                           return text;
                         });

}  // namespace
}  // namespace galley::testing
