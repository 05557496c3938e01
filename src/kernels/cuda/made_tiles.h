// Rows that the call before made in Q8 along with themselves, so that products need not.
//
// Known until it is forgotten, which every call does that may launch something. Who makes rows is
// told to make their tiles from the first time on that folded products came right behind. Owned by
// the engine's thread.
#pragma once

#include <cstdint>

#include "kernels/cuda/input_tiles.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

class MadeTiles {
 public:
  bool wanted(int64_t columns) const { return columns == columns_; }
  void made(Rows<const Bf16> x, const InputTiles& tiles) {
    x_ = x;
    tiles_ = tiles;
  }
  Rows<const Bf16> rows() const { return x_; }
  // The last launches made products and nothing else: no records, lists or copies.
  void made_products() { products_alone_ = true; }
  bool products_alone() const { return products_alone_; }
  void forget() { *this = MadeTiles(columns_); }
  bool has(Rows<const Bf16> x) const { return is(x) && tiles_.codes != nullptr; }
  // Of x, for folded products: asking makes them wanted. Without codes if they were not made, or
  // are forgotten.
  InputTiles take(Rows<const Bf16> x) {
    if (!is(x)) return {};
    if (x.cols % kChunk == 0) columns_ = x.cols;
    return tiles_;
  }

  MadeTiles() = default;

 private:
  bool is(Rows<const Bf16> x) const {
    return x.data != nullptr && x.data == x_.data && x.rows == x_.rows && x.cols == x_.cols &&
           x.stride == x_.stride;
  }
  explicit MadeTiles(int64_t columns) : columns_(columns) {}

  Rows<const Bf16> x_;
  InputTiles tiles_;
  int64_t columns_ = 0;  // of rows whose tiles were wanted
  bool products_alone_ = false;
};

}  // namespace galley::kernels::cuda
