// What the trace stores of a whole run, against that run: rounding differences
// have grown through the layers there, so most of it only informs.
#pragma once

#include <string>

#include "verify/captured.h"
#include "verify/context.h"
#include "verify/record_difference.h"

namespace galley::verify {

// Embedding rows and table rows are judged (equal); states and choices inform.
Result<void> inform_trace(Context& context, const std::string& tag, int64_t length,
                          const Captured& captured);

void inform_records(Context& context, const char* section, std::string subject, int32_t layer,
                    const RecordDifference& difference);

// The text rows of an image prompt's embed_in are the table's own rows.
Result<void> check_text_rows(Context& context, const GoldenCase& one,
                             const Table<kernels::Bf16>& embed_in);

}  // namespace galley::verify
