// Step 4 of the golden README: whole prompts and greedy continuations, judged by
// their logits; what the trace stores of such a run, for orientation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/captured.h"
#include "verify/context.h"
#include "verify/state.h"
#include "verify/statistics.h"
#include "verify/trace.h"

namespace galley::verify {

namespace {

using kernels::Rows;

std::string case_tensor(const GoldenCase& one, std::string_view what) {
  return fmt::format("{}.{}", one.name, what);
}

bool promises(const GoldenCase& one, std::string_view what) {
  return std::any_of(one.fields.begin(), one.fields.end(), [&](const std::string& field) {
    return std::string_view(field).substr(0, what.size()) == what;
  });
}

// A stored tensor that is not there: said only where cases.json promises it.
void note_absent(Context& context, const GoldenCase& one, std::string_view what) {
  if (promises(one, what)) {
    context.report.absent(kWholeModel, fmt::format("{} {}", one.name, what),
                          "cases.json promises it");
  }
}

bool is_short(const Context& context, int64_t length) {
  return context.limits &&
         static_cast<double>(length) <= context.limits->short_up_to_length.value_or(-1);
}

class CaseChecker {
 public:
  CaseChecker(Context& context, const GoldenCase& one, Prompt prompt)
      : context_(context), one_(one), prompt_(std::move(prompt)) {}

  Result<void> run() {
    const GoldenFile& expected = context_.golden.expected;
    const int64_t vocabulary = context_.config().vocab_size;
    const int64_t length = prompt_.length();
    const auto last = TRY(expected.floats(case_tensor(one_, "logits_last"), {vocabulary}));
    const auto all = TRY(expected.floats(case_tensor(one_, "logits_all"), {length, vocabulary}));

    const std::string tag = fmt::format("trace{}", length);
    const bool traced = !one_.is_image() && context_.golden.trace &&
                        context_.golden.text_case(length) == &one_ &&
                        std::count(context_.golden.trace_lengths.begin(),
                                   context_.golden.trace_lengths.end(), length) > 0;
    if (!last && !all && !traced && !expected.has(case_tensor(one_, "decode_tokens"))) {
      context_.report.absent(kWholeModel, one_.name, "no tensor of this case");
      return {};
    }
    Captured captured;
    const Rows<const float> logits =
        TRY(context_.runner.prefill(prompt_, all ? 0 : length - 1, traced ? &captured : nullptr));
    last_row_.assign(logits.row(logits.rows - 1), logits.row(logits.rows - 1) + vocabulary);
    if (last) {
      judge_last(*last);
    } else {
      context_.report.absent(kWholeModel, one_.name + " logits_last");
    }
    if (all) {
      judge_set("logits_all", logits, all->view());
    } else {
      note_absent(context_, one_, "logits_all");
    }
    if (traced) TRY(inform_trace(context_, tag, length, captured));
    return continue_greedily();
  }

 private:
  void judge_last(const Table<float>& expected) {
    const auto result = compare_logits({last_row_.data(), 1, expected.dims[0]},
                                       {expected.values.data(), 1, expected.dims[0]});
    Limit limit;
    if (context_.limits) {
      limit = is_short(context_, prompt_.length()) ? context_.limits->short_each_rel_rms
                                                   : context_.limits->long_each_rel_rms;
    }
    Check check;
    check.section = kWholeModel;
    check.subject = one_.name + " logits_last";
    check.measures = {{"rel_rms", result.rel_rms, limit},
                      {"kl", result.mean_kl, std::nullopt, false},
                      {"flip", static_cast<double>(result.flips), std::nullopt, false}};
    context_.report.judge(std::move(check));
    last_rel_rms_ = result.rel_rms;
  }

  // A share of few rows can be met in whole rows only: the limit is the nearest number of them.
  static Limit whole_rows(const Limit& share, int64_t rows) {
    if (!share || rows == 0) return share;
    const auto count = static_cast<double>(rows);
    return std::round(*share * count) / count;
  }

  void judge_set(const char* what, Rows<const float> measured, Rows<const float> expected) {
    const auto result = compare_logits(measured, expected);
    const Tolerances none;
    const Tolerances& limits = context_.limits ? *context_.limits : none;
    Check check;
    check.section = kWholeModel;
    check.subject = fmt::format("{} {}", one_.name, what);
    check.measures = {
        {"rel_rms", result.rel_rms, limits.rows_rel_rms},
        {"mean_kl", result.mean_kl, limits.rows_mean_kl},
        {"row_kl", result.worst_row_kl, limits.rows_each_kl},
        {"flips", result.flip_fraction, whole_rows(limits.rows_flip_fraction, result.rows)},
        {"flip_gap", result.flip_gap, limits.rows_no_flip_above_gap}};
    context_.report.judge(std::move(check));
  }

