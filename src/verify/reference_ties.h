// Kernels that resolve ties between equal index scores in the order of the
// reference's run.
//
// Scores rounded to bf16 tie often. The reference promises no order among equal
// ones, this engine takes the lower index; either is right, but one exchanged
// entry grows through the layers like any other difference and would hide how
// far the arithmetic itself is. Only entries (or blocks) of exactly equal score
// are exchanged: a choice that is wrong by its scores stays as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/forwarding_ops.h"

namespace galley::verify {

class ReferenceTies : public kernels::ForwardingOps {
 public:
  // `page_tokens` of the cache tells the ratio of a row's keys.
  ReferenceTies(kernels::Ops& inner, int32_t page_tokens)
      : ForwardingOps(inner), page_tokens_(page_tokens) {}

  // How many tokens the reference had when it chose: the whole prompt, or up to the one token
  // that is decoded. Its choice among ties depends on it. 0: this engine's own rule.
  void set_tokens(int64_t tokens) { tokens_ = tokens; }

  void index_select(kernels::Rows<const kernels::Bf16> queries,
                    kernels::Rows<const kernels::Bf16> head_weights,
                    const kernels::IndexShape& shape,
                    std::span<const kernels::IndexRow> rows) override;

 private:
  int32_t page_tokens_;
  int64_t tokens_ = 0;
};

// The places of the `count` largest of `scores` as torch chooses them on a CPU (a selection
// algorithm over the whole list, then its first `count`), without those of -inf, ascending.
std::vector<int32_t> choose_like_reference(const std::vector<float>& scores, int64_t count);

}  // namespace galley::verify
