#include "verify/units.h"

#include <cmath>
#include <cstdlib>
#include <memory>

#include "kernels/mirrored_ops.h"
#include "kernels/number_formats.h"
#include "verify/context.h"

namespace galley::verify {

namespace {

// bf16 bits as an integer that grows with the value, both zeros equal.
int32_t order_of(kernels::Bf16 value) {
  const int32_t magnitude = value.bits & 0x7FFF;
  return (value.bits & 0x8000) != 0 ? -magnitude : magnitude;
}

Check unit_check(const std::string& subject, bool exact) {
  Check check;
  check.section = kUnits;
  check.subject = subject;
  check.exact = exact;
  return check;
}

}  // namespace

const GoldenFile& UnitTensors::file_for(const std::string& name) {
  context_->read.insert(name);
  return context_->file;
}

template <class T>
Table<T> UnitTensors::keep(const std::string& name, Result<std::optional<Table<T>>> found) {
  if (!found) {
    if (!error_) error_ = found.error();
    return {};
  }
  if (!*found) {
    if (missing_.empty()) missing_ = name;
    return {};
  }
  return std::move(**found);
}

Table<float> UnitTensors::floats(const std::string& name, const Dims& dims) {
  return keep(name, file_for(name).floats(name, dims));
}

Table<kernels::Bf16> UnitTensors::bf16(const std::string& name, const Dims& dims) {
  return keep(name, file_for(name).bf16(name, dims));
}

Table<int64_t> UnitTensors::integers(const std::string& name, const Dims& dims) {
  return keep(name, file_for(name).integers(name, dims));
}

Table<uint8_t> UnitTensors::bytes(const std::string& name, const Dims& dims) {
  return keep(name, file_for(name).bytes(name, dims));
}

Result<bool> UnitTensors::complete(const std::string& subject) {
  if (error_) return *error_;
  if (missing_.empty()) return true;
  context_->report.absent(kUnits, subject, "no " + missing_);
  return false;
}

void judge_bytes(Report& report, const std::string& subject, const std::vector<uint8_t>& measured,
                 const std::vector<uint8_t>& expected) {
  int64_t different = std::abs(std::ssize(measured) - std::ssize(expected));
  for (size_t i = 0; i < std::min(measured.size(), expected.size()); ++i) {
    different += measured[i] != expected[i];
  }
  report.judge_equal(kUnits, subject, different, std::ssize(expected));
}

void judge_bf16(Report& report, const std::string& subject,
                const std::vector<kernels::Bf16>& measured,
                const std::vector<kernels::Bf16>& expected, double share_max) {
  CHECK(measured.size() == expected.size());
  int64_t differing = 0;
  int64_t over_one_ulp = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    const int32_t ulps = std::abs(order_of(measured[i]) - order_of(expected[i]));
    differing += ulps != 0;
    over_one_ulp += ulps > 1;
  }
  Check check = unit_check(subject, share_max == 0);
  check.measures = {
      {"over one ulp", static_cast<double>(over_one_ulp), 0.0},
      {"share differing",
       measured.empty() ? 0.0
                        : static_cast<double>(differing) / static_cast<double>(measured.size()),
       share_max}};
  report.judge(std::move(check));
}

void judge_f32(Report& report, const std::string& subject, const std::vector<float>& measured,
               const std::vector<float>& expected, double relative, double absolute) {
  CHECK(measured.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i] == expected[i]) continue;
    const double allowed = relative * std::fabs(static_cast<double>(expected[i])) + absolute;
    const double excess =
        std::fabs(static_cast<double>(measured[i]) - static_cast<double>(expected[i])) / allowed;
    worst = std::isnan(excess) ? HUGE_VAL : std::max(worst, excess);
  }
  Check check = unit_check(subject, relative == 0 && absolute == 0);
  check.measures = {{"worst over allowed", worst, 1.0}};
  report.judge(std::move(check));
}

Result<Report> verify_units(const std::string& directory, kernels::Ops& ops) {
  const GoldenFile file = TRY(GoldenFile::open(directory + "/units.safetensors"));
  Report report(directory, std::string(ops.name()), "the units' own");
  // The units' values are the host's.
  const std::unique_ptr<kernels::Ops> mirrored =
      ops.memory().is_host() ? nullptr : kernels::make_mirrored_ops(ops);
  UnitsContext context{directory, file, mirrored != nullptr ? *mirrored : ops, report, {}};
  TRY(check_unit_formats(context));
  TRY(check_unit_formulae(context));
  TRY(check_unit_plain(context));
  TRY(check_unit_hash(context));
  // The other backends lack some formulae, and say so by the formula's name.
  if (ops.name() == "plain") {
    for (const auto& [name, view] : file.tensors()) {
      if (!context.read.contains(name)) report.not_checked(kUnits, name, "no check reads it");
    }
  }
  return report;
}

}  // namespace galley::verify
