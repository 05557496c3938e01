// Shows that plain/ computes the single formulae of the reference: quantisers,
// scales and choices to the bit, f32 formulae to 1e-6, bf16 results to at most
// one ulp in at most 1 % of the elements (README.md here states the limits).
//
// Engram hashing and the tokenizer have their own tests in src/model.
#include <gtest/gtest.h>

#include <cmath>

#include "golden_file.h"
#include "kernels/number_formats.h"
#include "kernels/plain/attention.h"
#include "kernels/plain/hyper_connections.h"
#include "kernels/plain/indexer.h"
#include "kernels/plain/moe.h"
#include "kernels/plain/plain_ops.h"
#include "kernels/plain/quantise.h"
#include "kernels/rope_table.h"

namespace galley::golden {
namespace {

using kernels::Bf16;
using kernels::Rows;
using kernels::to_bf16;
using kernels::to_f32;
using kernels::WeightFormat;

constexpr double kF32Relative = 1e-6;
constexpr float kEps = 1e-20F;

File& units() {
  static File file(std::string(GALLEY_SOURCE_DIR) + "/tests/golden/units/units.safetensors");
  return file;
}

kernels::Ops& ops() {
  static ThreadPool pool(2);
  static const std::unique_ptr<kernels::Ops> instance = kernels::make_plain_ops(pool);
  return *instance;
}

template <class T>
Rows<T> matrix(std::vector<T>& data, int64_t rows) {
  return Rows<T>(data.data(), rows, static_cast<int64_t>(data.size()) / rows);
}

std::vector<Bf16> to_bf16(const std::vector<float>& wide) {
  std::vector<Bf16> narrow;
  for (const float value : wide) narrow.push_back(kernels::to_bf16(value));
  return narrow;
}

std::vector<float> to_f32(const std::vector<Bf16>& narrow) {
  std::vector<float> wide;
  for (const Bf16 value : narrow) wide.push_back(kernels::to_f32(value));
  return wide;
}

// After the last test: every tensor of the file was compared, here or elsewhere.
class NothingLeftOut : public testing::Environment {
 public:
  void TearDown() override {
    if (testing::UnitTest::GetInstance()->test_to_run_count() !=
        testing::UnitTest::GetInstance()->total_test_count()) {
      return;  // a filter chose some
    }
    for (const std::string& name : units().unread()) {
      // src/model/engram_hash_test.cc reads these.
      if (name.starts_with("engram.")) continue;
      ADD_FAILURE() << "no test reads " << name;
    }
  }
};
const auto* const kNothingLeftOut = testing::AddGlobalTestEnvironment(new NothingLeftOut);

TEST(GoldenUnits, E4m3) {
  std::vector<uint8_t> codes(65536);
  for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const float value = kernels::to_f32(Bf16{static_cast<uint16_t>(pattern)});
    codes[pattern] = kernels::f32_to_e4m3(std::isfinite(value) ? value : 0.0F);
  }
  expect_bytes("codes", codes, units()["e4m3.from_bf16_pattern"].bytes);

  std::vector<float> values(256);
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = kernels::e4m3_to_f32(static_cast<uint8_t>(code));
    values[code] = std::isnan(value) ? 0.0F : value;
  }
  expect_relative("values", values, units()["e4m3.value_of_code"].f32(), 0.0);
}

struct Quantiser {
  const char* name;
  int64_t codes_per_row;
  int64_t scales_per_row;
  void (*quantise)(const Bf16*, int64_t, uint8_t*, uint8_t*);
  void (*dequantise)(const uint8_t*, const uint8_t*, int64_t, float*);
};

TEST(GoldenUnits, Quantisers) {
  using namespace kernels::plain;
  const Quantiser quantisers[] = {{"q8", 96, 3, quantise_q8, dequantise_q8},
                                  {"q4e8", 48, 3, quantise_q4e8, dequantise_q4e8},
                                  {"q4e4", 48, 6, quantise_q4e4, dequantise_q4e4}};
  const Tensor& input = units()["quant.input"];
  const std::vector<Bf16> x = input.bf16();
  const int64_t rows = input.dim(0);
  const int64_t width = input.dim(1);
  for (const Quantiser& quantiser : quantisers) {
    std::vector<uint8_t> codes(static_cast<size_t>(rows * quantiser.codes_per_row));
    std::vector<uint8_t> scales(static_cast<size_t>(rows * quantiser.scales_per_row));
    std::vector<float> simulated(static_cast<size_t>(rows * width));
    for (int64_t r = 0; r < rows; ++r) {
      uint8_t* row_codes = codes.data() + r * quantiser.codes_per_row;
      uint8_t* row_scales = scales.data() + r * quantiser.scales_per_row;
      quantiser.quantise(x.data() + r * width, width, row_codes, row_scales);
      quantiser.dequantise(row_codes, row_scales, width, simulated.data() + r * width);
    }
    const std::string name = std::string("quant.") + quantiser.name;
    expect_bytes(name + ".scales", scales, units()[name + ".scales"].bytes);
    expect_bytes(name + ".codes", codes, units()[name + ".codes"].bytes);
    expect_bf16(name + ".simulated", to_bf16(simulated), units()[name + ".simulated"].bf16(), 0.0);
  }
}

