// Matrix products of shared inputs (spec/model.md 0.2). dot.h gives the order of a
// sum, the floor and what limits it; this file packs inputs and shares out outputs.
//
// One parallel region for a few rows; one more for packing the inputs of many.
#include <algorithm>

#include "base/check.h"
#include "kernels/fast/isa_class.h"
#include "kernels/fast/pack.h"
#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

constexpr int64_t kProductsMax = 8;

// Cycles of a product of `rows` rows with out x in weights.
int64_t product_cost(int64_t rows, const WeightView& weight) {
  return weight.out * weight.in / 8 + rows * weight.out * weight.in / 24;
}

// How the outputs and rows of one product are cut into parts.
struct Cut {
  int64_t outputs = 0;  // of a part
  int64_t rows = 0;
  int64_t output_parts = 0;
  int64_t row_parts = 0;

  int64_t parts() const { return output_parts * row_parts; }
};

// Parts of about 20 microseconds, in tiles of 32 outputs; rows are cut last, since each
// cut unpacks the weights once more.
Cut cut_product(int64_t rows, const WeightView& weight, int64_t threads) {
  constexpr int64_t kRowsMax = 256;  // operands of so many rows stay near
  constexpr int64_t kPartCycles = 60000;
  Cut cut;
  cut.rows = std::min(rows, kRowsMax);
  const int64_t tile_cost =
      std::max<int64_t>(1, product_cost(cut.rows, weight) * 32 / std::max<int64_t>(weight.out, 32));
  int64_t tiles = std::max<int64_t>(1, kPartCycles / tile_cost);
  const int64_t all = (weight.out + 31) / 32;
  tiles = std::min(tiles, std::max<int64_t>(1, all / (2 * threads)));
  cut.outputs = 32 * tiles;
  cut.output_parts = (weight.out + cut.outputs - 1) / cut.outputs;
  while (cut.rows > 64 && cut.output_parts * ((rows + cut.rows - 1) / cut.rows) < 4 * threads) {
    cut.rows /= 2;
  }
  cut.row_parts = (rows + cut.rows - 1) / cut.rows;
  return cut;
}

void store_sums(const float* sums, int64_t n, Bf16* y) {
  for_lanes(n, [&](int64_t i, int64_t count) { store(load(sums + i, count), y + i, count); });
}

}  // namespace

void FastOps::linear_rows(Rows<const Bf16> x, std::span<const Product> products, int64_t first,
                          int64_t count, fast::Scratch& scratch) {
  const Product* product = products.data();
  auto** pointers = scratch.get<const Operand*>(kSharedPointers, count);
  const Rows<const Bf16> part = x.slice(first, count);
  for (size_t p = 0; p < products.size(); ++p) {
    const WeightView& weight = product[p].weight;
    const Layout layout = layout_of(weight.format);
    const bool packed = p > 0 && product[p - 1].quantise_input == product[p].quantise_input &&
                        layout_of(product[p - 1].weight.format) == layout;
    if (!packed) {
      pack_rows(part, product[p].quantise_input, layout, kSharedOperandA, pointers, scratch,
                [](int64_t rows, int64_t, auto&& body) { body(int64_t{0}, rows, 0); });
    }
    if (product[p].y_f32.data != nullptr) {
      const Rows<float>& y = product[p].y_f32;
      dot(weight, 0, weight.out, pointers, count, y.row(first), y.stride, scratch);
      continue;
    }
    float* sums = scratch.get<float>(kSums, count * weight.out);
    dot(weight, 0, weight.out, pointers, count, sums, weight.out, scratch);
    for (int64_t r = 0; r < count; ++r) {
      store_sums(sums + r * weight.out, weight.out, product[p].y.row(first + r));
    }
  }
}

