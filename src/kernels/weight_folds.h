// Weights in the order that a backend's fast kernels read, made while they are placed in its
// memory: they take the place of the stored ones, which then are nowhere on the device.
//
// Whoever places weights asks for the size of the folded form, puts the stored bytes of one matrix
// or one expert somewhere in the kernels' memory, and has them folded to where they stay. A fold
// changes no value by more than its format states; what it cannot keep is counted, and such a
// weight is placed as it is stored. Owned by the thread that calls the kernels.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "kernels/tensor.h"

namespace galley::kernels {

struct ExpertWeights;
struct MoeWeights;

struct FoldCounts {
  int64_t misfits = 0;  // blocks whose values the folded form cannot keep: do not use it
  int64_t rounded = 0;  // values that moved, each within the stated bound
};

class WeightFolds {
 public:
  virtual ~WeightFolds() = default;

  // Bytes of the folded form; 0: kernels read this weight as it is stored. Of a matrix that
  // multiplies quantised inputs, and of a whole layer's experts, the shared one included.
  virtual int64_t matrix_bytes(const WeightView& weight) const = 0;
  virtual int64_t experts_bytes(const MoeWeights& layer) const = 0;

  // `raw` lies in the kernels' memory and may be overwritten by the next Memory::write; `to` holds
  // as many bytes as the above said. `layer` gives the shapes; expert number layer.experts.size()
  // is the shared one.
  virtual void fold_matrix(const WeightView& raw, void* to) = 0;
  virtual void fold_expert(const MoeWeights& layer, int32_t expert, const ExpertWeights& raw,
                           void* to) = 0;

  // Of the folds since the last call; waits for them.
  virtual Result<FoldCounts> take_counts() = 0;
};

// How a folded weight is named: its shape and format stay, its data are the folded form (of
// experts: of the whole layer), it has no scale.
inline WeightView folded_view(WeightView weight, const void* folded) {
  weight.data = folded;
  weight.scale = nullptr;
  weight.folded = true;
  return weight;
}

}  // namespace galley::kernels
