#include "verify/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/sites.h"
#include "verify/state.h"
#include "verify/statistics.h"

namespace galley::verify {

namespace {

Result<void> check_embedding(Context& context, const std::string& tag, int64_t length,
                             const Captured& captured) {
  const model::Config& config = context.config();
  const auto stored = TRY(context.golden.trace->floats(tag + ".embed_in", {length, config.hidden}));
  if (!stored) {
    context.report.absent(kTrace, tag + " embed_in");
    return {};
  }
  int64_t different = 0;
  for (int64_t t = 0; t < length; ++t) {
    const auto row = captured.embedded.row(t);
    for (size_t i = 0; i < row.size(); ++i) {
      different += row[i] != stored->row(t)[i % static_cast<size_t>(config.hidden)];
    }
  }
  context.report.judge_equal(kTrace, tag + " embed_in", different,
                             static_cast<int64_t>(captured.embedded.values.size()));
  return {};
}

Result<void> check_engram_rows(Context& context, const std::string& tag, int64_t length,
                               const Captured& captured) {
  const model::EngramHash& hash = context.model.engram_hash();
  if (hash.layer_count() == 0) return {};
  const auto stored = TRY(context.golden.trace->integers(
      tag + ".engram_rows", {length, hash.layer_count(), hash.columns()}));
  if (!stored) {
    context.report.absent(kTrace, tag + " engram_rows");
    return {};
  }
  int64_t different = 0;
  for (const auto& [layer, values] : captured.layers) {
    const int32_t index = context.config().roles[static_cast<size_t>(layer)].engram_index;
    if (index < 0) continue;
    for (int64_t t = 0; t < length; ++t) {
      const auto row = values.engram_rows.row(t);
      for (int64_t c = 0; c < hash.columns(); ++c) {
        different += row[static_cast<size_t>(c)] != stored->row(t)[index * hash.columns() + c];
      }
    }
  }
  context.report.judge_equal(kTrace, tag + " engram_rows", different,
                             static_cast<int64_t>(stored->values.size()));
  return {};
}

void inform(Context& context, const std::string& tag, int32_t layer, std::string_view what,
            std::vector<Measure> measures) {
  Check check;
  check.section = kTrace;
  check.subject = fmt::format("{} layer{} {}", tag, layer, what);
  check.layer = layer;
  check.measures = std::move(measures);
  context.report.inform(std::move(check));
}

Result<void> inform_choices(Context& context, const std::string& tag, int32_t layer, int64_t length,
                            const CapturedLayer& captured) {
  const GoldenFile& file = *context.golden.trace;
  const model::Config& config = context.config();
  std::vector<Measure> measures;
  const auto experts = TRY(file.integers(layer_tensor(tag, layer, "router_experts"),
                                         {length, config.experts_per_token}));
  if (experts) {
    int64_t different = 0;
    for (int64_t t = 0; t < length; ++t) {
      const auto row = captured.router_experts.row(t);
      different += !std::equal(row.begin(), row.end(), experts->row(t));
    }
    measures.push_back({"router flips", static_cast<double>(different)});
  }
  const auto gate =
      TRY(file.floats(layer_tensor(tag, layer, "engram_gate"), {length, config.streams}));
  if (gate && captured.engram_gate.rows() == length) {
    double worst = 0;
    for (size_t i = 0; i < gate->values.size(); ++i) {
      worst = std::max(
          worst, std::fabs(static_cast<double>(captured.engram_gate.values[i]) - gate->values[i]));
    }
    measures.push_back({"worst engram gate", worst});
  }
  for (const char* suffix : {"", "_last32"}) {
    const auto selected = TRY(
        file.integers(layer_tensor(tag, layer, fmt::format("selected{}", suffix)), {kAny, kAny}));
    if (!selected || captured.index.empty()) continue;
    const int64_t rows = selected->rows();
    if (rows > length) {
      return Error{ErrorCode::kCorrupt, fmt::format("{}: {}.layer{}.selected{} has {} rows of {}",
                                                    file.path(), tag, layer, suffix, rows, length)};
    }
    double overlap = 0;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<int32_t> stored;
      for (int64_t i = 0; i < selected->cols(); ++i) {
        if (selected->row(r)[i] >= 0) stored.push_back(static_cast<int32_t>(selected->row(r)[i]));
      }
      const auto& measured = captured.index[static_cast<size_t>(length - rows + r)].selected;
      std::vector<int32_t> both;
      std::set_intersection(measured.begin(), measured.end(), stored.begin(), stored.end(),
                            std::back_inserter(both));
      overlap += stored.empty() ? 1.0
                                : static_cast<double>(both.size()) /
                                      static_cast<double>(std::max(stored.size(), measured.size()));
    }
    measures.push_back({"selection overlap", rows == 0 ? 1 : overlap / static_cast<double>(rows)});
  }
  if (!measures.empty()) inform(context, tag, layer, "choices", std::move(measures));
  return {};
}

Result<void> inform_states(Context& context, const std::string& tag, int32_t layer,
                           int64_t length) {
  const GoldenFile& file = *context.golden.trace;
  const model::LayerRole& role = context.config().roles[static_cast<size_t>(layer)];
  const auto subject = [&](const char* what) {
    return fmt::format("{} layer{} {}", tag, layer, what);
  };
  if (role.owns_kv) {
    const int64_t entries = length / role.ratio;
    const auto kv =
        TRY(compare_entries(context.runner, file, layer_tensor(tag, layer, "compress_kv"),
                            model::RecordKind::kGlobal, layer, entries));
    if (kv) inform_records(context, kTrace, subject("compress_kv"), layer, *kv);
    const auto keys =
        TRY(compare_entries(context.runner, file, layer_tensor(tag, layer, "index_key"),
                            model::RecordKind::kIndex, layer, entries));
    if (keys) inform_records(context, kTrace, subject("index_key"), layer, *keys);
    if (length % role.ratio != 0) {
      const auto pending = TRY(compare_pending(
          context.runner, file, layer_tensor(tag, layer, "pending_kv"), layer, 0, length));
      if (pending) inform(context, tag, layer, "pending_kv", {{"error", *pending}});
    }
  }
  const auto ring = TRY(
      compare_ring(context.runner, file, layer_tensor(tag, layer, "window_ring"), layer, length));
  if (ring) inform_records(context, kTrace, subject("window_ring"), layer, *ring);
  return {};
}

}  // namespace

