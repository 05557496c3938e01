// Index scores, candidate pool and selection (spec/model.md 4.5), f32 scores.
//
// Order: per entry, channels in order and then heads in order (dot.h); entries are
// independent. Selection is exact: the k-th largest score is found by bisection on the
// scores' bits, ties go to the lower index. Nothing is scored when every eligible entry
// fits into the selection. Floor: 2 x heads x width operations and 68 bytes (at width
// 128) an entry; the dots limit it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/fast/isa_class.h"
#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

constexpr int32_t kHeadsMax = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Entries a row may choose from, in ascending order.
struct Eligible {
  const int32_t* pool;  // blocks, or null: all of [0, count)
  int64_t block_size;
  int64_t count;

  GALLEY_INLINE int64_t id(int64_t i) const {
    return pool == nullptr ? i : pool[i / block_size] * block_size + i % block_size;
  }
};

Eligible eligible_of(const IndexRow& row, const IndexShape& shape, bool use_pool) {
  if (!use_pool || row.pool == nullptr) return {nullptr, 1, row.visible};
  int64_t count = 0;
  const int64_t size = shape.pool_block_size;
  // Only the last block can be short: pools ascend.
  for (int32_t b = 0; b < *row.pool_count; ++b) {
    const int64_t begin = row.pool[b] * size;
    count += std::clamp<int64_t>(row.visible - begin, 0, size);
  }
  return {row.pool, size, count};
}

// Walks over consecutive records without dividing for each.
struct RecordCursor {
  GALLEY_INLINE RecordCursor(const PagedRecords& records, int64_t j)
      : paged(records),
        page(static_cast<int32_t>(j) / records.records_per_page),
        within(static_cast<int32_t>(j) % records.records_per_page) {
    at = address();
  }
  GALLEY_INLINE const uint8_t* address() const {
    return paged.pool + paged.page_table[page] * paged.page_stride +
           int64_t{within} * paged.record_bytes;
  }
  // The next record; only asked for while there is one.
  GALLEY_INLINE void step() {
    at += paged.record_bytes;
    if (++within == paged.records_per_page) {
      within = 0;
      ++page;
      at = nullptr;
    }
  }
  GALLEY_INLINE const uint8_t* get() {
    if (at == nullptr) at = address();
    return at;
  }

  const PagedRecords& paged;
  int32_t page;
  int32_t within;
  const uint8_t* at;
};

// Records of eligible entries [i, i + count), the last one repeated up to a full block.
GALLEY_INLINE void gather_records(const IndexRow& row, const Eligible& eligible, int64_t i,
                                  int64_t count, const uint8_t** records) {
  int64_t j = 0;
  while (j < count) {
    const int64_t first = eligible.id(i + j);
    int64_t run = count - j;
    if (eligible.pool != nullptr) {
      run = std::min(run, eligible.block_size - (i + j) % eligible.block_size);
    }
    RecordCursor cursor(row.keys, first);
    for (; run > 0; --run, cursor.step()) records[j++] = cursor.get();
  }
  for (; j < kIndexBlock; ++j) records[j] = records[count - 1];
}

// A row's query as index_scores wants it, and where its scores go.
struct Scorer {
  IndexQuery query;
  int64_t count;  // entries it may score
};

// Scores of entries [begin, end) of `eligible` for every scorer, each up to its own count;
// scorer.query.scores is the place of entry `begin` and has room for whole blocks.
void score_entries(const IndexRow& row, const Eligible& eligible, const IndexShape& shape,
                   const Scorer* scorers, int64_t scorer_count, int64_t begin, int64_t end) {
  const uint8_t* records[kIndexBlock];
  IndexQuery queries[kIndexRows];
  for (int64_t i = begin; i < end; i += kIndexBlock) {
    gather_records(row, eligible, i, std::min(kIndexBlock, end - i), records);
    int64_t count = 0;
    for (int64_t s = 0; s < scorer_count; ++s) {
      if (scorers[s].count <= i) continue;
      queries[count] = scorers[s].query;
      queries[count++].scores += i - begin;
    }
    index_scores(records, queries, count, shape.heads, shape.head_dim);
  }
}

// Order-preserving bits: larger float, larger integer; -0 equals 0, NaN is smallest.
GALLEY_INLINE VecU sortable(VecF score) {
  const VecF plus = hn::Add(score, zero());
  const VecU bits = hn::BitCast(kU32, plus);
  const VecU sign = hn::Set(kU32, 0x80000000U);
  const auto negative = hn::Ne(hn::And(bits, sign), hn::Zero(kU32));
  const VecU ordered = hn::IfThenElse(negative, hn::Not(bits), hn::Or(bits, sign));
  return hn::IfThenZeroElse(hn::RebindMask(kU32, hn::Ne(plus, plus)), ordered);
}

int64_t count_at_least(const uint32_t* keys, int64_t padded, uint32_t limit) {
  const VecU least = hn::Set(kU32, limit);
  int64_t count = 0;
  for (int64_t i = 0; i < padded; i += kLanes) {
    count +=
        static_cast<int64_t>(hn::CountTrue(kU32, hn::Not(hn::Lt(hn::Load(kU32, keys + i), least))));
  }
  return count;
}

