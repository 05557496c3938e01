// Asks for Engram table rows as soon as their numbers are known, so that disk
// or memory works while the layers before them run.
#pragma once

#include "kernels/tensor.h"
#include "model/weights.h"

namespace galley::model {

// `ids` [rows, columns] of one Engram layer; `head_dim` columns of the table a row.
void prefetch_engram_rows(const EngramWeights& weights, int64_t head_dim,
                          kernels::Rows<const int64_t> ids);

}  // namespace galley::model
