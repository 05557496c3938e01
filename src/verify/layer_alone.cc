// Step 2 and 3 of the golden README: each layer fed with stored inputs, so that
// a deviation belongs to the layer that shows it.
//
// A layer gets the streams, the carried mix and what its sources published, as
// the reference stored them; its own compressed KV it makes itself, its own
// choice of entries is judged and then replaced by the stored one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/number_formats.h"
#include "verify/captured.h"
#include "verify/context.h"
#include "verify/selection.h"
#include "verify/sites.h"
#include "verify/state.h"
#include "verify/statistics.h"

namespace galley::verify {

namespace {

using kernels::Bf16;

constexpr double kSmallMargin = 0.005;  // router margins below it may flip an expert
constexpr double kFarRow = 0.06;

// One trace case and one layer of it.
struct Subject {
  std::string tag;
  int32_t layer = 0;
  int64_t length = 0;

  std::string tensor(std::string_view what) const { return layer_tensor(tag, layer, what); }
  std::string name(std::string_view what) const {
    return fmt::format("{} layer{} {}", tag, layer, what);
  }
};

// Everything the layer is fed with; `missing` names the first tensor that is not there.
struct Feed {
  std::string missing;
  std::vector<Bf16> streams;
  Table<float> pre_in;
  Table<Bf16> compress_kv;
  Table<Bf16> index_key;
  std::vector<int32_t> selected;
  int64_t selected_cols = 0;
  std::vector<uint8_t> candidates;
  int64_t entries = 0;
  model::LayerInputs inputs;
};

// `value` moved out of its optional, or its name noted as missing.
template <class T>
void need(std::optional<Table<T>> value, const std::string& name, Table<T>& place, Feed& feed) {
  if (value) {
    place = std::move(*value);
  } else if (feed.missing.empty()) {
    feed.missing = name;
  }
}

Result<void> feed_streams(const Context& context, const Subject& subject, Feed& feed) {
  const model::Config& config = context.config();
  const int64_t streams = config.streams;
  const int64_t hidden = config.hidden;
  const GoldenFile& file = *context.golden.trace;
  Table<Bf16> table;
  if (subject.layer == 0) {
    const std::string name = subject.tag + ".embed_in";
    need(TRY(file.bf16(name, {subject.length, hidden})), name, table, feed);
    if (!feed.missing.empty()) return {};
    for (int64_t row = 0; row < subject.length; ++row) {
      for (int64_t copy = 0; copy < streams; ++copy) {
        feed.streams.insert(feed.streams.end(), table.row(row), table.row(row) + hidden);
      }
    }
  } else {
    const std::string name = layer_tensor(subject.tag, subject.layer - 1, "streams_out");
    need(TRY(file.bf16(name, {subject.length, streams, hidden})), name, table, feed);
    feed.streams = std::move(table.values);
  }
  const std::string name = subject.tensor("pre_in");
  need(TRY(file.floats(name, {subject.length, streams})), name, feed.pre_in, feed);
  return {};
}

Result<void> feed_sources(const Context& context, const Subject& subject, Feed& feed) {
  const model::Config& config = context.config();
  const model::LayerRole& role = config.roles[static_cast<size_t>(subject.layer)];
  const GoldenFile& file = *context.golden.trace;
  feed.entries = subject.length / role.ratio;
  if (!role.owns_kv) {
    std::string name = layer_tensor(subject.tag, role.kv_source, "compress_kv");
    need(TRY(file.bf16(name, {feed.entries, config.head_dim})), name, feed.compress_kv, feed);
    if (role.owns_indexer) {
      name = layer_tensor(subject.tag, role.kv_source, "index_key");
      need(TRY(file.bf16(name, {feed.entries, config.index_head_dim})), name, feed.index_key, feed);
    }
  }
  Table<int64_t> table;
  std::string name = layer_tensor(subject.tag, role.index_source, "selected");
  need(TRY(file.integers(name, {subject.length, kAny})), name, table, feed);
  feed.selected.assign(table.values.begin(), table.values.end());
  feed.selected_cols = table.cols();
  for (const int32_t entry : feed.selected) {
    if (entry < -1 || entry >= feed.entries) {
      return Error{ErrorCode::kCorrupt, fmt::format("{}: {} selects entry {} of {}", file.path(),
                                                    name, entry, feed.entries)};
    }
  }
  if (role.reads_pool) {
    name = layer_tensor(subject.tag, config.candidate_source, "candidates");
    need(TRY(file.integers(name, {subject.length, feed.entries})), name, table, feed);
    feed.candidates.assign(table.values.begin(), table.values.end());
  }
  return {};
}

Result<Feed> read_feed(const Context& context, const Subject& subject) {
  const model::Config& config = context.config();
  const model::LayerRole& role = config.roles[static_cast<size_t>(subject.layer)];
  Feed feed;
  TRY(feed_streams(context, subject, feed));
  if (role.ratio > 0) TRY(feed_sources(context, subject, feed));
  return feed;
}

// Views of the feed; it must stay where it is.
model::LayerInputs inputs_of(const Feed& feed, const model::Config& config,
                             const Subject& subject) {
  model::LayerInputs inputs;
  inputs.layer = subject.layer;
  inputs.streams = {feed.streams.data(), subject.length,
                    static_cast<int64_t>(config.streams) * config.hidden};
  inputs.pre_in = feed.pre_in.view();
  inputs.compress_kv = {feed.compress_kv.values.data(),
                        feed.compress_kv.values.empty() ? 0 : feed.entries, config.head_dim};
  inputs.index_key = {feed.index_key.values.data(),
                      feed.index_key.values.empty() ? 0 : feed.entries, config.index_head_dim};
  if (feed.selected_cols > 0) {
    inputs.selected = {feed.selected.data(), subject.length, feed.selected_cols};
  }
  if (!feed.candidates.empty()) {
    inputs.candidates = {feed.candidates.data(), subject.length, feed.entries};
  }
  return inputs;
}

// Per token the largest relative error of a stream, judged as README 2 says.
void judge_rows(Context& context, const Subject& subject, std::string_view what,
                const std::vector<double>& errors, const std::vector<float>& margins,
                bool whole_rule) {
  std::vector<double> steady;  // tokens whose experts cannot flip
  for (size_t t = 0; t < errors.size(); ++t) {
    if (margins.empty() || margins[t] >= static_cast<float>(kSmallMargin)) {
      steady.push_back(errors[t]);
    }
  }
  Limit median;
  Limit p99;
  Limit row;
  Limit far;
  if (context.limits) {
    const auto found = context.limits->layer_median.find(subject.layer);
    if (found != context.limits->layer_median.end()) median = found->second;
    p99 = context.limits->layer_p99;
    row = context.limits->layer_row_max;
    far = context.limits->layer_rows_over_0p06;
  }
  Check check;
  check.section = kLayerAlone;
  check.subject = subject.name(what);
  check.layer = subject.layer;
  check.measures = {{"median", quantile(errors, 0.5), median},
                    {"p99", quantile(steady, 0.99), p99}};
  if (whole_rule) {
    check.measures.push_back({"max", largest(steady), row});
    check.measures.push_back({"over 0.06", share_above(errors, kFarRow), far});
  }
  if (margins.empty()) check.note = "no router_margin: every token counts";
  context.report.judge(std::move(check));
}

std::vector<double> row_errors(const FloatRows& measured, const Table<float>& expected,
                               int64_t parts) {
  std::vector<double> errors;
  const auto cols = static_cast<size_t>(expected.cols());
  for (int64_t t = 0; t < expected.rows(); ++t) {
    errors.push_back(worst_part_error(measured.row(t), {expected.row(t), cols}, parts));
  }
  return errors;
}

Result<void> judge_streams(Context& context, const Subject& subject, const CapturedLayer& captured,
                           const std::vector<float>& margins) {
  const model::Config& config = context.config();
  const GoldenFile& file = *context.golden.trace;
  const Dims dims = {subject.length, config.streams, config.hidden};
  if (config.roles[static_cast<size_t>(subject.layer)].engram_index >= 0) {
    const auto engram = TRY(file.floats(subject.tensor("engram_out"), dims));
    if (engram) {
      judge_rows(context, subject, "engram_out",
                 row_errors(captured.engram_out, *engram, config.streams), {}, false);
    } else {
      context.report.absent(kLayerAlone, subject.name("engram_out"));
    }
  }
  const auto streams = TRY(file.floats(subject.tensor("streams_out"), dims));
  if (streams) {
    judge_rows(context, subject, "streams",
               row_errors(captured.streams_out, *streams, config.streams), margins, true);
  } else {
    context.report.absent(kLayerAlone, subject.name("streams"));
  }
  if (subject.layer + 1 < config.layers) {
    const auto pre = TRY(file.floats(layer_tensor(subject.tag, subject.layer + 1, "pre_in"),
                                     {subject.length, config.streams}));
    if (pre) {
      judge_rows(context, subject, "mix handed on", row_errors(captured.pre_out, *pre, 1), margins,
                 false);
    } else {
      context.report.absent(kLayerAlone, subject.name("mix handed on"));
    }
  }
  return {};
}

Result<void> judge_router(Context& context, const Subject& subject, const CapturedLayer& captured,
                          const std::vector<float>& margins) {
  const GoldenFile& file = *context.golden.trace;
  const int64_t top_k = context.config().experts_per_token;
  const auto experts =
      TRY(file.integers(subject.tensor("router_experts"), {subject.length, top_k}));
  const auto weights = TRY(file.floats(subject.tensor("router_weights"), {subject.length, top_k}));
  if (!experts) {
    context.report.absent(kLayerAlone, subject.name("router"));
    return {};
  }
  int64_t near = 0;
  int64_t illegitimate = 0;
  double worst_weight = 0;
  for (int64_t t = 0; t < subject.length; ++t) {
    const auto measured = captured.router_experts.row(t);
    if (!std::equal(measured.begin(), measured.end(), experts->row(t))) {
      const bool small =
          !margins.empty() && margins[static_cast<size_t>(t)] < static_cast<float>(kSmallMargin);
      (small ? near : illegitimate) += 1;
    } else if (weights) {
      worst_weight =
          std::max(worst_weight, relative_error(captured.router_weights.row(t),
                                                {weights->row(t), static_cast<size_t>(top_k)}));
    }
  }
  Check check;
  check.section = kLayerAlone;
  check.subject = subject.name("router");
  check.layer = subject.layer;
  check.measures = {{"flips", static_cast<double>(illegitimate), 0.0},
                    {"near-tie flips", static_cast<double>(near), std::nullopt, false},
                    {"worst weight error", worst_weight, std::nullopt, false}};
  context.report.judge(std::move(check));
  return {};
}

// Entries of row `t` that are not the empty slot.
std::vector<int32_t> chosen_entries(const Table<int64_t>& selected, int64_t t) {
  std::vector<int32_t> entries;
  for (int64_t i = 0; i < selected.cols(); ++i) {
    if (selected.row(t)[i] >= 0) entries.push_back(static_cast<int32_t>(selected.row(t)[i]));
  }
  return entries;
}

void judge_choice(Context& context, const Subject& subject, std::string_view what,
                  const ChoiceDifference& difference, double score_error) {
  Check check;
  check.section = kLayerAlone;
  check.subject = subject.name(what);
  check.layer = subject.layer;
  check.measures = {{"not near-ties", static_cast<double>(difference.illegitimate), 0.0},
                    {"different", static_cast<double>(difference.different), std::nullopt, false},
                    {"mean overlap", difference.overlap(), std::nullopt, false}};
  if (score_error >= 0) {
    check.measures.push_back({"worst score error", score_error, std::nullopt, false});
  }
  context.report.judge(std::move(check));
}

// Of a row, the largest difference of a score over the largest |score|.
double score_row_error(const std::vector<float>& measured, std::span<const float> expected) {
  double top = 0;
  double worst = 0;
  for (size_t j = 0; j < measured.size() && j < expected.size(); ++j) {
    top = std::max(top, std::fabs(static_cast<double>(expected[j])));
    worst = std::max(worst, std::fabs(static_cast<double>(measured[j]) - expected[j]));
  }
  return top == 0 ? worst : worst / top;
}

Result<void> judge_selection(Context& context, const Subject& subject, const Feed& feed,
                             const CapturedLayer& captured) {
  const model::Config& config = context.config();
  const model::LayerRole& role = config.roles[static_cast<size_t>(subject.layer)];
  const GoldenFile& file = *context.golden.trace;
  const Dims dims = {subject.length, feed.entries};
  const auto selected = TRY(file.integers(subject.tensor("selected"), {subject.length, kAny}));
  const auto scores = TRY(file.floats(subject.tensor("index_score"), dims));
  if (!selected || !scores) {
    context.report.absent(kLayerAlone, subject.name("selection"));
    return {};
  }
  ChoiceDifference choice;
  double score_error = 0;
  for (int64_t t = 0; t < subject.length; ++t) {
    const auto visible = static_cast<size_t>((t + 1) / role.ratio);
    const std::span<const float> row_scores(scores->row(t), visible);
    std::span<const uint8_t> pool;
    if (!feed.candidates.empty()) pool = {feed.candidates.data() + t * feed.entries, visible};
    const IndexChoice& measured = captured.index[static_cast<size_t>(t)];
    choice.add(
        compare_selection(measured.selected, chosen_entries(*selected, t), row_scores, pool));
    score_error = std::max(score_error, score_row_error(measured.scores, row_scores));
  }
  judge_choice(context, subject, "selection", choice, score_error);
  if (!role.builds_pool) return {};
  const auto pools = TRY(file.integers(subject.tensor("candidates"), dims));
  if (!pools) {
    context.report.absent(kLayerAlone, subject.name("candidates"));
    return {};
  }
  ChoiceDifference difference;
  for (int64_t t = 0; t < subject.length; ++t) {
    const auto visible = static_cast<size_t>((t + 1) / role.ratio);
    std::vector<uint8_t> measured(visible, 0);
    for (const int32_t block : captured.index[static_cast<size_t>(t)].pool) {
      const auto begin =
          static_cast<size_t>(block) * static_cast<size_t>(config.candidate_block_size);
      const size_t end =
          std::min(begin + static_cast<size_t>(config.candidate_block_size), visible);
      for (size_t j = begin; j < end; ++j) measured[j] = 1;
    }
    std::vector<uint8_t> expected(visible);
    for (size_t j = 0; j < visible; ++j) expected[j] = pools->row(t)[j] != 0;
    difference.add(
        compare_pools(measured, expected, {scores->row(t), visible}, config.candidate_block_size));
  }
  judge_choice(context, subject, "candidates", difference, -1);
  return {};
}

void judge_state(Context& context, const Subject& subject, std::string_view what,
                 const std::optional<RecordDifference>& difference) {
  if (!difference) {
    context.report.absent(kState, subject.name(what));
    return;
  }
  Check check;
  check.section = kState;
  check.subject = subject.name(what);
  check.layer = subject.layer;
  check.measures = state_measures(*difference);
  context.report.judge(std::move(check));
}

Result<void> judge_states(Context& context, const Subject& subject) {
  const model::LayerRole& role = context.config().roles[static_cast<size_t>(subject.layer)];
  const GoldenFile& file = *context.golden.trace;
  const Runner& runner = context.runner;
  if (role.owns_kv) {
    const int64_t entries = subject.length / role.ratio;
    judge_state(context, subject, "compress_kv",
                TRY(compare_entries(runner, file, subject.tensor("compress_kv"),
                                    model::RecordKind::kGlobal, subject.layer, entries)));
    judge_state(context, subject, "index_key",
                TRY(compare_entries(runner, file, subject.tensor("index_key"),
                                    model::RecordKind::kIndex, subject.layer, entries)));
    if (subject.length % role.ratio != 0) {
      const auto kv = TRY(compare_pending(runner, file, subject.tensor("pending_kv"), subject.layer,
                                          0, subject.length));
      const auto gate = TRY(compare_pending(runner, file, subject.tensor("pending_gate"),
                                            subject.layer, 1, subject.length));
      if (kv && gate) {
        Check check;
        check.section = kState;
        check.subject = subject.name("pending group");
        check.layer = subject.layer;
        check.measures = {{"kv error", *kv, kPendingLimit}, {"gate error", *gate, kPendingLimit}};
        context.report.judge(std::move(check));
      } else {
        context.report.absent(kState, subject.name("pending group"));
      }
    }
  }
  judge_state(context, subject, "window_ring",
              TRY(compare_ring(runner, file, subject.tensor("window_ring"), subject.layer,
                               subject.length)));
  return {};
}

Result<void> check_layer(Context& context, const Subject& subject, const Prompt& prompt) {
  const model::Config& config = context.config();
  const model::LayerRole& role = config.roles[static_cast<size_t>(subject.layer)];
  const Feed feed = TRY(read_feed(context, subject));
  if (!feed.missing.empty()) {
    context.report.absent(kLayerAlone, subject.name("inputs"), "no " + feed.missing);
    return {};
  }
  std::vector<Bf16> streams_out(feed.streams.size());
  std::vector<float> pre_out(feed.pre_in.values.size());
  Captured observer;
  TRY(context.runner.layer_alone(
      prompt, inputs_of(feed, config, subject),
      {streams_out.data(), subject.length, static_cast<int64_t>(config.streams) * config.hidden},
      {pre_out.data(), subject.length, config.streams}, &observer));
  CapturedLayer& captured = observer.layers[subject.layer];
  const auto margins =
      TRY(context.golden.trace->floats(subject.tensor("router_margin"), {subject.length}));
  const std::vector<float> margin_values = margins ? margins->values : std::vector<float>();
  TRY(judge_streams(context, subject, captured, margin_values));
  TRY(inform_sites(context, kLayerAlone, subject.tag, subject.layer, captured));
  TRY(judge_router(context, subject, captured, margin_values));
  if (role.owns_indexer) TRY(judge_selection(context, subject, feed, captured));
  return judge_states(context, subject);
}

}  // namespace

Result<void> check_layers_alone(Context& context) {
  for (const int64_t length : context.golden.trace_lengths) {
    const std::string tag = fmt::format("trace{}", length);
    const GoldenCase* one = context.golden.text_case(length);
    if (one == nullptr) {
      context.report.absent(kLayerAlone, tag, "no case of that length");
      continue;
    }
    // A trace of choices and states only (the long one) feeds no layer.
    if (!context.golden.trace->has(tag + ".embed_in")) {
      context.report.absent(kLayerAlone, tag, "no embed_in");
      continue;
    }
    const Prompt prompt = prompt_of(*one, nullptr);
    for (int32_t layer = 0; layer < context.config().layers; ++layer) {
      TRY(check_layer(context, {tag, layer, length}, prompt));
    }
  }
  return {};
}

}  // namespace galley::verify
