// Experts (spec/model.md 5): rows are grouped by expert, so that each expert's
// weights are read once a call however many rows chose it.
//
// Two parallel regions: up (w1, w3, SwiGLU, Q8) over (expert, 128 inner channels), and
// down (w2) over ranges of outputs, each adding its experts in ascending order and the
// shared one last, in f32: the order a row sees never depends on its neighbours.
// Floor: bytes of the experts touched at few rows, bf16 dots at many; dot.h says what
// limits the dots.
#include <algorithm>

#include "base/check.h"
#include "kernels/fast/isa_class.h"
#include "kernels/fast/pack.h"
#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

// One expert and the rows that chose it: members [first, first + count).
struct Group {
  const ExpertWeights* expert;
  int64_t first;
  int64_t count;
};

// silu(min(a, limit)) * clamp(b, +-limit) * weight; a, b as bf16 results of w1, w3.
GALLEY_INLINE VecF swiglu(VecF a, VecF b, VecF limit, VecF weight) {
  const VecF gate = hn::Min(limit, round_bf16(a));  // Min hands on NaN of its second operand
  const VecF up = hn::Max(hn::Neg(limit), hn::Min(limit, round_bf16(b)));
  const VecF silu = hn::Div(gate, hn::Add(set(1.0F), exp(hn::Neg(gate))));
  return hn::Mul(weight, hn::Mul(silu, up));
}

}  // namespace

void FastOps::moe(Rows<const Bf16> x, const MoeWeights& weights, Rows<const int32_t> experts,
                  Rows<const float> expert_weights, Rows<Bf16> y) {
  if (x.rows == 0) return;
  const auto run_rows = [&](int64_t rows, int64_t cycles, auto&& body) {
    for_rows(rows, cycles, body);
  };
  const auto run_parts = [&](int64_t parts, int64_t cycles, auto&& body) {
    for_parts(parts, cycles, body);
  };
  int64_t bytes = 3 * weight_bytes(weights.shared.w1);
  if (!weights.experts.empty()) {
    const auto touched =
        std::min<int64_t>(static_cast<int64_t>(weights.experts.size()), x.rows * experts.cols);
    bytes += 3 * touched * weight_bytes(weights.experts.data()->w1);
  }
  // An expert's weights are unpacked once a thread: worth it only for a good many rows.
  const int64_t rows_per_expert =
      x.rows * experts.cols / std::max<int64_t>(1, static_cast<int64_t>(weights.experts.size()));
  if (rows_per_expert < 16 * pool_.thread_count() || !split_by_rows(x.rows, bytes)) {
    moe_rows(x, weights, experts, expert_weights, y, scratch_[0], run_rows, run_parts);
    return;
  }
  const int64_t row_cost = (experts.cols + 1) * 3 * weights.shared.w1.out * x.cols / 16;
  for_rows(x.rows, row_cost, [&](int64_t first, int64_t count, int thread) {
    moe_rows(
        x.slice(first, count), weights, experts.slice(first, count),
        expert_weights.slice(first, count), y.slice(first, count), scratch_[thread],
        [](int64_t rows, int64_t, auto&& body) { body(int64_t{0}, rows, 0); },
        [thread](int64_t parts, int64_t, auto&& body) {
          for (int64_t part = 0; part < parts; ++part) body(part, thread);
        });
  });
}

