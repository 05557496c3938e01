// A product that may be one launch with the product of what it makes (narrow_pair.h), and with
// copies that were called for before both.
//
// Owned by the engine's thread.
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "kernels/cuda/held_copies.h"
#include "kernels/cuda/memory_span.h"
#include "kernels/cuda/narrow_pair.h"

namespace galley::kernels::cuda {

class HeldPair {
 public:
  bool empty() const { return !inner_; }
  bool hold(const RowProduct& inner) {
    if (!begins_narrow_pair(inner)) return false;
    inner_ = inner;
    return true;
  }
  // The pair, if these products are its second half.
  std::optional<NarrowPair> take(Rows<const Bf16> x, std::span<const Product> products,
                                 HeldCopies& copies) {
    if (!inner_ || products.size() != 1) return {};
    NarrowPair pair{*inner_, RowProduct::of(x, products[0])};
    if (!is_narrow_pair(pair) || touches(products_of(pair), copies.list())) return {};
    inner_.reset();
    copies.move_to(pair);
    return pair;
  }
  // The first half alone.
  std::optional<ProductSet> take() {
    if (!inner_) return {};
    ProductSet set;
    set.products[set.count++] = *std::exchange(inner_, {});
    return set;
  }

 private:
  static ProductSet products_of(const NarrowPair& pair) {
    ProductSet set;
    set.products[set.count++] = pair.inner;
    set.products[set.count++] = pair.outer;
    return set;
  }

  std::optional<RowProduct> inner_;
};

}  // namespace galley::kernels::cuda
