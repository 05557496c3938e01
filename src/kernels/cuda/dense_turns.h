// Folded products of up to 8 rows (dense_turns.cuh).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/grouped_product.h"

namespace galley::kernels::cuda {

// Sums of one part, and about as many blocks as multiprocessors.
bool takes_turns(const DenseSet& set);
// Those of one or two rows that make the Q8 of set.raw themselves, with the bits of quantise_rows.
bool makes_rows(const DenseSet& set);
void dense_turns(Stream stream, const DenseSet& set);

}  // namespace galley::kernels::cuda