TEST(GoldenUnits, Gemm) {
  std::vector<Bf16> x = units()["gemm.x"].bf16();
  const int64_t rows = units()["gemm.x"].dim(0);
  for (const bool fp4 : {false, true}) {
    const std::string name = fp4 ? "gemm.fp4" : "gemm.fp8";
    const Tensor& weight = units()[name + ".weight"];
    std::vector<Bf16> y(static_cast<size_t>(rows * weight.dim(0)));
    kernels::Product product;
    product.weight = {fp4 ? WeightFormat::kFp4Row32 : WeightFormat::kFp8Tile32, weight.dim(0),
                      weight.dim(1) * (fp4 ? 2 : 1), weight.bytes.data(),
                      units()[name + ".scale"].bytes.data()};
    product.quantise_input = true;
    product.y = matrix(y, rows);
    ops().linear(matrix(x, rows), {&product, 1});
    expect_bf16(name, y, units()[name + ".y"].bf16());
  }
}

TEST(GoldenUnits, RmsNorm) {
  std::vector<Bf16> x = units()["rms.x"].bf16();
  const std::vector<Bf16> weight = units()["rms.weight"].bf16();
  const int64_t rows = units()["rms.x"].dim(0);
  std::vector<Bf16> y(x.size());
  ops().rms_norm(matrix(x, rows), weight.data(), kEps, matrix(y, rows));
  expect_bf16("rms", y, units()["rms.y"].bf16());
}

TEST(GoldenUnits, HyperConnectionCoefficients) {
  const std::vector<float> mixes = units()["hc.mixes"].f32();
  const std::vector<float> base = units()["hc.base"].f32();
  const std::vector<float> scale = units()["hc.scale"].f32();
  const int64_t rows = units()["hc.mixes"].dim(0);
  for (const int32_t iterations : {1, 2, 11, 20}) {
    kernels::HcOptions options;
    options.sinkhorn_iterations = iterations;
    std::vector<float> pre(static_cast<size_t>(rows * 4));
    std::vector<float> post(static_cast<size_t>(rows * 4));
    std::vector<float> comb(static_cast<size_t>(rows * 16));
    for (int64_t r = 0; r < rows; ++r) {
      kernels::plain::hc_coefficients(mixes.data() + r * 24, base.data(), scale.data(), options,
                                      pre.data() + r * 4, post.data() + r * 4,
                                      comb.data() + r * 16);
    }
    expect_relative("pre", pre, units()["hc.pre"].f32(), kF32Relative);
    expect_relative("post", post, units()["hc.post"].f32(), kF32Relative);
    const std::string name = "hc.comb_iters" + std::to_string(iterations);
    expect_relative(name, comb, units()[name].f32(), kF32Relative);
  }
}

TEST(GoldenUnits, CollapseAndExpand) {
  std::vector<Bf16> streams = units()["hc.apply.streams"].bf16();
  std::vector<Bf16> y = units()["hc.apply.y"].bf16();
  const std::vector<float> pi = units()["hc.apply.pi"].f32();
  std::vector<float> post = units()["hc.apply.post"].f32();
  std::vector<float> comb = units()["hc.apply.comb"].f32();
  const int64_t rows = units()["hc.apply.y"].dim(0);
  const int64_t hidden = units()["hc.apply.y"].dim(1);
  std::vector<Bf16> x(y.size());
  for (int64_t r = 0; r < rows; ++r) {
    kernels::plain::collapse(streams.data() + r * 4 * hidden, pi.data() + r * 4, hidden, 4,
                             x.data() + r * hidden);
  }
  expect_bf16("collapse", x, units()["hc.apply.collapse"].bf16());
  ops().hc_leave(matrix(y, rows), matrix(post, rows), matrix(comb, rows), 4, matrix(streams, rows));
  expect_bf16("expand", streams, units()["hc.apply.expand"].bf16());
}

struct RopeKind {
  const char* name;
  kernels::RopeOptions options;
};

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

