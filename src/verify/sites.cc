#include "verify/sites.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/statistics.h"

namespace galley::verify {

namespace {

constexpr double kSuspectError = 0.01;  // where tolerances.json gives no limit for the layer

// Median over the tokens of the relative error of the first channels.
double first_channels(const FloatRows& measured, const Table<float>& expected) {
  std::vector<double> errors;
  const auto count = static_cast<size_t>(expected.cols());
  for (int64_t t = 0; t < expected.rows(); ++t) {
    errors.push_back(relative_error(measured.row(t).first(count), {expected.row(t), count}));
  }
  return quantile(std::move(errors), 0.5);
}

// Median over tokens and streams of the relative error of the mean magnitude.
double mean_magnitude(const FloatRows& measured, const Table<float>& expected) {
  std::vector<double> errors;
  const int64_t parts = expected.cols();
  const int64_t width = measured.cols / parts;
  for (int64_t t = 0; t < expected.rows(); ++t) {
    for (int64_t part = 0; part < parts; ++part) {
      double sum = 0;
      for (const float value :
           measured.row(t).subspan(static_cast<size_t>(part * width), static_cast<size_t>(width))) {
        sum += std::fabs(static_cast<double>(value));
      }
      const double stored = expected.row(t)[part];
      const double difference = std::fabs(sum / static_cast<double>(width) - stored);
      errors.push_back(stored == 0 ? difference : difference / std::fabs(stored));
    }
  }
  return quantile(std::move(errors), 0.5);
}

}  // namespace

Result<void> inform_sites(Context& context, const char* section, const std::string& tag,
                          int32_t layer, const CapturedLayer& captured) {
  const GoldenFile& file = *context.golden.trace;
  const model::Config& config = context.config();
  Check check;
  check.section = section;
  check.subject = fmt::format("{} layer{} sites", tag, layer);
  check.layer = layer;
  struct Site {
    const char* name;
    const FloatRows* rows;
    int64_t parts;
  };
  const Site sites[] = {{"engram_out", &captured.engram_out, config.streams},
                        {"attn_in", &captured.attn_in, 1},
                        {"attn_out", &captured.attn_out, 1},
                        {"ffn_in", &captured.ffn_in, 1},
                        {"ffn_out", &captured.ffn_out, 1},
                        {"streams_out", &captured.streams_out, config.streams}};
  for (const Site& site : sites) {
    if (site.rows->rows() == 0) continue;
    const int64_t length = site.rows->rows();
    if (site.parts == 1) {
      const auto first = TRY(file.floats(
          layer_tensor(tag, layer, fmt::format("{}.first", site.name)), {length, kAny}));
      if (first && first->cols() <= site.rows->cols) {
        check.measures.push_back({site.name, first_channels(*site.rows, *first)});
      }
      continue;
    }
    const auto magnitude = TRY(file.floats(
        layer_tensor(tag, layer, fmt::format("{}.absmean", site.name)), {length, site.parts}));
    if (magnitude) {
      check.measures.push_back(
          {fmt::format("|{}|", site.name), mean_magnitude(*site.rows, *magnitude)});
    }
  }
  double bound = kSuspectError;
  if (context.limits) {
    const auto limit = context.limits->layer_median.find(layer);
    if (limit != context.limits->layer_median.end()) bound = limit->second;
  }
  for (const Measure& measure : check.measures) check.suspect |= !(measure.value <= bound);
  if (!check.measures.empty()) context.report.inform(std::move(check));
  return {};
}

}  // namespace galley::verify
