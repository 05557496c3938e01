#include "kernels/plain/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/number_formats.h"
#include "kernels/plain/dot.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels::plain {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The `count` ids with the largest scores, ascending. A NaN counts as the smallest.
std::vector<int32_t> keep_best(std::vector<int32_t> ids, int64_t count,
                               const std::vector<float>& score_of_id) {
  const auto rank = [&](int32_t id) {
    const float score = score_of_id[id];
    return std::isnan(score) ? -kInfinity : score;
  };
  if (static_cast<int64_t>(ids.size()) > count) {
    std::nth_element(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
      return rank(a) != rank(b) ? rank(a) > rank(b) : a < b;
    });
    ids.resize(static_cast<size_t>(count));
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

std::vector<float> index_scores(const Bf16* query, const Bf16* head_weights,
                                const IndexShape& shape, const IndexRow& row) {
  const int64_t width = shape.head_dim;
  const auto factor = static_cast<float>(std::pow(static_cast<double>(width), -0.5) *
                                         std::pow(static_cast<double>(shape.heads), -0.5));
  std::vector<float> q(static_cast<size_t>(shape.heads * width));
  for (int64_t i = 0; i < shape.heads * width; ++i) q[i] = to_f32(query[i]);
  std::vector<float> w(static_cast<size_t>(shape.heads));
  for (int32_t head = 0; head < shape.heads; ++head) {
    w[head] = round_bf16(to_f32(head_weights[head]) * factor);
  }
  std::vector<float> key(static_cast<size_t>(width));
  std::vector<float> scores(static_cast<size_t>(row.visible));
  for (int64_t j = 0; j < row.visible; ++j) {
    read_index_record(row.keys.record(j), width, key.data());
    float sum = 0.0F;
    for (int32_t head = 0; head < shape.heads; ++head) {
      const float product = round_bf16(dot(q.data() + head * width, key.data(), width));
      sum += round_bf16(std::max(product, 0.0F) * w[head]);
    }
    scores[j] = round_bf16(sum);
  }
  return scores;
}

std::vector<int32_t> best_blocks(const std::vector<float>& scores, int32_t block_size,
                                 int32_t block_count) {
  const auto visible = static_cast<int64_t>(scores.size());
  const int64_t blocks = (visible + block_size - 1) / block_size;
  std::vector<float> block_score(static_cast<size_t>(blocks), -kInfinity);
  for (int64_t j = 0; j < visible; ++j) {
    block_score[j / block_size] = std::max(block_score[j / block_size], scores[j]);
  }
  if (blocks > 0) block_score[blocks - 1] = kInfinity;
  std::vector<int32_t> ids(static_cast<size_t>(blocks));
  for (int64_t b = 0; b < blocks; ++b) ids[b] = static_cast<int32_t>(b);
  return keep_best(std::move(ids), block_count, block_score);
}

std::vector<int32_t> best_entries(const std::vector<float>& scores, const IndexShape& shape,
                                  const IndexRow& row) {
  const auto visible = static_cast<int32_t>(scores.size());
  std::vector<int32_t> eligible;
  if (row.pool == nullptr) {
    for (int32_t j = 0; j < visible; ++j) eligible.push_back(j);
  } else {
    for (int32_t p = 0; p < *row.pool_count; ++p) {
      const int32_t begin = row.pool[p] * shape.pool_block_size;
      const int32_t end = std::min(visible, begin + shape.pool_block_size);
      for (int32_t j = begin; j < end; ++j) eligible.push_back(j);
    }
  }
  return keep_best(std::move(eligible), shape.top_k, scores);
}

void index_select_row(const Bf16* query, const Bf16* head_weights, const IndexShape& shape,
                      const IndexRow& row) {
  const std::vector<float> scores = index_scores(query, head_weights, shape, row);
  if (row.scores != nullptr) std::copy(scores.begin(), scores.end(), row.scores);
  const std::vector<int32_t> selected = best_entries(scores, shape, row);
  std::copy(selected.begin(), selected.end(), row.selected);
  *row.selected_count = static_cast<int32_t>(selected.size());
  if (row.built_pool == nullptr) return;
  const std::vector<int32_t> pool = best_blocks(scores, shape.pool_block_size, shape.pool_blocks);
  std::copy(pool.begin(), pool.end(), row.built_pool);
  *row.built_pool_count = static_cast<int32_t>(pool.size());
}

}  // namespace galley::kernels::plain
