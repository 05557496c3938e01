// tolerances.json: how far each number may be from the reference's, per model
// and per kind of arithmetic.
//
// Knows only the file. A limit that the file does not give is an empty
// optional; a limit of the wrong type is an error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::verify {

using Limit = std::optional<double>;

struct Tolerances {
  std::string source;  // file, model and class, for the report

  Limit short_up_to_length;  // prompts up to this length are "short"
  Limit short_mean_rel_rms;
  Limit short_each_rel_rms;
  Limit long_mean_rel_rms;
  Limit long_each_rel_rms;

  // Each set of rows: logits_all, decode_logits, reprefill_logits.
  Limit rows_rel_rms;
  Limit rows_mean_kl;
  Limit rows_each_kl;
  Limit rows_flip_fraction;
  Limit rows_no_flip_above_gap;

  // Each layer alone.
  std::map<int32_t, double> layer_median;
  Limit layer_p99;
  Limit layer_row_max;         // rows whose router margin is at least 0.005
  Limit layer_rows_over_0p06;  // share of all rows
};

// The entry of the first of `names` that the file has, of class `kind`
// ("reference_rounding" or "production"). No file or no such entry: empty.
Result<std::optional<Tolerances>> find_tolerances(const std::string& path,
                                                  const std::vector<std::string>& names,
                                                  std::string_view kind);
// The same on the file's text; `path` only for messages.
Result<std::optional<Tolerances>> parse_tolerances(std::string_view text, const std::string& path,
                                                   const std::vector<std::string>& names,
                                                   std::string_view kind);

}  // namespace galley::verify
