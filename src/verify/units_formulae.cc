// The formulae of the units that the kernel seam offers, through the backend.
#include <fmt/format.h>

#include <cmath>

#include "kernels/number_formats.h"
#include "kernels/rope_table.h"
#include "verify/context.h"
#include "verify/units.h"

namespace galley::verify {

namespace {

using kernels::Bf16;
using kernels::WeightFormat;

Result<void> check_gemm(UnitsContext& context, bool fp4) {
  const std::string name = fp4 ? "gemm.fp4" : "gemm.fp8";
  UnitTensors tensors(context);
  const auto x = tensors.bf16("gemm.x", {kAny, kAny});
  const auto weight = tensors.bytes(name + ".weight", {kAny, fp4 ? x.cols() / 2 : x.cols()});
  const int64_t blocks = (x.cols() + 31) / 32;
  const auto scale =
      tensors.bytes(name + ".scale", {fp4 ? weight.rows() : (weight.rows() + 31) / 32, blocks});
  const auto expected = tensors.bf16(name + ".y", {x.rows(), weight.rows()});
  if (!TRY(tensors.complete(name))) return {};
  std::vector<Bf16> y(expected.values.size());
  kernels::Product product;
  product.weight = {fp4 ? WeightFormat::kFp4Row32 : WeightFormat::kFp8Tile32, weight.rows(),
                    x.cols(), weight.values.data(), scale.values.data()};
  product.quantise_input = true;
  product.y = matrix(y, x.rows());
  context.ops.linear(x.view(), {&product, 1});
  judge_bf16(context.report, name + ".y", y, expected.values);
  return {};
}

Result<void> check_rms(UnitsContext& context) {
  UnitTensors tensors(context);
  const auto x = tensors.bf16("rms.x", {kAny, kAny});
  const auto weight = tensors.bf16("rms.weight", {x.cols()});
  const auto expected = tensors.bf16("rms.y", {x.rows(), x.cols()});
  if (!TRY(tensors.complete("rms"))) return {};
  std::vector<Bf16> y(x.values.size());
  context.ops.rms_norm(x.view(), weight.values.data(), kUnitEps, matrix(y, x.rows()));
  judge_bf16(context.report, "rms.y", y, expected.values);
  return {};
}

// The seam takes streams, not mixes: a stream row of a single 1 has a norm that is a power of
// two, so a projection that holds mixes / norm in its first column gives back the mixes exactly.
Result<void> check_hc_coefficients(UnitsContext& context) {
  constexpr int64_t kStreams = 4;
  constexpr int64_t kHidden = 64;  // sqrt(4 * 64) = 16
  constexpr float kNorm = 16.0F;
  UnitTensors tensors(context);
  const auto mixes = tensors.floats("hc.mixes", {kAny, 24});
  const auto base = tensors.floats("hc.base", {24});
  const auto scale = tensors.floats("hc.scale", {3});
  const int64_t rows = mixes.rows();
  const auto pre = tensors.floats("hc.pre", {rows, kStreams});
  const auto post = tensors.floats("hc.post", {rows, kStreams});
  if (!TRY(tensors.complete("hc"))) return {};
  std::vector<Bf16> streams(kStreams * kHidden, Bf16{0});
  streams[0] = kernels::to_bf16(1.0F);
  std::vector<float> carried = {1, 0, 0, 0};
  const std::vector<Bf16> norm(kHidden, kernels::to_bf16(1.0F));
  std::vector<Bf16> x(kHidden);
  for (const int32_t iterations : {1, 2, 11, 20}) {
    const std::string name = fmt::format("hc.comb_iters{}", iterations);
    UnitTensors more(context);
    const auto comb = more.floats(name, {rows, kStreams, kStreams});
    if (!TRY(more.complete(name))) continue;
    std::vector<float> measured_pre(static_cast<size_t>(rows * kStreams));
    std::vector<float> measured_post(measured_pre.size());
    std::vector<float> measured_comb(static_cast<size_t>(rows * kStreams * kStreams));
    kernels::HcOptions options;
    options.sinkhorn_iterations = iterations;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<float> fn(24 * streams.size(), 0.0F);
      for (size_t m = 0; m < 24; ++m) fn[m * streams.size()] = mixes.row(r)[m] / kNorm;
      const kernels::HcWeights weights = {fn.data(), base.values.data(), scale.values.data()};
      const kernels::HcMix mix = {matrix(measured_pre, rows).slice(r, 1),
                                  matrix(measured_post, rows).slice(r, 1),
                                  matrix(measured_comb, rows).slice(r, 1)};
      context.ops.hc_enter(matrix(streams, 1), weights, options, matrix(carried, 1), norm.data(),
                           mix, matrix(x, 1));
    }
    judge_f32(context.report, name, measured_comb, comb.values, kF32Relative);
    if (iterations != 20) continue;  // pre and post do not depend on it
    judge_f32(context.report, "hc.pre", measured_pre, pre.values, kF32Relative);
    judge_f32(context.report, "hc.post", measured_post, post.values, kF32Relative);
  }
  return {};
}

Result<void> check_expand(UnitsContext& context) {
  UnitTensors tensors(context);
  auto streams = tensors.bf16("hc.apply.streams", {kAny, 4, kAny});
  const auto y = tensors.bf16("hc.apply.y", {streams.rows(), kAny});
  const auto post = tensors.floats("hc.apply.post", {streams.rows(), 4});
  const auto comb = tensors.floats("hc.apply.comb", {streams.rows(), 4, 4});
  const auto expected = tensors.bf16("hc.apply.expand", streams.dims);
  if (!TRY(tensors.complete("hc.apply.expand"))) return {};
  context.ops.hc_leave(y.view(), post.view(), comb.view(), 4,
                       matrix(streams.values, streams.rows()));
  judge_bf16(context.report, "hc.apply.expand", streams.values, expected.values);
  return {};
}

struct RopeKind {
  const char* name;
  kernels::RopeOptions options;
};

// README, units: the five tables.
const RopeKind kRopeKinds[] = {
    {"window", {.rotary = 64, .theta = 10000.0}},
    {"compressed", {.rotary = 64, .theta = 160000.0, .original_positions = 65536, .factor = 16.0}},
    {"tiny_window", {.rotary = 32, .theta = 10000.0}},
    {"tiny_compressed",
     {.rotary = 32, .theta = 160000.0, .original_positions = 256, .factor = 16.0}},
    {"other_compressed",
     {.rotary = 32,
      .theta = 40000.0,
      .original_positions = 512,
      .factor = 4.0,
      .beta_fast = 24.0,
      .beta_slow = 2.0}},
};

Result<void> check_rope_table(UnitsContext& context, const RopeKind& kind,
                              const Table<int64_t>& positions) {
  const int64_t rows = positions.rows();
  const int64_t pairs = kind.options.rotary / 2;
  const std::string name = fmt::format("rope.{}", kind.name);
  UnitTensors tensors(context);
  const auto cos = tensors.floats(name + ".cos", {rows, pairs});
  const auto sin = tensors.floats(name + ".sin", {rows, pairs});
  if (!TRY(tensors.complete(name))) return {};
  std::vector<float> measured_cos(cos.values.size());
  std::vector<float> measured_sin(sin.values.size());
  kernels::RopeTable(kind.options)
      .fill(positions.values, matrix(measured_cos, rows), matrix(measured_sin, rows));
  // Above 1e5 the limit is absolute.
  std::vector<float> near[2];
  std::vector<float> near_expected[2];
  std::vector<float> far[2];
  std::vector<float> far_expected[2];
  for (int64_t r = 0; r < rows; ++r) {
    const bool is_far = positions.values[static_cast<size_t>(r)] > 100000;
    for (int64_t u = 0; u < pairs; ++u) {
      const auto at = static_cast<size_t>(r * pairs + u);
      (is_far ? far : near)[0].push_back(measured_cos[at]);
      (is_far ? far_expected : near_expected)[0].push_back(cos.values[at]);
      (is_far ? far : near)[1].push_back(measured_sin[at]);
      (is_far ? far_expected : near_expected)[1].push_back(sin.values[at]);
    }
  }
  for (const int part : {0, 1}) {
    const char* suffix = part == 0 ? "cos" : "sin";
    judge_f32(context.report, fmt::format("{}.{}", name, suffix), near[part], near_expected[part],
              kF32Relative);
    judge_f32(context.report, fmt::format("{}.{} above 1e5", name, suffix), far[part],
              far_expected[part], 0, 1e-6);
  }
  return {};
}

Result<void> check_rope_applied(UnitsContext& context, const RopeKind& kind,
                                const Table<int64_t>& positions) {
  const int64_t rows = positions.rows();
  const std::string name = fmt::format("rope.apply.{}", kind.name);
  UnitTensors tensors(context);
  auto x = tensors.bf16("rope.apply.x", {rows, kAny, kAny});
  const auto forward = tensors.bf16(name + ".forward", x.dims);
  const auto back = tensors.bf16(name + ".there_and_back", x.dims);
  if (!TRY(tensors.complete(name))) return {};
  const auto heads = static_cast<int32_t>(x.dims[1]);
  std::vector<float> cos(static_cast<size_t>(rows * kind.options.rotary / 2));
  std::vector<float> sin(cos.size());
  kernels::RopeTable(kind.options).fill(positions.values, matrix(cos, rows), matrix(sin, rows));
  const kernels::RopeAngles angles = {matrix(cos, rows), matrix(sin, rows)};
  context.ops.rope(matrix(x.values, rows), heads, angles, false);
  judge_bf16(context.report, name + ".forward", x.values, forward.values);
  context.ops.rope(matrix(x.values, rows), heads, angles, true);
  judge_bf16(context.report, name + ".there_and_back", x.values, back.values);
  return {};
}

Result<void> check_rope(UnitsContext& context) {
  UnitTensors tensors(context);
  const auto positions = tensors.integers("rope.positions", {kAny});
  if (!TRY(tensors.complete("rope"))) return {};
  for (const RopeKind& kind : kRopeKinds) TRY(check_rope_table(context, kind, positions));
  TRY(check_rope_applied(context, kRopeKinds[0], positions));
  return check_rope_applied(context, kRopeKinds[1], positions);
}

Result<void> check_engram_gate(UnitsContext& context) {
  UnitTensors tensors(context);
  auto streams = tensors.bf16("engram_gate.streams", {kAny, 4, kAny});
  const int64_t rows = streams.rows();
  const auto key = tensors.bf16("engram_gate.key", streams.dims);
  const auto value = tensors.bf16("engram_gate.value", {rows, kAny});
  const auto q_weight = tensors.bf16("engram_gate.q_weight", {4, value.cols()});
  const auto k_weight = tensors.bf16("engram_gate.k_weight", {4, value.cols()});
  const auto alive = tensors.bytes("engram_gate.alive", {rows});
  const auto expected = tensors.bf16("engram_gate.out", streams.dims);
  if (!TRY(tensors.complete("engram_gate"))) return {};
  std::vector<Bf16> kv;
  for (int64_t r = 0; r < rows; ++r) {
    kv.insert(kv.end(), key.row(r), key.row(r) + key.cols());
    kv.insert(kv.end(), value.row(r), value.row(r) + value.cols());
  }
  context.ops.engram_write(matrix(kv, rows), q_weight.values.data(), k_weight.values.data(),
                           alive.values, 4, kUnitEps, matrix(streams.values, rows), {});
  judge_bf16(context.report, "engram_gate.out", streams.values, expected.values);
  return {};
}

Result<void> check_router(UnitsContext& context) {
  UnitTensors tensors(context);
  const auto x = tensors.bf16("router.x", {kAny, kAny});
  const int64_t rows = x.rows();
  const auto weight = tensors.bf16("router.weight", {kAny, x.cols()});
  const auto bias = tensors.floats("router.bias", {weight.rows()});
  const auto bias_vl = tensors.floats("router.bias_vl", {weight.rows()});
  const auto is_image = tensors.integers("router.is_image", {rows});
  const auto experts = tensors.integers("router.experts", {rows, kAny});
  const auto weights = tensors.floats("router.weights", {rows, experts.cols()});
  if (!TRY(tensors.complete("router"))) return {};
  std::vector<const float*> bias_of_row;
  for (const int64_t image : is_image.values) {
    bias_of_row.push_back(image != 0 ? bias_vl.values.data() : bias.values.data());
  }
  std::vector<int32_t> measured(experts.values.size());
  std::vector<float> measured_weights(measured.size());
  const kernels::WeightView gate = {WeightFormat::kBf16, weight.rows(), x.cols(),
                                    weight.values.data(), nullptr};
  const auto top_k = static_cast<int32_t>(experts.cols());
  context.ops.route(x.view(), gate, bias_of_row, {.top_k = top_k, .scale = 1.5F},
                    matrix(measured, rows), matrix(measured_weights, rows), nullptr);
  int64_t different = 0;
  for (size_t i = 0; i < measured.size(); ++i) different += measured[i] != experts.values[i];
  context.report.judge_equal(kUnits, "router.experts", different, std::ssize(measured));
  judge_f32(context.report, "router.weights", measured_weights, weights.values, kF32Relative);
  return {};
}

Result<void> check_compressor(UnitsContext& context) {
  constexpr int32_t kRatio = 2;
  UnitTensors tensors(context);
  const auto x = tensors.bf16("compressor.x", {kAny, kAny});
  const int64_t rows = x.rows();
  const auto wkv = tensors.bf16("compressor.wkv", {kAny, x.cols()});
  const int64_t width = wkv.rows();
  const auto wgate = tensors.bf16("compressor.wgate", {width, x.cols()});
  const auto norm = tensors.bf16("compressor.norm", {width});
  const auto latent = tensors.bf16("compressor.latent", {rows / kRatio, width});
  const auto pending_kv = tensors.floats("compressor.pending_kv", {rows % kRatio, width});
  const auto pending_gate = tensors.floats("compressor.pending_gate", {rows % kRatio, width});
  if (!TRY(tensors.complete("compressor"))) return {};
  std::vector<float> kv(static_cast<size_t>(rows * width));
  std::vector<float> gate(kv.size());
  const auto view = [&](const Table<Bf16>& weight) {
    return kernels::WeightView{WeightFormat::kBf16, width, x.cols(), weight.values.data(), nullptr};
  };
  const kernels::Product products[2] = {{view(wkv), false, {}, matrix(kv, rows)},
                                        {view(wgate), false, {}, matrix(gate, rows)}};
  context.ops.linear(x.view(), products);
  const int64_t groups = rows / kRatio;
  std::vector<Bf16> measured(static_cast<size_t>(groups * width));
  context.ops.compress(matrix(kv, rows).slice(0, groups * kRatio),
                       matrix(gate, rows).slice(0, groups * kRatio), kRatio, norm.values.data(),
                       kUnitEps, matrix(measured, groups));
  judge_bf16(context.report, "compressor.latent", measured, latent.values);
  // An f32 product: another summation order moves elements near zero by more than 1e-6 of them.
  const auto rest = [&](const std::vector<float>& all) {
    return std::vector<float>(all.begin() + groups * kRatio * width, all.end());
  };
  judge_f32(context.report, "compressor.pending_kv", rest(kv), pending_kv.values, kF32Relative,
            1e-6);
  judge_f32(context.report, "compressor.pending_gate", rest(gate), pending_gate.values,
            kF32Relative, 1e-6);
  return {};
}

}  // namespace

Result<void> check_unit_formulae(UnitsContext& context) {
  TRY(check_gemm(context, false));
  TRY(check_gemm(context, true));
  TRY(check_rms(context));
  TRY(check_hc_coefficients(context));
  TRY(check_expand(context));
  TRY(check_rope(context));
  TRY(check_engram_gate(context));
  TRY(check_router(context));
  return check_compressor(context);
}

}  // namespace galley::verify
