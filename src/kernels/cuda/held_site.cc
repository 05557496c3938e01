#include "kernels/cuda/held_site.h"

#include <algorithm>

#include "kernels/cuda/memory_span.h"

namespace galley::kernels::cuda {

bool HeldSite::hold(const LoneSite& site, const InputTiles& tiles) {
  const bool splits = hc_site_splits(site.leave, site.streams, site.weights, site.options,
                                     site.carried, site.norm_weight, site.x);
  if (splits) held_ = Held{site, tiles};
  return splits;
}

bool HeldSite::meets(std::span<const RowCopy> copies) const {
  const Rows<const Bf16> streams = held_ ? held_->site.streams : mixes_.streams;
  const HcMix& mix = held_ ? held_->site.mix : mixes_.mix;
  if (streams.data == nullptr) return false;
  const MemorySpan own[] = {MemorySpan::of(streams), MemorySpan::of(mix.pre),
                            MemorySpan::of(mix.post), MemorySpan::of(mix.comb)};
  return std::ranges::any_of(copies, [&](const RowCopy& one) {
    return std::ranges::any_of(own, [&](MemorySpan span) {
      return span.meets(MemorySpan::of(one.from, one.bytes)) ||
             span.meets(MemorySpan::of(one.to, one.bytes));
    });
  });
}

void attention_and_mixes(Stream stream, const AttentionCall& call, int32_t multiprocessors,
                         const LateMixes& mixes, const SideStream* side) {
  if (mixes.streams.data == nullptr) return attention_sm90(call, multiprocessors, stream);
  fork_side(stream, side);
  attention_sm90(call, multiprocessors, stream);
  enter_side(*side);
  hc_site_mixes(side->stream, mixes);
  join_side(stream, *side);
}

}  // namespace galley::kernels::cuda
