#include "verify/reference_ties.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "model/seen_rows.h"

namespace galley::verify {

namespace {

using kernels::IndexRow;
using kernels::IndexShape;

constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Replaces `choice` where the reference's has the same scores.
void exchange_ties(const std::vector<float>& scores, int64_t count, int32_t* choice,
                   const int32_t* choice_count) {
  const std::vector<int32_t> reference = choose_like_reference(scores, count);
  if (std::ssize(reference) != *choice_count) return;
  std::vector<float> ours;
  std::vector<float> theirs;
  for (int32_t i = 0; i < *choice_count; ++i) {
    if (choice[i] < 0 || choice[i] >= std::ssize(scores)) return;
    ours.push_back(scores[static_cast<size_t>(choice[i])]);
    theirs.push_back(scores[static_cast<size_t>(reference[static_cast<size_t>(i)])]);
  }
  std::sort(ours.begin(), ours.end());
  std::sort(theirs.begin(), theirs.end());
  if (ours == theirs) std::copy(reference.begin(), reference.end(), choice);
}

void exchange_row(const IndexRow& row, const IndexShape& shape, int64_t entries) {
  const auto visible = static_cast<size_t>(row.visible);
  if (entries < row.visible || std::any_of(row.scores, row.scores + visible,
                                           [](float score) { return std::isnan(score); })) {
    return;
  }
  const auto block_size = static_cast<size_t>(std::max(shape.pool_block_size, 1));
  std::vector<float> scores(static_cast<size_t>(entries), kNoScore);
  if (row.pool == nullptr) {
    std::copy(row.scores, row.scores + visible, scores.begin());
  } else {
    for (int32_t p = 0; p < *row.pool_count; ++p) {
      const size_t begin = static_cast<size_t>(row.pool[p]) * block_size;
      for (size_t j = begin; j < std::min(begin + block_size, visible); ++j) {
        scores[j] = row.scores[j];
      }
    }
  }
  exchange_ties(scores, shape.top_k, row.selected, row.selected_count);
  if (row.built_pool == nullptr || visible == 0) return;
  std::vector<float> best((scores.size() + block_size - 1) / block_size, kNoScore);
  for (size_t j = 0; j < visible; ++j) {
    best[j / block_size] = std::max(best[j / block_size], row.scores[j]);
  }
  best[(visible - 1) / block_size] = std::numeric_limits<float>::infinity();
  exchange_ties(best, shape.pool_blocks, row.built_pool, row.built_pool_count);
}

}  // namespace

std::vector<int32_t> choose_like_reference(const std::vector<float>& scores, int64_t count) {
  using Scored = std::pair<float, int32_t>;
  std::vector<Scored> list;
  for (size_t j = 0; j < scores.size(); ++j) {
    list.emplace_back(scores[j], static_cast<int32_t>(j));
  }
  const auto size = std::ssize(list);
  count = std::min<int64_t>(count, size);
  if (count == 0) return {};
  const auto larger = [](const Scored& a, const Scored& b) { return a.first > b.first; };
  // A heap pays for few of many, introselect otherwise; both leave ties where they fall.
  if (count * 64 <= size) {
    std::partial_sort(list.begin(), list.begin() + count, list.end(), larger);
  } else {
    std::nth_element(list.begin(), list.begin() + count - 1, list.end(), larger);
  }
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < count; ++i) {
    if (list[static_cast<size_t>(i)].first > kNoScore) {
      chosen.push_back(list[static_cast<size_t>(i)].second);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

void ReferenceTies::index_select(kernels::Rows<const kernels::Bf16> queries,
                                 kernels::Rows<const kernels::Bf16> head_weights,
                                 const IndexShape& shape, std::span<const IndexRow> rows) {
  if (tokens_ == 0) {
    inner().index_select(queries, head_weights, shape, rows);
    return;
  }
  std::vector<IndexRow> scored(rows.begin(), rows.end());
  int64_t score_count = 0;
  for (const IndexRow& row : rows) score_count += row.visible;
  auto scores = kernels::MemoryBlock::create(
      memory(), std::max<int64_t>(1, score_count) * static_cast<int64_t>(sizeof(float)),
      "index scores");
  CHECK(scores.has_value());  // verification alone: small models
  auto* next = reinterpret_cast<float*>(scores->data());
  for (IndexRow& row : scored) {
    if (row.scores == nullptr) row.scores = next;
    next += row.visible;
  }
  inner().index_select(queries, head_weights, shape, scored);
  model::SeenRows seen(memory());
  const std::span<const IndexRow> visible = seen.index_rows(scored, shape);
  for (size_t r = 0; r < visible.size(); ++r) {
    const IndexRow& row = visible[r];
    if (row.visible == 0) continue;
    const int64_t ratio = page_tokens_ / std::max(row.keys.records_per_page, 1);
    exchange_row(row, shape, tokens_ / std::max<int64_t>(ratio, 1));
    seen.put_back(row, scored[r], shape);
  }
}

}  // namespace galley::verify
