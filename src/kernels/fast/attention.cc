// Core attention (spec/model.md 4.6): one softmax over window keys, selected entries
// and the sink, all heads sharing one set of keys that are also the values.
//
// Order: keys are listed window first (oldest to newest), then the selection
// ascending; scores chain over channels (dot.h), the denominator sums lanes over that
// list, values are added two keys at a time in list order. A row's list depends on its
// position and selection alone, so neighbours and chunk borders do not matter.
// Probabilities are f32 in the denominator and bf16 before the values, as the reference's.
// Floor: 4 heads x width x keys operations; decoding the keys once a row costs a few
// per cent of it, so neighbouring rows need not share them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/fast/isa_class.h"
#include "kernels/fast/quantise.h"
#include "kernels/fast/rope.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

const uint8_t* window_record(const AttentionRow& row, int64_t position, int64_t record_bytes) {
  if (position >= row.chunk_begin) {
    return row.chunk + (position - row.chunk_begin) * record_bytes;
  }
  return row.ring + (position % row.ring_slots) * record_bytes;
}

// All keys of a row as operands, zeros up to an even count.
void read_keys(const AttentionRow& row, int64_t window_count, int64_t width, Operand* keys) {
  const int64_t record_bytes = window_record_bytes(width);
  const int64_t stride = key_stride(width);
  for (int64_t i = 0; i < window_count; ++i) {
    read_window_record(window_record(row, row.window_begin + i, record_bytes), width,
                       keys + i * stride);
  }
  Operand* global = keys + window_count * stride;
  for (int64_t i = 0; i < row.selection(); ++i) {
    read_global_record(row.global.record(row.selected[i]), width, global + i * stride);
  }
  const int64_t count = window_count + row.selection();
  if (count % 2 != 0) {
    std::memset(keys + count * stride, 0, static_cast<size_t>(width) * sizeof(Operand));
  }
}

GALLEY_INLINE void store_probability(VecF p, uint16_t* to) { hn::StoreU(to_bf16(p), U16(), to); }
GALLEY_INLINE void store_probability(VecF p, float* to) { store(round_bf16(p), to); }

// scores [padded] (the tail is -inf) to probabilities; returns the denominator. The
// stabiliser leaves the sink out, as the reference's does: bf16 probabilities round alike.
float softmax(float* scores, int64_t padded, float scale, float sink, Operand* p) {
  VecF top = set(-1e30F);
  for (int64_t j = 0; j < padded; j += kLanes) {
    const VecF s = hn::Mul(load(scores + j), set(scale));
    store(s, scores + j);
    top = hn::Max(s, top);
  }
  const float stabiliser = max_lanes(top);
  VecF sum = zero();
  for (int64_t j = 0; j < padded; j += kLanes) {
    const VecF e = exp(hn::Sub(load(scores + j), set(stabiliser)));
    store_probability(e, p + j);
    sum = hn::Add(sum, e);
  }
  return sum_lanes(sum) + hn::GetLane(exp(set(sink - stabiliser)));
}

}  // namespace

void FastOps::attention(Rows<const Bf16> q, const float* sink, const AttentionShape& shape,
                        const RopeAngles& angles, std::span<const AttentionRow> rows,
                        Rows<Bf16> o) {
  const AttentionRow* row_of = rows.data();
  const int64_t width = shape.head_dim;
  const int64_t rotary = 2 * angles.cos.cols;
  CHECK(width % 32 == 0 && rotary <= kRotaryMax);
  const auto scale = static_cast<float>(std::pow(static_cast<double>(width), -0.5));

  const auto attend = [&](int64_t r, int64_t head, int64_t heads, int thread) {
    const AttentionRow& row = row_of[r];
    const int64_t window_count = row.position - row.window_begin + 1;
    CHECK(window_count >= 0 && window_count <= shape.window);
    const int64_t count = window_count + row.selection();
    const int64_t even = (count + 1) / 2 * 2;
    const int64_t padded = (count + 15) / 16 * 16;
    fast::Scratch& scratch = scratch_[thread];
    Operand* keys = scratch.get<Operand>(kKeys, even * key_stride(width));
    float* scores = scratch.get<float>(kScores, heads * padded);
    Operand* p = scratch.get<Operand>(kSums, heads * padded);
    float* out = scratch.get<float>(kOutput, heads * width);
    const Bf16* q_row = q.row(r) + head * width;
    const Operand* q_operand = nullptr;
    if constexpr (sizeof(Operand) == sizeof(Bf16)) {
      q_operand = reinterpret_cast<const Operand*>(q_row);
    } else {  // `out` is free until the values
      for_lanes(heads * width,
                [&](int64_t i, int64_t n) { store(load(q_row + i, n), out + i, n); });
      q_operand = reinterpret_cast<const Operand*>(out);
    }
    read_keys(row, window_count, width, keys);
    attention_scores(q_operand, heads, keys, count, width, scores, padded);
    float denominator[64];
    Rotation rotation;
    rotation.set_angles(angles.cos.row(r), angles.sin.row(r), rotary, true);
    for (int64_t first = 0; first < heads; first += 64) {
      const int64_t some = std::min<int64_t>(64, heads - first);
      for (int64_t a = 0; a < some; ++a) {
        float* s = scores + (first + a) * padded;
        for (int64_t j = count; j < padded; ++j) s[j] = -std::numeric_limits<float>::infinity();
        denominator[a] =
            softmax(s, padded, scale, sink[head + first + a], p + (first + a) * padded);
      }
      attention_values(p + first * padded, padded, some, keys, even, width, out);
      for (int64_t a = 0; a < some; ++a) {
        Bf16* to = o.row(r) + (head + first + a) * width;
        const VecF divisor = set(denominator[a]);
        for_lanes(width, [&](int64_t i, int64_t n) {
          store(hn::Div(load(out + a * width + i, n), divisor), to + i, n);
        });
        rope_row(to, width, rotation, rotary);
      }
    }
  };

  int64_t keys = 0;
  for (int64_t r = 0; r < q.rows; ++r) {
    keys += row_of[r].position - row_of[r].window_begin + 1 + row_of[r].selection();
  }
  const int64_t cost = keys * width * shape.heads / 6 + keys * width;
  // Few rows: share out their heads too; each part then decodes the row's keys for itself.
  int64_t heads_per_part = shape.heads;
  while (heads_per_part % 16 == 0 &&
         q.rows * (shape.heads / heads_per_part) < pool_.thread_count()) {
    heads_per_part /= 2;
  }
  const int64_t groups = shape.heads / heads_per_part;
  for_parts(q.rows * groups, cost, [&](int64_t part, int thread) {
    attend(part / groups, part % groups * heads_per_part, heads_per_part, thread);
  });
}

}  // namespace galley::kernels::GALLEY_ISA
