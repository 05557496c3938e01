// Shows that ties, and nothing but ties, are resolved in the reference's order.
#include "verify/reference_ties.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace galley::verify {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// An indexer that has its answers ready.
class Prepared : public kernels::ForwardingOps {
 public:
  Prepared(std::vector<float> scores, std::vector<int32_t> selected)
      : ForwardingOps(*this), scores_(std::move(scores)), selected_(std::move(selected)) {}
  kernels::Memory& memory() override { return kernels::host_memory(); }
  void index_select(kernels::Rows<const kernels::Bf16>, kernels::Rows<const kernels::Bf16>,
                    const kernels::IndexShape&, std::span<const kernels::IndexRow> rows) override {
    for (const kernels::IndexRow& row : rows) {
      std::copy(scores_.begin(), scores_.end(), row.scores);
      std::copy(selected_.begin(), selected_.end(), row.selected);
      *row.selected_count = static_cast<int32_t>(selected_.size());
    }
  }

 private:
  std::vector<float> scores_;
  std::vector<int32_t> selected_;
};

std::vector<int32_t> resolved(std::vector<float> scores, std::vector<int32_t> selected,
                              int32_t top_k, int64_t tokens) {
  std::vector<int32_t> out(16, -1);
  int32_t count = 0;
  std::vector<float> buffer(scores.size());
  kernels::IndexRow row;
  row.visible = std::ssize(scores);
  row.keys.records_per_page = 16;
  row.selected = out.data();
  row.selected_count = &count;
  Prepared prepared(std::move(scores), std::move(selected));
  ReferenceTies ties(prepared, 16);
  ties.set_tokens(tokens);
  if (tokens == 0) row.scores = buffer.data();
  kernels::IndexShape shape;
  shape.top_k = top_k;
  ties.index_select({}, {}, shape, {&row, 1});
  return {out.begin(), out.begin() + count};
}

TEST(ReferenceTies, DistinctScoresHaveOneAnswer) {
  EXPECT_EQ(choose_like_reference({3, 1, 4, 1.5F, 5}, 3), (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(choose_like_reference({3, kNone, 4}, 3), (std::vector<int32_t>{0, 2}));
  EXPECT_TRUE(choose_like_reference({}, 3).empty());
}

TEST(ReferenceTies, EqualScoresAreExchanged) {
  const std::vector<float> scores = {2, 2, 2, 2, 9, 2};
  const auto reference = choose_like_reference(scores, 3);
  EXPECT_EQ(resolved(scores, {0, 1, 4}, 3, 6), reference);
  EXPECT_EQ(resolved(scores, {0, 1, 4}, 3, 0), (std::vector<int32_t>{0, 1, 4}));  // off
}

TEST(ReferenceTies, AWrongChoiceStaysWrong) {
  const std::vector<float> scores = {2, 2, 7, 2, 9, 2};
  EXPECT_EQ(resolved(scores, {0, 1, 4}, 3, 6), (std::vector<int32_t>{0, 1, 4}));  // 2 left out
  EXPECT_EQ(resolved(scores, {2, 4}, 3, 6), (std::vector<int32_t>{2, 4}));        // one too few
}

}  // namespace
}  // namespace galley::verify