TEST(GoldenUnits, RopeTables) {
  const std::vector<int64_t> positions = units()["rope.positions"].values<int64_t>();
  for (const RopeKind& kind : kRopeKinds) {
    const auto pairs = static_cast<size_t>(kind.options.rotary / 2);
    std::vector<float> cos(positions.size() * pairs);
    std::vector<float> sin(positions.size() * pairs);
    const auto rows = static_cast<int64_t>(positions.size());
    kernels::RopeTable(kind.options).fill(positions, matrix(cos, rows), matrix(sin, rows));
    const std::string name = std::string("rope.") + kind.name;
    const std::vector<float> expected_cos = units()[name + ".cos"].f32();
    const std::vector<float> expected_sin = units()[name + ".sin"].f32();
    for (size_t r = 0; r < positions.size(); ++r) {
      const auto row = [&](const std::vector<float>& table) {
        return std::vector<float>(table.begin() + static_cast<int64_t>(r * pairs),
                                  table.begin() + static_cast<int64_t>((r + 1) * pairs));
      };
      const bool far = positions[r] > 100000;
      const double relative = far ? 0.0 : kF32Relative;
      const double absolute = far ? 1e-6 : 0.0;
      const std::string where = " at position " + std::to_string(positions[r]);
      expect_relative(name + ".cos" + where, row(cos), row(expected_cos), relative, absolute);
      expect_relative(name + ".sin" + where, row(sin), row(expected_sin), relative, absolute);
    }
  }
}

TEST(GoldenUnits, RopeApplied) {
  const std::vector<int64_t> positions = units()["rope.positions"].values<int64_t>();
  const auto rows = static_cast<int64_t>(positions.size());
  for (const RopeKind& kind : {kRopeKinds[0], kRopeKinds[1]}) {
    std::vector<float> cos(positions.size() * 32);
    std::vector<float> sin(positions.size() * 32);
    kernels::RopeTable(kind.options).fill(positions, matrix(cos, rows), matrix(sin, rows));
    const kernels::RopeAngles angles = {matrix(cos, rows), matrix(sin, rows)};
    std::vector<Bf16> x = units()["rope.apply.x"].bf16();
    const std::string name = std::string("rope.apply.") + kind.name;
    ops().rope(matrix(x, rows), 2, angles, false);
    expect_bf16(name, x, units()[name + ".forward"].bf16());
    ops().rope(matrix(x, rows), 2, angles, true);
    expect_bf16(name + " and back", x, units()[name + ".there_and_back"].bf16());
  }
}

TEST(GoldenUnits, EngramGate) {
  const std::vector<Bf16> key = units()["engram_gate.key"].bf16();
  const std::vector<Bf16> value = units()["engram_gate.value"].bf16();
  const int64_t rows = units()["engram_gate.value"].dim(0);
  const int64_t hidden = units()["engram_gate.value"].dim(1);
  std::vector<Bf16> kv(static_cast<size_t>(rows * 5 * hidden));
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(key.data() + r * 4 * hidden, 4 * hidden, kv.data() + r * 5 * hidden);
    std::copy_n(value.data() + r * hidden, hidden, kv.data() + r * 5 * hidden + 4 * hidden);
  }
  std::vector<Bf16> streams = units()["engram_gate.streams"].bf16();
  ops().engram_write(matrix(kv, rows), units()["engram_gate.q_weight"].bf16().data(),
                     units()["engram_gate.k_weight"].bf16().data(),
                     units()["engram_gate.alive"].bytes, 4, kEps, matrix(streams, rows), {});
  expect_bf16("engram_gate", streams, units()["engram_gate.out"].bf16());
}

TEST(GoldenUnits, Router) {
  std::vector<Bf16> x = units()["router.x"].bf16();
  const int64_t rows = units()["router.x"].dim(0);
  const Tensor& weight = units()["router.weight"];
  const std::vector<float> bias = units()["router.bias"].f32();
  const std::vector<float> bias_vl = units()["router.bias_vl"].f32();
  std::vector<const float*> bias_of_row;
  for (const uint8_t is_image : units()["router.is_image"].bytes) {
    bias_of_row.push_back(is_image != 0 ? bias_vl.data() : bias.data());
  }
  std::vector<int32_t> experts(static_cast<size_t>(rows * 4));
  std::vector<float> weights(static_cast<size_t>(rows * 4));
  const kernels::WeightView gate = {WeightFormat::kBf16, weight.dim(0), weight.dim(1),
                                    weight.bytes.data(), nullptr};
  ops().route(matrix(x, rows), gate, bias_of_row, {.top_k = 4, .scale = 1.5F},
              matrix(experts, rows), matrix(weights, rows), nullptr);
  EXPECT_EQ(experts, units()["router.experts"].values<int32_t>());
  expect_relative("router.weights", weights, units()["router.weights"].f32(), kF32Relative);
}

