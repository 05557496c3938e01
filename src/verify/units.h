// Step 1 of the golden README: single formulae against the units folder, to the
// bit or to the limit stated there.
//
// Everything that the kernel seam offers runs through the backend under test.
// Four formulae have no entry there by themselves; they are checked in plain/
// and said to be not checked for other backends.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/ops.h"
#include "verify/golden.h"
#include "verify/report.h"

namespace galley::verify {

Result<Report> verify_units(const std::string& directory, kernels::Ops& ops);

// What the parts of it work with; each part is a file.
struct UnitsContext {
  const std::string& directory;
  const GoldenFile& file;
  kernels::Ops& ops;
  Report& report;
  std::set<std::string> read;  // names of tensors that some check asked for
};
Result<void> check_unit_formats(UnitsContext& context);   // number formats and quantisers
Result<void> check_unit_formulae(UnitsContext& context);  // through the backend
Result<void> check_unit_plain(UnitsContext& context);     // what only plain/ offers alone
Result<void> check_unit_hash(UnitsContext& context);      // Engram hash and tokenizer

// The tensors of one check. Missing ones come back empty and are remembered.
class UnitTensors {
 public:
  explicit UnitTensors(UnitsContext& context) : context_(&context) {}

  Table<float> floats(const std::string& name, const Dims& dims);
  Table<kernels::Bf16> bf16(const std::string& name, const Dims& dims);
  Table<int64_t> integers(const std::string& name, const Dims& dims);
  Table<uint8_t> bytes(const std::string& name, const Dims& dims);

  // After reading: false when something is missing, and a line says so; an error when something
  // is malformed.
  Result<bool> complete(const std::string& subject);

 private:
  const GoldenFile& file_for(const std::string& name);
  template <class T>
  Table<T> keep(const std::string& name, Result<std::optional<Table<T>>> found);

  UnitsContext* context_;
  std::string missing_;
  std::optional<Error> error_;
};

void judge_bytes(Report& report, const std::string& subject, const std::vector<uint8_t>& measured,
                 const std::vector<uint8_t>& expected);
// Equal or one bf16 ulp, at most `share_max` of the elements differing.
void judge_bf16(Report& report, const std::string& subject,
                const std::vector<kernels::Bf16>& measured,
                const std::vector<kernels::Bf16>& expected, double share_max = 0.01);
// |difference| over relative * |expected| + absolute: at most 1.
void judge_f32(Report& report, const std::string& subject, const std::vector<float>& measured,
               const std::vector<float>& expected, double relative, double absolute = 0);

inline constexpr double kF32Relative = 1e-6;
inline constexpr float kUnitEps = 1e-20F;

// The whole of `data` as rows.
template <class T>
kernels::Rows<T> matrix(std::vector<T>& data, int64_t rows) {
  return kernels::Rows<T>(data.data(), rows, rows == 0 ? 0 : std::ssize(data) / rows);
}

}  // namespace galley::verify
