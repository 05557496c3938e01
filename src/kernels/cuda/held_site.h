// A site of few rows that CudaOps holds back until it knows what follows, and its mixes, which only
// the next site reads: they may be made on a second stream, beside a router with the shared expert
// or beside attention. Nobody may touch the site's streams or mixes before they are made.
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/expert_layer.h"
#include "kernels/cuda/hc_site.h"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/lone_row.h"
#include "kernels/cuda/side_stream.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

class HeldSite {
 public:
  bool empty() const { return !held_; }
  bool hold(const LoneSite& site, const InputTiles& tiles);
  // Whether a site is held, and makes x.
  bool makes(Rows<const Bf16> x) const { return held_ && held_->site.x.data == x.data; }

  // x alone: append(function, arguments...) of functions that begin with a stream.
  template <class Append>
  void make_x(const Append& append) {
    const Held held = *std::exchange(held_, {});
    const LoneSite& site = held.site;
    append(hc_site_x, site.leave, site.streams, site.options, site.carried, site.norm_weight,
           site.x, held.tiles);
    mixes_ = {site.streams, site.weights, site.options, site.mix};
  }
  // All that is held but for mixes that attention may take along.
  template <class Append>
  void apart(const Append& append) {
    if (!held_) return;
    if (held_->site.x.rows <= kAttentionRowsMax) return make_x(append);
    const Held held = *std::exchange(held_, {});
    held.site.apart(append, held.tiles);
  }
  // In front of whoever touches streams or mixes.
  template <class Append>
  void make_mixes(const Append& append) {
    if (const LateMixes mixes = take_mixes(); mixes.streams.data != nullptr) {
      append(hc_site_mixes, mixes);
    }
  }
  // A site that nothing is entered behind yet, or the sum of the experts that it would have had.
  template <class Append>
  void leave(const HcLeave& left, const Append& append) {
    if (left.streams.data != nullptr) {
      make_mixes(append);
      append(hc_leave, left);
    } else if (left.parts.rows.data != nullptr) {
      append(sum_experts, left.parts, left.y);
    }
  }
  LateMixes take_mixes() { return std::exchange(mixes_, {}); }
  // Whether copies touch what the mixes are made from, or the mixes.
  bool meets(std::span<const RowCopy> copies) const;

 private:
  // Beside attention of more rows a cluster of sixteen blocks finds no room.
  static constexpr int64_t kAttentionRowsMax = 8;

  struct Held {
    LoneSite site;
    InputTiles tiles;
  };
  std::optional<Held> held_;
  LateMixes mixes_;  // of a site whose x is made
};

// Attention, and beside it mixes, if there are any: it leaves most of the card to them.
void attention_and_mixes(Stream stream, const AttentionCall& call, int32_t multiprocessors,
                         const LateMixes& mixes, const SideStream* side);

}  // namespace galley::kernels::cuda
