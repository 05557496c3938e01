#include "verify/state.h"

#include <fmt/format.h>

#include <algorithm>

#include "verify/statistics.h"

namespace galley::verify {

using model::RecordKind;

namespace {

// A stored row as a record, so that its quantiser steps are known.
Result<std::vector<uint8_t>> stored_record(RecordKind kind, const Table<kernels::Bf16>& table,
                                           int64_t row, const GoldenFile& file,
                                           const std::string& tensor) {
  std::vector<uint8_t> record(static_cast<size_t>(model::record_bytes(kind, table.cols())));
  const auto packed =
      model::pack_record(kind, {table.row(row), static_cast<size_t>(table.cols())}, record.data());
  if (!packed) {
    return with_context(packed.error(), fmt::format("{}: {} row {}", file.path(), tensor, row));
  }
  return record;
}

}  // namespace

Result<std::optional<RecordDifference>> compare_entries(const Runner& runner,
                                                        const GoldenFile& file,
                                                        const std::string& tensor, RecordKind kind,
                                                        int32_t layer, int64_t entries) {
  const model::Config& config = runner.config();
  const int64_t width = kind == RecordKind::kGlobal ? config.head_dim : config.index_head_dim;
  const auto stored = TRY(file.bf16(tensor, {entries, width}));
  if (!stored) return std::optional<RecordDifference>();
  RecordDifference sum;
  for (int64_t entry = 0; entry < entries; ++entry) {
    const auto expected = TRY(stored_record(kind, *stored, entry, file, tensor));
    const std::vector<uint8_t> measured = kind == RecordKind::kGlobal
                                              ? runner.global_record(layer, entry)
                                              : runner.index_record(layer, entry);
    sum.add(compare_records(kind, measured.data(), expected.data(), width));
  }
  return std::optional<RecordDifference>(sum);
}

Result<std::optional<RecordDifference>> compare_ring(const Runner& runner, const GoldenFile& file,
                                                     const std::string& tensor, int32_t layer,
                                                     int64_t length) {
  const int64_t window = runner.config().window;
  const int64_t width = runner.config().head_dim;
  const auto stored = TRY(file.bf16(tensor, {window, width}));
  if (!stored) return std::optional<RecordDifference>();
  RecordDifference sum;
  for (int64_t position = std::max<int64_t>(0, length - window); position < length; ++position) {
    const auto expected =
        TRY(stored_record(RecordKind::kWindow, *stored, position % window, file, tensor));
    sum.add(compare_records(RecordKind::kWindow, runner.window_record(layer, position).data(),
                            expected.data(), width));
  }
  return std::optional<RecordDifference>(sum);
}

Result<std::optional<double>> compare_pending(const Runner& runner, const GoldenFile& file,
                                              const std::string& tensor, int32_t layer, int half,
                                              int64_t length) {
  const int64_t ratio = runner.config().roles[static_cast<size_t>(layer)].ratio;
  const int64_t width = runner.config().head_dim;
  const int64_t rows = length % ratio;
  const auto stored = TRY(file.floats(tensor, {rows, width}));
  if (!stored) return std::optional<double>();
  double worst = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<float> measured = runner.pending(layer, length - rows + row);
    const auto size = static_cast<size_t>(width);
    worst = std::max(
        worst, relative_error({measured.data() + half * width, size}, {stored->row(row), size}));
  }
  return std::optional<double>(worst);
}

std::vector<Measure> state_measures(const RecordDifference& difference) {
  const double share = difference.elements == 0 ? 0
                                                : static_cast<double>(difference.unequal) /
                                                      static_cast<double>(difference.elements);
  return {{"unequal share", share, 0.005},
          {"over one step", static_cast<double>(difference.far), 0.0},
          {"of", static_cast<double>(difference.elements), std::nullopt, false}};
}

}  // namespace galley::verify