// Indices of the `keep` largest of scores [count], ascending, ties to the lower index.
// keys: scratch for count + kIndexBlock numbers; requires 0 < keep < count.
void select_best(const float* scores, int64_t count, int64_t keep, uint32_t* keys, int32_t* best) {
  const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  for_lanes(count, [&](int64_t i, int64_t n) {
    hn::Store(sortable(load(scores + i, n)), kU32, keys + i);
  });
  for (int64_t i = count; i < padded; ++i) keys[i] = 0;  // below every limit tried
  // Largest limit with at least `keep` keys at or above it: the keep-th largest key.
  uint64_t low = 1;  // keys at or above 1: `low` itself is never needed when NaNs fill up
  uint64_t high = uint64_t{1} << 32;
  int64_t at_low = count_at_least(keys, padded, 1);
  if (at_low < keep) low = 0;
  while (at_low != keep && high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    if (low == 0) break;
    const int64_t at_least = count_at_least(keys, padded, static_cast<uint32_t>(middle));
    if (at_least >= keep) {
      low = middle;
      at_low = at_least;
    } else {
      high = middle;
    }
  }
  const auto limit = static_cast<uint32_t>(low);
  if (at_low == keep) {
    int64_t taken = 0;
    for (int64_t i = 0; i < count; ++i) {
      best[taken] = static_cast<int32_t>(i);
      taken += keys[i] >= limit ? 1 : 0;
      if (taken == keep) break;
    }
    return;
  }
  int64_t above = 0;
  for (int64_t i = 0; i < count; ++i) above += keys[i] > limit ? 1 : 0;
  int64_t ties = keep - above;
  int64_t taken = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (keys[i] > limit || (keys[i] == limit && ties-- > 0))
      best[taken++] = static_cast<int32_t>(i);
  }
}

}  // namespace

