// The whole model against DeepSeek's reference code, quickly: last-row and
// all-row logits, the stored greedy run through the decode path, Engram rows, and
// each layer alone. `galley verify` checks everything with the full table of
// limits; this stays fast enough to run at every change of the step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "driver.h"
#include "golden_file.h"
#include "kernels/number_formats.h"

namespace galley::testing {
namespace {

using kernels::Bf16;
using kernels::Rows;

std::string directory(const std::string& name) {
  return std::string(GALLEY_SOURCE_DIR) + "/tests/golden/" + name;
}

double relative_rms(const std::vector<Logits>& rows, const std::vector<float>& expected) {
  double difference = 0.0;
  double sum = 0.0;
  double squares = 0.0;
  size_t at = 0;
  for (const Logits& row : rows) {
    for (const float value : row) {
      const double e = expected.at(at++);
      difference += (value - e) * (value - e);
      sum += e;
      squares += e * e;
    }
  }
  const auto count = static_cast<double>(at);
  const double deviation = std::sqrt(squares / count - sum / count * sum / count);
  return std::sqrt(difference / count) / deviation;
}

class Golden : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  Golden()
      : model_(golden_model(name())),
        expected_(directory(name()) + "/expected/expected.safetensors"),
        trace_(directory(name()) + "/expected/trace.safetensors") {
    std::ifstream(directory(name()) + "/expected/cases.json") >> cases_;
    nlohmann::json all;
    std::ifstream(std::string(GALLEY_SOURCE_DIR) + "/tests/golden/tolerances.json") >> all;
    limits_ = all[name()][ops() == "plain" ? "reference_rounding" : "production"];
  }

  std::string name() const { return std::get<0>(GetParam()); }
  std::string ops() const { return std::get<1>(GetParam()); }

  std::vector<int32_t> tokens(const std::string& case_name) const {
    for (const auto& one : cases_["cases"]) {
      if (one["name"] == case_name) return one["tokens"].get<std::vector<int32_t>>();
    }
    return {};
  }

  DriverOptions options() const {
    return {.ops = ops(), .threads = 2, .replay = model::DecoderReplay::kOff};
  }