TEST(GoldenUnits, Swiglu) {
  const std::vector<float> gate = units()["swiglu.gate"].f32();
  const std::vector<float> up = units()["swiglu.up"].f32();
  std::vector<float> out;
  for (size_t i = 0; i < gate.size(); ++i) {
    out.push_back(kernels::plain::swiglu(gate[i], up[i], 10.0F));
  }
  expect_relative("swiglu", out, units()["swiglu.out_limit10"].f32(), kF32Relative);
}

TEST(GoldenUnits, Attention) {
  const std::vector<float> kv = to_f32(units()["attn.kv"].bf16());
  const std::vector<float> q = to_f32(units()["attn.q"].bf16());
  const std::vector<float> sink = units()["attn.sink"].f32();
  const std::vector<int32_t> indices = units()["attn.indices"].values<int32_t>();
  const int64_t queries = units()["attn.q"].dim(0);
  const int64_t heads = units()["attn.q"].dim(1);
  const int64_t width = units()["attn.q"].dim(2);
  const int64_t slots = units()["attn.indices"].dim(1);
  std::vector<Bf16> out(q.size());
  for (int64_t t = 0; t < queries; ++t) {
    std::vector<float> keys(static_cast<size_t>(slots * width));
    std::vector<uint8_t> present(static_cast<size_t>(slots));
    for (int64_t slot = 0; slot < slots; ++slot) {
      const int32_t index = indices[t * slots + slot];
      if (index < 0) continue;
      present[slot] = 1;
      std::copy_n(kv.data() + index * width, width, keys.data() + slot * width);
    }
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t at = (t * heads + head) * width;
      kernels::plain::attend(q.data() + at, keys.data(), present.data(), slots, width, sink[head],
                             out.data() + at);
    }
  }
  expect_bf16("attn.out", out, units()["attn.out"].bf16());
}

TEST(GoldenUnits, CandidatePool) {
  const std::vector<float> scores = units()["candidates.scores"].f32();
  const std::vector<int64_t> visible = units()["candidates.visible"].values<int64_t>();
  const int64_t entries = units()["candidates.scores"].dim(1);
  std::vector<uint8_t> keep(scores.size(), 0);
  for (size_t r = 0; r < visible.size(); ++r) {
    const float* row = scores.data() + static_cast<int64_t>(r) * entries;
    const std::vector<float> seen(row, row + visible[r]);
    // The mask keeps whole blocks; visibility is another mask.
    for (const int32_t block : kernels::plain::best_blocks(seen, 8, 3)) {
      for (int64_t j = block * 8; j < std::min<int64_t>((block + 1) * 8, entries); ++j) {
        keep[static_cast<int64_t>(r) * entries + j] = 1;
      }
    }
  }
  expect_bytes("candidates", keep, units()["candidates.keep_3_blocks_of_8"].bytes);
}

TEST(GoldenUnits, Compressor) {
  std::vector<Bf16> x = units()["compressor.x"].bf16();
  const int64_t rows = units()["compressor.x"].dim(0);
  const int64_t width = units()["compressor.wkv"].dim(0);
  std::vector<float> kv(static_cast<size_t>(rows * width));
  std::vector<float> gate(kv.size());
  const auto weight = [&](const char* name) {
    const Tensor& tensor = units()[name];
    return kernels::WeightView{WeightFormat::kBf16, width, tensor.dim(1), tensor.bytes.data(),
                               nullptr};
  };
  const kernels::Product products[2] = {
      {weight("compressor.wkv"), false, {}, matrix(kv, rows)},
      {weight("compressor.wgate"), false, {}, matrix(gate, rows)}};
  ops().linear(matrix(x, rows), products);
  const int64_t groups = rows / 2;
  std::vector<Bf16> latent(static_cast<size_t>(groups * width));
  ops().compress(matrix(kv, rows).slice(0, groups * 2), matrix(gate, rows).slice(0, groups * 2), 2,
                 units()["compressor.norm"].bf16().data(), kEps, matrix(latent, groups));
  expect_bf16("compressor.latent", latent, units()["compressor.latent"].bf16());
  // An f32 GEMM: other summation orders move single elements near zero by more than 1e-6.
  const auto last = [&](const std::vector<float>& all) {
    return std::vector<float>(all.end() - width, all.end());
  };
  expect_relative("pending kv", last(kv), units()["compressor.pending_kv"].f32(), kF32Relative,
                  1e-6);
  expect_relative("pending gate", last(gate), units()["compressor.pending_gate"].f32(),
                  kF32Relative, 1e-6);
}

}  // namespace
}  // namespace galley::golden