void FastOps::index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                           const IndexShape& shape, std::span<const IndexRow> rows) {
  const IndexRow* row_of = rows.data();
  CHECK(shape.heads <= kHeadsMax && shape.head_dim % 32 == 0 && shape.head_dim <= kIndexWidthMax);
  const int64_t query_size = int64_t{shape.heads} * shape.head_dim;
  const auto factor = static_cast<float>(std::pow(static_cast<double>(shape.head_dim), -0.5) *
                                         std::pow(static_cast<double>(shape.heads), -0.5));

  const auto scores_needed = [&](const IndexRow& row) {
    if (row.scores != nullptr) return true;
    if (eligible_of(row, shape, true).count > shape.top_k) return true;
    if (row.built_pool == nullptr) return false;
    return (row.visible + shape.pool_block_size - 1) / shape.pool_block_size > shape.pool_blocks;
  };
  // The query as operands; `wide` is scratch where operands are not bf16.
  const auto query_of = [&](int64_t r, Operand* wide) {
    if constexpr (sizeof(Operand) == sizeof(Bf16)) {
      (void)wide;
      return reinterpret_cast<const Operand*>(queries.row(r));
    } else {
      for_lanes(query_size, [&](int64_t i, int64_t n) {
        store(load(queries.row(r) + i, n), reinterpret_cast<float*>(wide) + i, n);
      });
      return static_cast<const Operand*>(wide);
    }
  };
  const auto weights_of = [&](int64_t r, float* w) {
    for_lanes(shape.heads, [&](int64_t i, int64_t n) {
      store(round_bf16(hn::Mul(load(head_weights.row(r) + i, n), set(factor))), w + i, n);
    });
  };
  // Everything visible is scored where the pool is built or the scores are wanted.
  const auto scored_set = [&](const IndexRow& row) {
    return eligible_of(row, shape, row.scores == nullptr && row.built_pool == nullptr);
  };

  // From `scores` of scored_set to selection and pool.
  const auto choose = [&](const IndexRow& row, const float* scores, int thread) {
    const Eligible eligible = eligible_of(row, shape, true);
    const Eligible scored = scored_set(row);
    fast::Scratch& scratch = scratch_[thread];
    if (row.scores != nullptr) {
      std::memcpy(row.scores, scores, static_cast<size_t>(row.visible) * sizeof(float));
    }
    const int64_t keep = std::min<int64_t>(shape.top_k, eligible.count);
    if (keep == eligible.count) {
      for (int64_t i = 0; i < keep; ++i) row.selected[i] = static_cast<int32_t>(eligible.id(i));
    } else if (keep > 0) {
      uint32_t* keys = scratch.get<uint32_t>(kSums, eligible.count + kIndexBlock);
      const float* from = scores;
      if (eligible.pool != nullptr && scored.pool == nullptr) {
        float* pooled = scratch.get<float>(kOutput, eligible.count + kIndexBlock);
        for (int64_t i = 0; i < eligible.count; ++i) pooled[i] = scores[eligible.id(i)];
        from = pooled;
      }
      select_best(from, eligible.count, keep, keys, row.selected);
      if (eligible.pool != nullptr) {
        for (int64_t i = 0; i < keep; ++i) {
          row.selected[i] = static_cast<int32_t>(eligible.id(row.selected[i]));
        }
      }
    }
    *row.selected_count = static_cast<int32_t>(keep);
    if (row.built_pool == nullptr) return;
    const int64_t size = shape.pool_block_size;
    const int64_t blocks = (row.visible + size - 1) / size;
    const int64_t kept = std::min<int64_t>(shape.pool_blocks, blocks);
    *row.built_pool_count = static_cast<int32_t>(kept);
    if (kept == blocks) {
      for (int64_t b = 0; b < blocks; ++b) row.built_pool[b] = static_cast<int32_t>(b);
      return;
    }
    float* best_of = scratch.get<float>(kOutput, blocks + kIndexBlock);
    uint32_t* keys = scratch.get<uint32_t>(kSums, blocks + kIndexBlock);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t end = std::min(row.visible, (b + 1) * size);
      float best = -kInfinity;
      for (int64_t j = b * size; j < end; ++j) best = scores[j] > best ? scores[j] : best;
      best_of[b] = best;
    }
    best_of[blocks - 1] = kInfinity;  // the block of the newest entry is forced in
    select_best(best_of, blocks, kept, keys, row.built_pool);
  };

  int64_t entries = 0;
  for (int64_t r = 0; r < queries.rows; ++r) {
    if (scores_needed(row_of[r])) entries += scored_set(row_of[r]).count;
  }
  const int64_t entry_cost = query_size / 16 + 20;
  if (queries.rows < 2 * pool_.thread_count() && entries * entry_cost >= kParallelCycles) {
    // Few rows, many entries: share out the entries.
    constexpr int64_t kSpan = 1024;
    for (int64_t r = 0; r < queries.rows; ++r) {
      const IndexRow& row = row_of[r];
      const Eligible scored = scored_set(row);
      float* scores = scratch_[0].get<float>(kSharedInner, scored.count + kIndexBlock);
      if (scores_needed(row)) {
        float w[kHeadsMax];
        weights_of(r, w);
        const Operand* q = query_of(r, scratch_[0].get<Operand>(kSharedOperandA, query_size));
        for_parts((scored.count + kSpan - 1) / kSpan, scored.count * entry_cost,
                  [&](int64_t part, int) {
                    const int64_t begin = part * kSpan;
                    const Scorer scorer = {{q, w, scores + begin}, scored.count};
                    score_entries(row, scored, shape, &scorer, 1, begin,
                                  std::min(scored.count, begin + kSpan));
                  });
      }
      choose(row, scores, 0);
    }
    return;
  }
  // Neighbouring rows of one sequence score the same keys: a part takes several and
  // unpacks each key once for them.
  const int64_t rows_per_part =
      std::clamp<int64_t>(queries.rows / (4 * pool_.thread_count()), 1, kIndexRows);
  const auto same_keys = [&](int64_t a, int64_t b) {
    return row_of[a].keys.pool == row_of[b].keys.pool &&
           row_of[a].keys.page_table == row_of[b].keys.page_table &&
           scored_set(row_of[a]).pool == nullptr && scored_set(row_of[b]).pool == nullptr;
  };
  const int64_t parts = (queries.rows + rows_per_part - 1) / rows_per_part;
  for_parts(parts, entries * entry_cost + queries.rows * 500, [&](int64_t part, int thread) {
    fast::Scratch& scratch = scratch_[thread];
    const int64_t end = std::min(queries.rows, (part + 1) * rows_per_part);
    for (int64_t first = part * rows_per_part; first < end;) {
      int64_t last = first + 1;
      while (last < end && same_keys(first, last)) ++last;
      const int64_t count = last - first;
      int64_t longest = 0;
      for (int64_t r = first; r < last; ++r) {
        longest = std::max(longest, scored_set(row_of[r]).count);
      }
      const int64_t stride = longest + kIndexBlock;
      float* scores = scratch.get<float>(kScores, count * stride);
      float* w = scratch.get<float>(kOwnWeights, count * kHeadsMax);
      Operand* wide = scratch.get<Operand>(kKeys, count * query_size);
      Scorer scorers[kIndexRows];
      int64_t scorer_count = 0;
      longest = 0;
      const IndexRow* with_most = &row_of[first];
      for (int64_t r = first; r < last; ++r) {
        if (!scores_needed(row_of[r])) continue;
        const int64_t i = r - first;
        weights_of(r, w + i * kHeadsMax);
        scorers[scorer_count++] = {
            {query_of(r, wide + i * query_size), w + i * kHeadsMax, scores + i * stride},
            scored_set(row_of[r]).count};
        if (scorers[scorer_count - 1].count > longest) {
          longest = scorers[scorer_count - 1].count;
          with_most = &row_of[r];
        }
      }
      if (scorer_count > 0) {
        score_entries(*with_most, scored_set(*with_most), shape, scorers, scorer_count, 0, longest);
      }
      for (int64_t r = first; r < last; ++r)
        choose(row_of[r], scores + (r - first) * stride, thread);
      first = last;
    }
  });
}

}  // namespace galley::kernels::GALLEY_ISA