  std::unique_ptr<model::Model> model_;
  golden::File expected_;
  golden::File trace_;
  nlohmann::json cases_;
  nlohmann::json limits_;
};

TEST_P(Golden, LastLogits) {
  double short_sum = 0.0;
  double long_sum = 0.0;
  int short_count = 0;
  int long_count = 0;
  const int64_t short_length = limits_["last_logits_short"]["up_to_length"];
  for (const auto& one : cases_["cases"]) {
    if (one["kind"] != "text") continue;
    const std::string case_name = one["name"];
    Driver driver(*model_, options());
    Sequence sequence = driver.start(tokens(case_name));
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    const double error = relative_rms(driver.prefill(sequence, {length}, false),
                                      expected_[case_name + ".logits_last"].f32());
    const bool is_short = length <= short_length;
    (is_short ? short_sum : long_sum) += error;
    ++(is_short ? short_count : long_count);
    EXPECT_LT(
        error,
        limits_[is_short ? "last_logits_short" : "last_logits_long"]["each_rel_rms"].get<double>())
        << case_name;
  }
  RecordProperty("short_mean", std::to_string(short_sum / short_count));
  RecordProperty("long_mean", std::to_string(long_sum / long_count));
  std::printf("%s %s: relative RMS, mean: short %.4f, long %.4f\n", name().c_str(), ops().c_str(),
              short_sum / short_count, long_sum / long_count);
  EXPECT_LT(short_sum / short_count, limits_["last_logits_short"]["mean_rel_rms"].get<double>());
  EXPECT_LT(long_sum / long_count, limits_["last_logits_long"]["mean_rel_rms"].get<double>());
}

TEST_P(Golden, AllLogits) {
  for (const std::string case_name : {"len33", "len101"}) {
    Driver driver(*model_, options());
    Sequence sequence = driver.start(tokens(case_name));
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    const double error = relative_rms(driver.prefill(sequence, {length}),
                                      expected_[case_name + ".logits_all"].f32());
    EXPECT_LT(error, limits_["row_sets"]["rel_rms"].get<double>()) << case_name;
  }
}

TEST_P(Golden, GreedyRunThroughDecode) {
  for (const std::string case_name : {"len17", "len101", "len100"}) {
    const auto fields = [&] {
      for (const auto& one : cases_["cases"]) {
        if (one["name"] == case_name) return one["fields"];
      }
      return nlohmann::json();
    }();
    if (std::ranges::find(fields, "decode_tokens") == fields.end()) continue;
    Driver driver(*model_, options());
    const auto greedy = expected_[case_name + ".decode_tokens"].values<int32_t>();
    std::vector<int32_t> all = tokens(case_name);
    const auto length = static_cast<int64_t>(all.size());
    all.insert(all.end(), greedy.begin(), greedy.end());
    Sequence sequence = driver.start(all);
    sequence.prompt_end = length;
    std::vector<Logits> rows = driver.prefill(sequence, {length}, false);
    for (int64_t t = length; t + 1 < length + static_cast<int64_t>(greedy.size()); ++t) {
      rows.push_back(driver
                         .run({.sequence = &sequence,
                               .begin = t,
                               .end = t + 1,
                               .kind = model::RowKind::kDecode})
                         .front());
    }
    const double error = relative_rms(rows, expected_[case_name + ".decode_logits"].f32());
    std::printf("%s %s %s: decode relative RMS %.4f\n", name().c_str(), ops().c_str(),
                case_name.c_str(), error);
    EXPECT_LT(error, limits_["row_sets"]["rel_rms"].get<double>()) << case_name;
  }
}

class EngramRowsObserver : public model::StepObserver {
 public:
  void engram(int32_t, const model::ObservedRows&, kernels::Rows<const int64_t> ids, F32Rows,
              Bf16Rows) override {
    std::vector<int64_t>& layer = rows.emplace_back();
    for (int64_t r = 0; r < ids.rows; ++r) {
      layer.insert(layer.end(), ids.row(r), ids.row(r) + ids.cols);
    }
  }
  std::vector<std::vector<int64_t>> rows;  // per Engram layer
};

TEST_P(Golden, EngramRows) {
  Driver driver(*model_, options());
  Sequence sequence = driver.start(tokens("len71"));
  EngramRowsObserver observer;
  driver.set_observer(&observer);
  driver.prefill(sequence, {71});
  const auto expected = trace_["trace71.engram_rows"].values<int32_t>();
  const auto layers = observer.rows.size();
  const size_t columns = observer.rows.front().size() / 71;
  ASSERT_EQ(expected.size(), 71 * layers * columns);
  for (size_t t = 0; t < 71; ++t) {
    for (size_t layer = 0; layer < layers; ++layer) {
      for (size_t column = 0; column < columns; ++column) {
        EXPECT_EQ(observer.rows[layer][t * columns + column],
                  expected[(t * layers + layer) * columns + column]);
      }
    }
  }
}

// Feeds each layer the reference's inputs; per token the largest relative error
// over the streams.
TEST_P(Golden, EachLayerAlone) {
  if (name() == "g2-micro-full") GTEST_SKIP() << "g2 stores no streams";
  Driver driver(*model_, options());
  Sequence sequence = driver.start(tokens("len71"));
  const model::Config& config = model_->config();
  const model::SequencePlan plan = driver.plan({.sequence = &sequence, .begin = 0, .end = 71});
  const int64_t width = int64_t{config.streams} * config.hidden;

  std::vector<Bf16> streams;
  const std::vector<Bf16> embedded = trace_["trace71.embed_in"].bf16();
  for (int64_t t = 0; t < 71; ++t) {
    for (int32_t n = 0; n < config.streams; ++n) {
      const auto begin = embedded.begin() + t * config.hidden;
      streams.insert(streams.end(), begin, begin + config.hidden);
    }
  }
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const std::string tag = "trace71.layer" + std::to_string(layer);
    const model::LayerRole& role = config.roles[static_cast<size_t>(layer)];
    std::vector<float> pre = trace_[tag + ".pre_in"].f32();
    model::LayerInputs inputs{.layer = layer,
                              .streams = {streams.data(), 71, width},
                              .pre_in = {pre.data(), 71, config.streams},
                              .compress_kv = {},
                              .index_key = {},
                              .selected = {},
                              .candidates = {}};
    std::vector<Bf16> kv;
    std::vector<Bf16> keys;
    std::vector<int32_t> selected;
    std::vector<uint8_t> candidates;
    if (role.ratio > 0) {
      const std::string source = "trace71.layer" + std::to_string(role.kv_source);
      const int64_t entries = 71 / role.ratio;
      kv = trace_[source + ".compress_kv"].bf16();
      keys = trace_[source + ".index_key"].bf16();
      inputs.compress_kv = {kv.data(), entries, config.head_dim};
      inputs.index_key = {keys.data(), entries, config.index_head_dim};
      const auto stored = trace_["trace71.layer" + std::to_string(role.index_source) + ".selected"]
                              .values<int16_t>();
      selected.assign(stored.begin(), stored.end());
      inputs.selected = {selected.data(), 71, static_cast<int64_t>(selected.size()) / 71};
      if (role.reads_pool) {
        candidates =
            trace_["trace71.layer" + std::to_string(config.candidate_source) + ".candidates"]
                .values<uint8_t>();
        inputs.candidates = {candidates.data(), 71, 71};
      }
    }
    std::vector<Bf16> out(streams.size());
    std::vector<float> pre_out(pre.size());
    const auto ran = driver.forward().run_layer(plan, inputs, {out.data(), 71, width},
                                                {pre_out.data(), 71, config.streams});
    ASSERT_TRUE(ran) << ran.error().message;

    const std::vector<Bf16> expected = trace_[tag + ".streams_out"].bf16();
    std::vector<double> errors;
    for (int64_t t = 0; t < 71; ++t) {
      double worst = 0.0;
      for (int32_t n = 0; n < config.streams; ++n) {
        double difference = 0.0;
        double norm = 0.0;
        for (int64_t i = 0; i < config.hidden; ++i) {
          const auto at = static_cast<size_t>(t * width + n * config.hidden + i);
          const double e = kernels::to_f32(expected[at]);
          difference += std::pow(kernels::to_f32(out[at]) - e, 2);
          norm += e * e;
        }
        worst = std::max(worst, std::sqrt(difference / norm));
      }
      errors.push_back(worst);
    }
    std::ranges::sort(errors);
    const double limit =
        limits_["isolated_layer"]["median"]["layer" + std::to_string(layer)].get<double>();
    std::printf("%s %s layer %d: median %.5f (limit %.4f), largest %.5f\n", name().c_str(),
                ops().c_str(), layer, errors[35], limit, errors.back());
    EXPECT_LE(errors[35], limit) << "layer " << layer;
    streams = expected;
  }
}

std::vector<std::tuple<std::string, std::string>> parameters() {
  std::vector<std::tuple<std::string, std::string>> all;
  for (const std::string name : {"g1-micro-text", "g2-micro-full"}) {
    for (const std::string& ops : ops_names()) all.emplace_back(name, ops);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Golden, ::testing::ValuesIn(parameters()), [](const auto& parameter) {
  std::string text = std::get<0>(parameter.param) + "_" + std::get<1>(parameter.param);
  std::ranges::replace(text, '-', '_');
  return text;
});

}  // namespace
}  // namespace galley::testing
