// Asks for Engram table rows as soon as their numbers are known, so that disk
// or memory works while the layers before them run.
#pragma once

#include "kernels/tensor.h"
#include "model/weights.h"

namespace galley::model {

// Whether rows are worth a call to the system each: a sample of the table's pages is not all in
// memory. Asked once: a step of 64 sequences would make 6,000 calls for rows that are there. Rows
// that the system drops later are waited for where they are read.
bool engram_rows_on_disk(const EngramWeights& weights, int64_t head_dim);

// `ids` [rows, columns] of one Engram layer; `head_dim` columns of the table a row.
void prefetch_engram_rows(const EngramWeights& weights, int64_t head_dim, bool on_disk,
                          kernels::Rows<const int64_t> ids);

}  // namespace galley::model