  Result<void> continue_greedily() {
    const GoldenFile& expected = context_.golden.expected;
    const int64_t vocabulary = context_.config().vocab_size;
    const auto tokens = TRY(expected.integers(case_tensor(one_, "decode_tokens"), {kAny}));
    if (!tokens) {
      for (const char* what : {"decode_tokens", "decode_logits", "reprefill_logits"}) {
        note_absent(context_, one_, what);
      }
      return {};
    }
    const auto count = static_cast<int64_t>(tokens->values.size());
    for (const int64_t token : tokens->values) {
      if (token < 0 || token >= vocabulary) {
        return Error{ErrorCode::kCorrupt,
                     fmt::format("{}: {} holds token {} of a vocabulary of {}", expected.path(),
                                 case_tensor(one_, "decode_tokens"), token, vocabulary)};
      }
    }
    const Dims dims = {count, vocabulary};
    const auto decode = TRY(expected.floats(case_tensor(one_, "decode_logits"), dims));
    const auto reprefill = TRY(expected.floats(case_tensor(one_, "reprefill_logits"), dims));

    std::vector<float> rows = last_row_;
    for (int64_t i = 0; i + 1 < count; ++i) {
      const auto logits =
          TRY(context_.runner.decode(static_cast<int32_t>(tokens->values[static_cast<size_t>(i)])));
      rows.insert(rows.end(), logits.row(0), logits.row(0) + vocabulary);
    }
    if (decode) {
      judge_set("decode_logits", {rows.data(), count, vocabulary}, decode->view());
    } else {
      note_absent(context_, one_, "decode_logits");
    }
    TRY(inform_decode_end(count));
    if (!reprefill) {
      note_absent(context_, one_, "reprefill_logits");
      return {};
    }
    Prompt longer = prompt_;
    rows = last_row_;
    for (int64_t i = 0; i + 1 < count; ++i) {
      longer.tokens.push_back(static_cast<int32_t>(tokens->values[static_cast<size_t>(i)]));
      if (!longer.in_image.empty()) longer.in_image.push_back(0);
      if (!longer.embeddings.empty()) longer.embeddings.push_back(nullptr);
      const auto logits = TRY(context_.runner.prefill(longer, longer.length() - 1));
      rows.insert(rows.end(), logits.row(0), logits.row(0) + vocabulary);
    }
    judge_set("reprefill_logits", {rows.data(), count, vocabulary}, reprefill->view());
    return {};
  }

  // What the owners hold after the last token was fed.
  Result<void> inform_decode_end(int64_t count) {
    const GoldenFile& expected = context_.golden.expected;
    bool any = false;
    for (const int32_t layer : context_.config().kv_sources) {
      const int64_t ratio = context_.config().roles[static_cast<size_t>(layer)].ratio;
      const int64_t entries = (prompt_.length() + count - 1) / ratio;
      for (const model::RecordKind kind : {model::RecordKind::kGlobal, model::RecordKind::kIndex}) {
        const char* what = kind == model::RecordKind::kGlobal ? "compress_kv" : "index_key";
        const auto difference = TRY(
            compare_entries(context_.runner, expected,
                            case_tensor(one_, fmt::format("decode_end.layer{}.{}", layer, what)),
                            kind, layer, entries));
        if (!difference) continue;
        any = true;
        inform_records(context_, kWholeModel,
                       fmt::format("{} decode_end layer{} {}", one_.name, layer, what), layer,
                       *difference);
      }
    }
    if (!any) note_absent(context_, one_, "decode_end");
    return {};
  }

  Context& context_;
  const GoldenCase& one_;
  Prompt prompt_;
  std::vector<float> last_row_;

 public:
  std::optional<double> last_rel_rms_;
};

void judge_mean(Context& context, const char* name, const std::vector<double>& values,
                const Limit& limit) {
  if (values.empty()) {
    context.report.absent(kWholeModel, name);
    return;
  }
  double sum = 0;
  for (const double value : values) sum += value;
  Check check;
  check.section = kWholeModel;
  check.subject = name;
  check.measures = {{"mean rel_rms", sum / static_cast<double>(values.size()), limit},
                    {"of", static_cast<double>(values.size()), std::nullopt, false}};
  context.report.judge(std::move(check));
}

}  // namespace

Result<void> check_whole_model(Context& context) {
  std::vector<double> short_prompts;
  std::vector<double> long_prompts;
  for (const GoldenCase& one : context.golden.cases) {
    std::optional<Table<kernels::Bf16>> embed_in;
    if (one.is_image()) {
      embed_in = TRY(context.golden.expected.bf16(
          one.name + ".embed_in",
          {static_cast<int64_t>(one.tokens.size()), context.config().hidden}));
      if (!embed_in) {
        context.report.absent(kWholeModel, one.name, "no " + one.name + ".embed_in");
        continue;
      }
      TRY(check_text_rows(context, one, *embed_in));
    }
    CaseChecker checker(context, one, prompt_of(one, embed_in ? &*embed_in : nullptr));
    TRY(checker.run());
    if (!checker.last_rel_rms_) continue;
    const bool short_one = is_short(context, std::ssize(one.tokens));
    (short_one ? short_prompts : long_prompts).push_back(*checker.last_rel_rms_);
  }
  judge_mean(context, "short prompts", short_prompts,
             context.limits ? context.limits->short_mean_rel_rms : Limit());
  judge_mean(context, "long prompts", long_prompts,
             context.limits ? context.limits->long_mean_rel_rms : Limit());
  return {};
}

}  // namespace galley::verify
