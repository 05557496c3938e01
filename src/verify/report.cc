#include "verify/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace galley::verify {

namespace {

std::string number(double value) {
  if (value == std::floor(value) && std::fabs(value) < 1e9) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

std::string measure_text(const Measure& measure) {
  std::string text = measure.name + " " + number(measure.value);
  if (measure.limit) text += fmt::format(" (<= {})", number(*measure.limit));
  return text;
}

// A NaN is above every limit.
bool exceeds(const Measure& measure) {
  return measure.judged && measure.limit && !(measure.value <= *measure.limit);
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kDeviates:
      return "DEVIATES";
    case Verdict::kNoLimit:
      return "no limit";
    case Verdict::kInfo:
      return "info";
    case Verdict::kAbsent:
      return "absent";
    case Verdict::kNotChecked:
      return "not checked";
  }
  return "?";
}

bool Report::judge(Check check) {
  const bool limited = std::any_of(check.measures.begin(), check.measures.end(),
                                   [](const Measure& m) { return m.judged && m.limit; });
  const bool over = std::any_of(check.measures.begin(), check.measures.end(), exceeds);
  check.verdict = over ? Verdict::kDeviates : limited ? Verdict::kOk : Verdict::kNoLimit;
  checks_.push_back(std::move(check));
  return over;
}

bool Report::judge_equal(std::string section, std::string subject, int64_t different, int64_t total,
                         std::optional<int32_t> layer, std::string note) {
  Check check;
  check.section = std::move(section);
  check.subject = std::move(subject);
  check.layer = layer;
  check.measures = {{"different", static_cast<double>(different), 0.0},
                    {"of", static_cast<double>(total), std::nullopt, false}};
  check.note = std::move(note);
  check.exact = true;
  return judge(std::move(check));
}

void Report::inform(Check check) {
  check.verdict = Verdict::kInfo;
  checks_.push_back(std::move(check));
}

void Report::absent(std::string section, std::string subject, std::string note) {
  Check check;
  check.section = std::move(section);
  check.subject = std::move(subject);
  check.verdict = Verdict::kAbsent;
  check.note = std::move(note);
  checks_.push_back(std::move(check));
}

void Report::not_checked(std::string section, std::string subject, std::string note) {
  absent(std::move(section), std::move(subject), std::move(note));
  checks_.back().verdict = Verdict::kNotChecked;
}

void Report::sort_by_section(const std::vector<std::string>& sections) {
  const auto place = [&](const Check& check) {
    return std::find(sections.begin(), sections.end(), check.section) - sections.begin();
  };
  std::stable_sort(checks_.begin(), checks_.end(),
                   [&](const Check& a, const Check& b) { return place(a) < place(b); });
}

const Check* Report::first_deviation() const {
  const auto found = std::find_if(checks_.begin(), checks_.end(), [](const Check& check) {
    return check.verdict == Verdict::kDeviates;
  });
  return found == checks_.end() ? nullptr : &*found;
}

std::optional<int32_t> Report::first_deviating_layer() const {
  // Sections come sharpest first, so the first one that names a layer decides.
  std::optional<int32_t> layer;
  const std::string* section = nullptr;
  for (const Check& check : checks_) {
    if (check.verdict != Verdict::kDeviates || !check.layer) continue;
    if (section == nullptr) section = &check.section;
    if (*section == check.section) layer = std::min(layer.value_or(*check.layer), *check.layer);
  }
  if (layer || first_deviation() == nullptr) return layer;
  for (const Check& check : checks_) {
    if (check.suspect && check.layer) layer = std::min(layer.value_or(*check.layer), *check.layer);
  }
  return layer;
}

int Report::exit_code() const {
  bool judged = false;
  bool unjudged = false;
  for (const Check& check : checks_) {
    if (check.verdict == Verdict::kDeviates && (has_limits() || check.exact)) return 1;
    judged |= check.verdict == Verdict::kOk;
    unjudged |= check.verdict == Verdict::kNoLimit;
  }
  return has_limits() && judged && !unjudged ? 0 : 2;
}

std::string Report::table() const {
  std::string text =
      fmt::format("{}: backend {}, {}\n", directory_, backend_,
                  has_limits() ? "limits: " + limits_source_ : "no limits for this directory");
  size_t section_width = 0;
  size_t subject_width = 0;
  for (const Check& check : checks_) {
    section_width = std::max(section_width, check.section.size());
    subject_width = std::max(subject_width, check.subject.size());
  }
  for (const Check& check : checks_) {
    std::string line = fmt::format("  {:<11}  {:<{}}  {:<{}} ", verdict_name(check.verdict),
                                   check.section, section_width, check.subject, subject_width);
    for (const Measure& measure : check.measures)
      line += fmt::format(" {},", measure_text(measure));
    if (line.back() == ',') line.pop_back();
    if (!check.note.empty()) line += fmt::format(" [{}]", check.note);
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + "\n";
  }
  if (const Check* first = first_deviation()) {
    const auto layer = first_deviating_layer();
    text += fmt::format("  first deviation: {}, {}; first deviating layer: {}\n", first->section,
                        first->subject, layer ? std::to_string(*layer) : "none named");
  }
  int64_t counts[6] = {};
  for (const Check& check : checks_) ++counts[static_cast<size_t>(check.verdict)];
  text += fmt::format(
      "  {} ok, {} deviate, {} without limit, {} absent, {} not checked, {} for information: ",
      counts[0], counts[1], counts[2], counts[4], counts[5], counts[3]);
  const int code = exit_code();
  text += code == 0 ? "within limits\n" : code == 1 ? "DEVIATES\n" : "nothing to judge by\n";
  return text;
}

nlohmann::json Report::to_json() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const Check& check : checks_) {
    nlohmann::json measures = nlohmann::json::array();
    for (const Measure& measure : check.measures) {
      // JSON has no infinity: a value that is not a number any more is written as null.
      nlohmann::json entry = {{"name", measure.name}, {"value", measure.value}};
      if (measure.limit) entry["limit"] = *measure.limit;
      if (!measure.judged) entry["judged"] = false;
      measures.push_back(std::move(entry));
    }
    nlohmann::json row = {{"verdict", verdict_name(check.verdict)},
                          {"section", check.section},
                          {"subject", check.subject},
                          {"measures", std::move(measures)}};
    if (check.layer) row["layer"] = *check.layer;
    if (!check.note.empty()) row["note"] = check.note;
    rows.push_back(std::move(row));
  }
  nlohmann::json result = {{"directory", directory_},
                           {"backend", backend_},
                           {"limits", has_limits() ? nlohmann::json(limits_source_) : nullptr},
                           {"exit_code", exit_code()},
                           {"checks", std::move(rows)}};
  if (const Check* first = first_deviation()) {
    result["first_deviation"] = {{"section", first->section}, {"subject", first->subject}};
    if (const auto layer = first_deviating_layer()) result["first_deviation"]["layer"] = *layer;
  }
  return result;
}

}  // namespace galley::verify