void inform_records(Context& context, const char* section, std::string subject, int32_t layer,
                    const RecordDifference& difference) {
  Check check;
  check.section = section;
  check.subject = std::move(subject);
  check.layer = layer;
  check.measures = state_measures(difference);
  for (Measure& measure : check.measures) {
    measure.limit.reset();
    measure.judged = false;
  }
  context.report.inform(std::move(check));
}

Result<void> check_text_rows(Context& context, const GoldenCase& one,
                             const Table<kernels::Bf16>& embed_in) {
  const kernels::WeightView& embed = context.model.weights().embed;
  if (embed.format != kernels::WeightFormat::kBf16) return {};
  const auto* table = static_cast<const kernels::Bf16*>(embed.data);
  int64_t different = 0;
  int64_t total = 0;
  for (size_t t = 0; t < one.tokens.size(); ++t) {
    if (one.token_types[t] >= 0) continue;
    const kernels::Bf16* row = table + one.tokens[t] * embed.in;
    const kernels::Bf16* stored = embed_in.row(static_cast<int64_t>(t));
    for (int64_t i = 0; i < embed.in; ++i, ++total) different += row[i].bits != stored[i].bits;
  }
  context.report.judge_equal(kWholeModel, one.name + " embed_in of text", different, total);
  return {};
}

Result<void> inform_trace(Context& context, const std::string& tag, int64_t length,
                          const Captured& captured) {
  TRY(check_embedding(context, tag, length, captured));
  TRY(check_engram_rows(context, tag, length, captured));
  for (const auto& [layer, values] : captured.layers) {
    TRY(inform_sites(context, kTrace, tag, layer, values));
    TRY(inform_choices(context, tag, layer, length, values));
    TRY(inform_states(context, tag, layer, length));
  }
  return {};
}

}  // namespace galley::verify
