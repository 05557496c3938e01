// Formulae of the units that the kernel seam offers only inside larger
// operations: collapse, SwiGLU, attention over unpacked keys, the candidate
// pool from given scores. Checked in plain/, where each is a function.
#include <algorithm>

#include "kernels/number_formats.h"
#include "kernels/plain/attention.h"
#include "kernels/plain/hyper_connections.h"
#include "kernels/plain/indexer.h"
#include "kernels/plain/moe.h"
#include "kernels/plain/quantise.h"
#include "verify/context.h"
#include "verify/units.h"

namespace galley::verify {

namespace {

using kernels::Bf16;

// The other backends never show codes and scales of two of the three, only products of them.
struct Quantiser {
  std::string name;
  int64_t code_bytes_of_32;
  int64_t scales_of_32;
  void (*quantise)(const Bf16* x, int64_t width, uint8_t* codes, uint8_t* scales);
  void (*dequantise)(const uint8_t* codes, const uint8_t* scales, int64_t width, float* x);
};

Result<void> check_quantiser(UnitsContext& context, const Quantiser& quantiser) {
  UnitTensors tensors(context);
  const auto input = tensors.bf16("quant.input", {kAny, kAny});
  const int64_t rows = input.rows();
  const int64_t width = input.cols();
  const std::string prefix = "quant." + quantiser.name;
  const int64_t code_bytes = width / 32 * quantiser.code_bytes_of_32;
  const int64_t scale_count = width / 32 * quantiser.scales_of_32;
  const auto expected_codes = tensors.bytes(prefix + ".codes", {rows, code_bytes});
  const auto expected_scales = tensors.bytes(prefix + ".scales", {rows, scale_count});
  const auto simulated = tensors.bf16(prefix + ".simulated", {rows, width});
  if (!TRY(tensors.complete(prefix))) return {};
  std::vector<uint8_t> codes(expected_codes.values.size());
  std::vector<uint8_t> scales(expected_scales.values.size());
  std::vector<float> row(static_cast<size_t>(width));
  std::vector<Bf16> back;
  for (int64_t r = 0; r < rows; ++r) {
    uint8_t* row_codes = codes.data() + r * code_bytes;
    uint8_t* row_scales = scales.data() + r * scale_count;
    quantiser.quantise(input.row(r), width, row_codes, row_scales);
    quantiser.dequantise(row_codes, row_scales, width, row.data());
    for (const float value : row) back.push_back(kernels::to_bf16(value));
  }
  judge_bytes(context.report, "plain." + quantiser.name + ".codes", codes, expected_codes.values);
  judge_bytes(context.report, "plain." + quantiser.name + ".scales", scales,
              expected_scales.values);
  judge_bf16(context.report, "plain." + quantiser.name + ".simulated", back, simulated.values, 0);
  return {};
}

Result<void> check_collapse(UnitsContext& context) {
  UnitTensors tensors(context);
  const auto streams = tensors.bf16("hc.apply.streams", {kAny, 4, kAny});
  const auto pi = tensors.floats("hc.apply.pi", {streams.rows(), 4});
  const int64_t hidden = streams.cols() / 4;
  const auto expected = tensors.bf16("hc.apply.collapse", {streams.rows(), hidden});
  if (!TRY(tensors.complete("hc.apply.collapse"))) return {};
  std::vector<Bf16> x(expected.values.size());
  for (int64_t r = 0; r < streams.rows(); ++r) {
    kernels::plain::collapse(streams.row(r), pi.row(r), hidden, 4, x.data() + r * hidden);
  }
  judge_bf16(context.report, "hc.apply.collapse", x, expected.values);
  return {};
}

Result<void> check_swiglu(UnitsContext& context) {
  UnitTensors tensors(context);
  const auto gate = tensors.floats("swiglu.gate", {kAny, kAny});
  const auto up = tensors.floats("swiglu.up", gate.dims);
  const auto expected = tensors.floats("swiglu.out_limit10", gate.dims);
  if (!TRY(tensors.complete("swiglu"))) return {};
  std::vector<float> measured;
  for (size_t i = 0; i < gate.values.size(); ++i) {
    measured.push_back(kernels::plain::swiglu(gate.values[i], up.values[i], 10.0F));
  }
  judge_f32(context.report, "swiglu.out_limit10", measured, expected.values, kF32Relative);
  return {};
}

Result<void> check_attention(UnitsContext& context) {
  UnitTensors tensors(context);
  const auto q = tensors.bf16("attn.q", {kAny, kAny, kAny});
  const int64_t queries = q.rows();
  const int64_t heads = q.dims.size() == 3 ? q.dims[1] : 0;
  const int64_t width = q.dims.size() == 3 ? q.dims[2] : 0;
  const auto kv = tensors.bf16("attn.kv", {kAny, width});
  const auto sink = tensors.floats("attn.sink", {heads});
  const auto indices = tensors.integers("attn.indices", {queries, kAny});
  const auto expected = tensors.bf16("attn.out", q.dims);
  if (!TRY(tensors.complete("attn.out"))) return {};
  const int64_t slots = indices.cols();
  std::vector<Bf16> out(q.values.size());
  std::vector<float> query(static_cast<size_t>(width));
  for (int64_t t = 0; t < queries; ++t) {
    std::vector<float> keys(static_cast<size_t>(slots * width), 0.0F);
    std::vector<uint8_t> there(static_cast<size_t>(slots), 0);
    for (int64_t slot = 0; slot < slots; ++slot) {
      const int64_t index = indices.row(t)[slot];
      if (index < 0) continue;
      if (index >= kv.rows()) {
        return Error{ErrorCode::kCorrupt,
                     context.file.path() + ": attn.indices names a key that is not there"};
      }
      there[static_cast<size_t>(slot)] = 1;
      std::transform(kv.row(index), kv.row(index) + width, keys.begin() + slot * width,
                     [](Bf16 v) { return kernels::to_f32(v); });
    }
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t at = (t * heads + head) * width;
      std::transform(q.values.begin() + at, q.values.begin() + at + width, query.begin(),
                     [](Bf16 v) { return kernels::to_f32(v); });
      kernels::plain::attend(query.data(), keys.data(), there.data(), slots, width,
                             sink.values[static_cast<size_t>(head)], out.data() + at);
    }
  }
  judge_bf16(context.report, "attn.out", out, expected.values);
  return {};
}

Result<void> check_candidates(UnitsContext& context) {
  constexpr int32_t kBlock = 8;
  constexpr int32_t kBlocks = 3;
  UnitTensors tensors(context);
  const auto scores = tensors.floats("candidates.scores", {kAny, kAny});
  const auto visible = tensors.integers("candidates.visible", {scores.rows()});
  const auto expected = tensors.bytes("candidates.keep_3_blocks_of_8", scores.dims);
  if (!TRY(tensors.complete("candidates"))) return {};
  const int64_t entries = scores.cols();
  std::vector<uint8_t> keep(scores.values.size(), 0);
  for (int64_t r = 0; r < scores.rows(); ++r) {
    const int64_t seen = std::clamp<int64_t>(visible.values[static_cast<size_t>(r)], 0, entries);
    const std::vector<float> row(scores.row(r), scores.row(r) + seen);
    // The mask keeps whole blocks; visibility is another mask.
    for (const int32_t block : kernels::plain::best_blocks(row, kBlock, kBlocks)) {
      const int64_t end = std::min<int64_t>((block + 1) * kBlock, entries);
      for (int64_t j = block * kBlock; j < end; ++j) keep[static_cast<size_t>(r * entries + j)] = 1;
    }
  }
  judge_bytes(context.report, "candidates.keep_3_blocks_of_8", keep, expected.values);
  return {};
}

}  // namespace

Result<void> check_unit_plain(UnitsContext& context) {
  if (context.ops.name() != "plain") {
    for (const char* subject :
         {"hc.apply.collapse", "swiglu", "attn.out", "candidates.keep_3_blocks_of_8"}) {
      context.report.not_checked(kUnits, subject, "no entry of its own in this backend");
    }
    return {};
  }
  using namespace kernels::plain;
  for (const Quantiser& quantiser : {Quantiser{"q8", 32, 1, quantise_q8, dequantise_q8},
                                     Quantiser{"q4e8", 16, 1, quantise_q4e8, dequantise_q4e8},
                                     Quantiser{"q4e4", 16, 2, quantise_q4e4, dequantise_q4e4}}) {
    TRY(check_quantiser(context, quantiser));
  }
  TRY(check_collapse(context));
  TRY(check_swiglu(context));
  TRY(check_attention(context));
  return check_candidates(context);
}

}  // namespace galley::verify
