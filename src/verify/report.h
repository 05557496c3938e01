// What a verification found: one line a check, a table of them, an exit code.
//
// Knows nothing of models. A check whose data is missing is kept as such and
// never counts as passed.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace galley::verify {

enum class Verdict {
  kOk,          // every measure with a limit is within it
  kDeviates,    // at least one is not
  kNoLimit,     // measured, but nothing says how far it may go
  kInfo,        // measured for orientation; no rule judges it
  kAbsent,      // the directory has no such data
  kNotChecked,  // the data is there, this program does not check it yet
};
std::string_view verdict_name(Verdict verdict);

struct Measure {
  std::string name;
  double value = 0;
  std::optional<double> limit = std::nullopt;  // the largest value allowed
  bool judged = true;                          // false: shown only, whether or not a limit is known
};

struct Check {
  std::string section;           // "layer alone", "state", ...
  std::string subject;           // which data: "trace71 layer2 streams", "len17 logits_last"
  std::optional<int32_t> layer;  // what first_deviating_layer() goes by
  std::vector<Measure> measures;
  Verdict verdict = Verdict::kInfo;
  std::string note;
  // Holds whatever tolerances.json says: integers and bits that must be equal.
  bool exact = false;
  // Not judged, but further away than rounding explains: points at a layer when no judged check
  // names one.
  bool suspect = false;
};

class Report {
 public:
  Report(std::string directory, std::string backend, std::string limits_source)
      : directory_(std::move(directory)),
        backend_(std::move(backend)),
        limits_source_(std::move(limits_source)) {}

  // Derives the verdict from the measures: kNoLimit when none that is judged has a limit.
  // Returns whether it deviates.
  bool judge(Check check);
  // Counts `different` of `total` items that must be equal.
  bool judge_equal(std::string section, std::string subject, int64_t different, int64_t total,
                   std::optional<int32_t> layer = std::nullopt, std::string note = "");
  void inform(Check check);
  void absent(std::string section, std::string subject, std::string note = "");
  void not_checked(std::string section, std::string subject, std::string note = "");

  // Stable; sections that are not listed come last.
  void sort_by_section(const std::vector<std::string>& sections);

  const std::vector<Check>& checks() const { return checks_; }

  // In the order in which checks stand.
  const Check* first_deviation() const;
  // The lowest layer that a deviating check of the sharpest such section names; without one, the
  // lowest that a suspect check names.
  std::optional<int32_t> first_deviating_layer() const;

  // 0 all within limits, 1 a deviation, 2 nothing to judge by. Without limits only a check
  // that needs none (Check::exact) can give 1.
  int exit_code() const;

  std::string table() const;
  nlohmann::json to_json() const;

 private:
  bool has_limits() const { return !limits_source_.empty(); }

  std::string directory_;
  std::string backend_;
  std::string limits_source_;  // empty: no entry for this directory
  std::vector<Check> checks_;
};

}  // namespace galley::verify
