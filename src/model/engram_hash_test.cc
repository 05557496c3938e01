// The hash constants of the released model and of three other shapes, and the
// n-gram hash against a direct transcription of its formula, whole and in
// pieces. tests/golden compares whole rows with the reference's.
#include "model/engram_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace galley::model {
namespace {

std::vector<int32_t> identity(int32_t classes) {
  std::vector<int32_t> map(static_cast<size_t>(classes));
  std::iota(map.begin(), map.end(), 0);
  return map;
}

std::vector<int64_t> list(std::span<const int64_t> values) {
  return {values.begin(), values.end()};
}

TEST(EngramHash, ReleasedConstants) {
  const EngramHash hash = EngramHash::create({.layer_ids = {1, 14},
                                              .ngram_size_max = 4,
                                              .heads = 8,
                                              .prime_search_start = 16000000,
                                              .classes = 99092,
                                              .pad_class = 2},
                                             identity(99092))
                              .value();
  EXPECT_EQ(hash.table_rows(0), 384006168);
  EXPECT_EQ(hash.table_rows(1), 384016682);
  EXPECT_EQ(hash.primes(0)[0], 16000057);
  EXPECT_EQ(hash.primes(0)[23], 16000463);
  EXPECT_EQ(hash.primes(1)[0], 16000477);
  EXPECT_EQ(hash.primes(1)[23], 16000889);
  EXPECT_EQ(hash.offsets(1)[0], 0);
  EXPECT_EQ(hash.offsets(1)[2], 16000477 + 16000487);
  EXPECT_EQ(list(hash.multipliers(0)),
            (std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(list(hash.multipliers(1)),
            (std::vector<int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
}

TEST(EngramHash, OtherShapes) {
  const EngramHash three = EngramHash::create({.layer_ids = {0, 3, 9},
                                               .ngram_size_max = 3,
                                               .heads = 3,
                                               .prime_search_start = 150,
                                               .classes = 583,
                                               .pad_class = 2},
                                              identity(583))
                               .value();
  EXPECT_EQ(list(three.multipliers(0)),
            (std::vector<int64_t>{10077074811987199, 4268170208652875, 648223078772723}));
  EXPECT_EQ(list(three.multipliers(2)),
            (std::vector<int64_t>{13453503903241549, 9990864791633239, 13592726256031119}));
  const EngramHash one = EngramHash::create({.layer_ids = {2},
                                             .ngram_size_max = 2,
                                             .heads = 1,
                                             .prime_search_start = 50,
                                             .classes = 1,
                                             .pad_class = 0},
                                            identity(1))
                             .value();
  EXPECT_EQ(list(one.multipliers(0)),
            (std::vector<int64_t>{7581278190532787371, 3676095719277115165}));
}

TEST(EngramHash, RefusesWrongMaps) {
  const EngramHashShape shape{.layer_ids = {1}, .prime_search_start = 50, .classes = 4};
  EXPECT_FALSE(EngramHash::create(shape, {0, 1, 4}));
  EXPECT_FALSE(EngramHash::create(shape, {0, -1}));
  EXPECT_TRUE(EngramHash::create(shape, {0, 3}));
}

class EngramRows : public ::testing::Test {
 protected:
  EngramRows() {
    std::mt19937 random(7);
    for (int i = 0; i < 60; ++i) {
      tokens_.push_back(static_cast<int32_t>(random() % 40));
      dead_.push_back(random() % 6 == 0 ? 1 : 0);
    }
  }

  // The formula of spec/model.md 6.4, position by position.
  int64_t expected(int64_t t, int32_t column, bool use_dead) const {
    int64_t mixed = 0;
    bool blocked = false;
    for (int32_t i = 0; i < 2 + column / 2; ++i) {
      blocked = blocked || t - i < 0 || (use_dead && dead_[static_cast<size_t>(t - i)] != 0);
      const int64_t tau = blocked ? 5 : tokens_[static_cast<size_t>(t - i)] % 10;
      mixed ^= tau * hash_.multipliers(0)[static_cast<size_t>(i)];
    }
    const auto c = static_cast<size_t>(column);
    return mixed % hash_.primes(0)[c] + hash_.offsets(0)[c];
  }

  static EngramHash make() {
    std::vector<int32_t> map(40);
    for (int32_t id = 0; id < 40; ++id) map[static_cast<size_t>(id)] = id % 10;
    return EngramHash::create({.layer_ids = {4},
                               .ngram_size_max = 4,
                               .heads = 2,
                               .prime_search_start = 200,
                               .classes = 10,
                               .pad_class = 5},
                              map)
        .value();
  }

  const EngramHash hash_ = make();
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> dead_;
};

TEST_F(EngramRows, EverySplitGivesTheSameRows) {
  const std::span<const int32_t> tokens = tokens_;
  const std::span<const uint8_t> dead = dead_;
  for (const bool use_dead : {false, true}) {
    for (size_t split = 0; split <= tokens.size(); ++split) {
      // Look-back of three ids or all of them; both see the same n-grams.
      for (const size_t kept : {std::min<size_t>(split, 3), split}) {
        EngramTokens view{.tokens = tokens.subspan(split),
                          .look_back = tokens.subspan(split - kept, kept)};
        if (use_dead) {
          view.dead = dead.subspan(split);
          view.look_back_dead = dead.subspan(split - kept, kept);
        }
        const auto count = static_cast<int64_t>(view.tokens.size());
        std::vector<int64_t> out(view.tokens.size() * 6);
        hash_.rows(0, view, 0, count, {out.data(), count, 6});
        for (int64_t row = 0; row < count; ++row) {
          for (int32_t column = 0; column < 6; ++column) {
            ASSERT_EQ(out[static_cast<size_t>(row * 6 + column)],
                      expected(static_cast<int64_t>(split) + row, column, use_dead))
                << "split " << split << " row " << row << " column " << column;
          }
        }
      }
    }
  }
}

TEST_F(EngramRows, LookBackPositionsCanBeAskedFor) {
  const std::span<const int32_t> tokens = tokens_;
  const EngramTokens view{.tokens = tokens.subspan(20), .look_back = tokens.subspan(0, 20)};
  std::vector<int64_t> out(8 * 6);
  hash_.rows(0, view, -5, 3, {out.data(), 8, 6});
  for (int64_t row = 0; row < 8; ++row) {
    for (int32_t column = 0; column < 6; ++column) {
      EXPECT_EQ(out[static_cast<size_t>(row * 6 + column)], expected(15 + row, column, false));
    }
  }
}

}  // namespace
}  // namespace galley::model