void FastOps::linear(Rows<const Bf16> x, std::span<const Product> products) {
  const Product* product = products.data();
  const auto count = static_cast<int64_t>(products.size());
  CHECK(count <= kProductsMax);
  if (x.rows == 0) return;
  int64_t bytes = 0;
  int64_t row_cost = 0;
  for (int64_t p = 0; p < count; ++p) {
    const WeightView& weight = product[p].weight;
    CHECK(weight.in == x.cols);
    CHECK((product[p].y.data != nullptr) != (product[p].y_f32.data != nullptr));
    bytes += weight_bytes(weight);
    row_cost += weight.out * weight.in / 16;
  }
  if (split_by_rows(x.rows, bytes)) {
    for_rows(x.rows, row_cost, [&](int64_t first, int64_t rows, int thread) {
      linear_rows(x, products, first, rows, scratch_[thread]);
    });
    return;
  }
  // At most three ways to pack one input: plain, Q8 for fp8, Q8 for fp4 weights. An
  // unquantised input to quantised weights takes a slot as well.
  struct Packing {
    bool quantise;
    Layout layout;
    const Operand* const* rows;
  };
  Packing packings[3];
  int64_t packing_count = 0;
  const Operand* const* input_of[kProductsMax];
  auto** pointers = scratch_[0].get<const Operand*>(kSharedPointers, kProductsMax * x.rows);
  Cut cuts[kProductsMax];
  int64_t cost = 0;
  int64_t parts = 0;
  for (int64_t p = 0; p < count; ++p) {
    const WeightView& weight = product[p].weight;
    const Layout layout = layout_of(weight.format);
    int64_t at = 0;
    while (at < packing_count &&
           (packings[at].quantise != product[p].quantise_input || packings[at].layout != layout)) {
      ++at;
    }
    if (at == packing_count) {
      CHECK(packing_count < 3);
      packings[at] = {product[p].quantise_input, layout,
                      pack_rows(x, product[p].quantise_input, layout,
                                kSharedOperandA + static_cast<int>(at), pointers + at * x.rows,
                                scratch_[0], [&](int64_t rows, int64_t cycles, auto&& body) {
                                  for_rows(rows, cycles, body);
                                })};
      ++packing_count;
    }
    input_of[p] = packings[at].rows;
    cuts[p] = cut_product(x.rows, weight, pool_.thread_count());
    parts += cuts[p].parts();
    cost += product_cost(x.rows, weight);
  }
  for_parts(parts, cost, [&](int64_t part, int thread) {
    int64_t p = 0;
    while (part >= cuts[p].parts()) part -= cuts[p++].parts();
    const Cut& cut = cuts[p];
    const WeightView& weight = product[p].weight;
    const int64_t begin = part % cut.output_parts * cut.outputs;
    const int64_t outputs = std::min(cut.outputs, weight.out - begin);
    const int64_t first = part / cut.output_parts * cut.rows;
    const int64_t rows = std::min(cut.rows, x.rows - first);
    fast::Scratch& scratch = scratch_[thread];
    if (product[p].y_f32.data != nullptr) {
      const Rows<float>& y = product[p].y_f32;
      dot(weight, begin, outputs, input_of[p] + first, rows, y.row(first) + begin, y.stride,
          scratch);
      return;
    }
    float* sums = scratch.get<float>(kSums, rows * outputs);
    dot(weight, begin, outputs, input_of[p] + first, rows, sums, outputs, scratch);
    for (int64_t r = 0; r < rows; ++r) {
      store_sums(sums + r * outputs, outputs, product[p].y.row(first + r) + begin);
    }
  });
}

void FastOps::grouped_linear(Rows<const Bf16> x, const WeightView& weight, int32_t groups,
                             Rows<Bf16> y) {
  CHECK(x.cols == groups * weight.in && weight.out % groups == 0);
  if (x.rows == 0) return;
  const int64_t group_out = weight.out / groups;
  const Layout layout = layout_of(weight.format);
  const int64_t size = operand_size(weight.in);
  if (split_by_rows(x.rows, weight_bytes(weight))) {
    for_rows(x.rows, weight.out * weight.in / 16, [&](int64_t first, int64_t rows, int thread) {
      fast::Scratch& scratch = scratch_[thread];
      auto** pointers = scratch.get<const Operand*>(kSharedPointers, rows);
      Operand* operands = scratch.get<Operand>(kSharedOperandA, rows * size);
      float* sums = scratch.get<float>(kSums, rows * group_out);
      for (int64_t r = 0; r < rows; ++r) pointers[r] = operands + r * size;
      for (int64_t g = 0; g < groups; ++g) {
        for (int64_t r = 0; r < rows; ++r) {
          pack_operand(x.row(first + r) + g * weight.in, weight.in, false, layout,
                       operands + r * size);
        }
        dot(weight, g * group_out, group_out, pointers, rows, sums, group_out, scratch);
        for (int64_t r = 0; r < rows; ++r) {
          store_sums(sums + r * group_out, group_out, y.row(first + r) + g * group_out);
        }
      }
    });
    return;
  }
  Operand* operands = scratch_[0].get<Operand>(kSharedOperandA, x.rows * groups * size);
  auto** pointers = scratch_[0].get<const Operand*>(kSharedPointers, x.rows * groups);
  for_rows(x.rows, x.cols / 4 + 100, [&](int64_t begin, int64_t count, int) {
    for (int64_t r = begin; r < begin + count; ++r) {
      for (int64_t g = 0; g < groups; ++g) {
        Operand* to = operands + (g * x.rows + r) * size;
        pack_operand(x.row(r) + g * weight.in, weight.in, false, layout, to);
        pointers[g * x.rows + r] = to;
      }
    }
  });
  WeightView one = weight;
  one.out = group_out;
  const Cut cut = cut_product(x.rows, one, pool_.thread_count());
  for_parts(groups * cut.parts(), product_cost(x.rows, weight), [&](int64_t part, int thread) {
    const int64_t g = part / cut.parts();
    part %= cut.parts();
    const int64_t begin = part % cut.output_parts * cut.outputs;
    const int64_t outputs = std::min(cut.outputs, group_out - begin);
    const int64_t first = part / cut.output_parts * cut.rows;
    const int64_t rows = std::min(cut.rows, x.rows - first);
    fast::Scratch& scratch = scratch_[thread];
    float* sums = scratch.get<float>(kSums, rows * outputs);
    dot(weight, g * group_out + begin, outputs, pointers + g * x.rows + first, rows, sums, outputs,
        scratch);
    for (int64_t r = 0; r < rows; ++r) {
      store_sums(sums + r * outputs, outputs, y.row(first + r) + g * group_out + begin);
    }
  });
}

}  // namespace galley::kernels::GALLEY_ISA