template <class RunRows, class RunParts>
void FastOps::moe_rows(Rows<const Bf16> x, const MoeWeights& weights, Rows<const int32_t> experts,
                       Rows<const float> expert_weights, Rows<Bf16> y, fast::Scratch& shared,
                       RunRows&& run_rows, RunParts&& run_parts) {
  const ExpertWeights* table = weights.experts.data();
  const auto expert_count = static_cast<int64_t>(weights.experts.size());
  const int64_t hidden = x.cols;
  const bool has_shared = weights.shared.w1.data != nullptr;
  const WeightView& widest = has_shared ? weights.shared.w1 : table[0].w1;
  const int64_t inner = widest.out;
  const int64_t rows = x.rows;
  const int64_t chosen = experts.cols;
  const int64_t members = rows * (chosen + 1);

  // Plan: members sorted by expert, rows ascending, the shared expert's last.
  struct Plan {
    int64_t* start;         // [expert_count + 1]
    int64_t* row;           // [members]
    float* weight;          // [members]
    Group* groups;          // [expert_count + 1]
    const Operand** input;  // [members] x, in the layout of the member's expert
    const Operand** inner;  // [members] SwiGLU's result
  } plan;
  const int64_t plan_bytes = (expert_count + 2) * 8 + members * (8 + 4 + 8 + 8) +
                             (expert_count + 1) * static_cast<int64_t>(sizeof(Group)) + 64;
  auto* memory = shared.get<uint8_t>(kSharedPlan, plan_bytes);
  plan.start = reinterpret_cast<int64_t*>(memory);
  plan.row = plan.start + expert_count + 2;
  plan.groups = reinterpret_cast<Group*>(plan.row + members);
  plan.input = reinterpret_cast<const Operand**>(plan.groups + expert_count + 1);
  plan.inner = plan.input + members;
  plan.weight = reinterpret_cast<float*>(plan.inner + members);

  std::memset(plan.start, 0, static_cast<size_t>(expert_count + 2) * 8);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < chosen; ++i) {
      const int32_t e = experts.row(r)[i];
      CHECK(e >= 0 && e < expert_count);
      ++plan.start[e + 2];
    }
  }
  for (int64_t e = 0; e < expert_count; ++e) plan.start[e + 2] += plan.start[e + 1];
  const Layout routed_layout =
      layout_of(expert_count > 0 ? table[0].w1.format : weights.shared.w1.format);
  const Layout shared_layout = layout_of(widest.format);
  auto** pointers = shared.get<const Operand*>(kSharedPointers, 2 * rows);
  const Operand* const* routed_input =
      pack_rows(x, true, routed_layout, kSharedOperandA, pointers, shared, run_rows);
  const Operand* const* shared_input =
      shared_layout == routed_layout
          ? routed_input
          : pack_rows(x, true, shared_layout, kSharedOperandB, pointers + rows, shared, run_rows);
  const int64_t inner_size = operand_size(inner);
  Operand* inner_operands = shared.get<Operand>(kSharedInner, members * inner_size);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < chosen; ++i) {
      const int64_t at = plan.start[experts.row(r)[i] + 1]++;
      plan.row[at] = r;
      plan.weight[at] = expert_weights.row(r)[i];
      plan.input[at] = routed_input[r];
    }
    const int64_t at = rows * chosen + r;
    plan.row[at] = r;
    plan.weight[at] = 1.0F;
    plan.input[at] = shared_input[r];
  }
  for (int64_t m = 0; m < members; ++m) plan.inner[m] = inner_operands + m * inner_size;
  int64_t group_count = 0;
  int64_t bytes = 0;
  for (int64_t e = 0; e < expert_count; ++e) {
    const int64_t count = plan.start[e + 1] - plan.start[e];
    if (count == 0) continue;
    CHECK(table[e].w1.out == inner && layout_of(table[e].w1.format) == routed_layout);
    plan.groups[group_count++] = {&table[e], plan.start[e], count};
    bytes += weight_bytes(table[e].w1);
  }
  if (has_shared) {
    plan.groups[group_count++] = {&weights.shared, rows * chosen, rows};
    bytes += weight_bytes(weights.shared.w1);
  }

  // Up. The shared expert's parts come first: they are the longest.
  const int64_t blocks = (inner + kChunk - 1) / kChunk;
  const int64_t up_cost = 2 * (bytes / 6 + members * hidden * inner / 24);
  run_parts(group_count * blocks, up_cost, [&](int64_t part, int thread) {
    const Group& group = plan.groups[group_count - 1 - part / blocks];
    const int64_t begin = part % blocks * kChunk;
    const int64_t count = std::min(kChunk, inner - begin);
    fast::Scratch& scratch = scratch_[thread];
    float* gate = scratch.get<float>(kSums, 2 * group.count * kChunk);
    float* up = gate + group.count * kChunk;
    const Operand* const* input = plan.input + group.first;
    dot(group.expert->w1, begin, count, input, group.count, gate, kChunk, scratch);
    dot(group.expert->w3, begin, count, input, group.count, up, kChunk, scratch);
    const VecF limit = set(weights.swiglu_limit);
    const Layout layout = layout_of(group.expert->w2.format);
    for (int64_t m = 0; m < group.count; ++m) {
      Bf16 v[kChunk];
      const VecF weight = set(plan.weight[group.first + m]);
      const float* a = gate + m * kChunk;
      const float* b = up + m * kChunk;
      for_lanes(count, [&](int64_t i, int64_t n) {
        store(swiglu(load(a + i, n), load(b + i, n), limit, weight), v + i, n);
      });
      pack_operand(v, count, true, layout, inner_operands + (group.first + m) * inner_size + begin);
    }
  });

  // Down. Long ranges reuse an expert's packed rows, short ones balance.
  const int64_t tiles = (hidden + 31) / 32;
  const int64_t share = rows >= 4 ? 4 * pool_.thread_count() : 8 * pool_.thread_count();
  const int64_t range = std::max<int64_t>(1, tiles / share) * 32;
  const int64_t ranges = (hidden + range - 1) / range;
  run_parts(ranges, up_cost / 2, [&](int64_t part, int thread) {
    const int64_t begin = part * range;
    const int64_t count = std::min(range, hidden - begin);
    fast::Scratch& scratch = scratch_[thread];
    float* total = scratch.get<float>(kOutput, rows * range);
    float* sums = scratch.get<float>(kSums, rows * range);
    std::memset(total, 0, static_cast<size_t>(rows * range) * sizeof(float));
    for (int64_t g = 0; g < group_count; ++g) {
      const Group& group = plan.groups[g];
      dot(group.expert->w2, begin, count, plan.inner + group.first, group.count, sums, range,
          scratch);
      for (int64_t m = 0; m < group.count; ++m) {
        float* to = total + plan.row[group.first + m] * range;
        const float* from = sums + m * range;
        for_lanes(count, [&](int64_t i, int64_t n) {
          store(hn::Add(load(to + i, n), round_bf16(load(from + i, n))), to + i, n);
        });
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      for_lanes(count, [&](int64_t i, int64_t n) {
        store(load(total + r * range + i, n), y.row(r) + begin + i, n);
      });
    }
  });
}

}  // namespace galley::kernels::GALLEY_ISA
