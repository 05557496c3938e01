// Operations of one row of a narrow model that follow each other, as one launch (lone_row.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/few_experts.h"
#include "kernels/cuda/hc_site.h"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int64_t kLoneHiddenMax = 256;
constexpr int64_t kLoneLatentMax = 128;
constexpr int64_t kLoneInnerMax = 128;
constexpr int64_t kLoneExpertsMax = 8;

// hc_leave of the site before (y without data: none) and hc_enter, of one row.
struct LoneSite {
  HcLeave leave = {};
  Rows<const Bf16> streams = {};
  HcWeights weights = {};
  HcOptions options = {};
  Rows<const float> carried = {};
  const Bf16* norm_weight = nullptr;
  HcMix mix = {};
  Rows<Bf16> x = {};

  // As the launch that has all of it, of any rows: append(function, arguments...) of a function
  // that begins with a stream.
  template <class Append>
  void apart(const Append& append, const InputTiles& tiles) const {
    append(hc_site, leave, streams, weights, options, carried, norm_weight, mix, x, tiles);
  }
};
bool lone_site_supports(const LoneSite& site);

// The site, then products of x: the query's latent, whose norm the queries are products of, and
// others; and window keys of one of these.
struct LoneQuery {
  static constexpr int32_t kOthersMax = 4;
  static constexpr int32_t kQueriesMax = 2;

  LoneSite site = {};
  RowProduct latent = {};
  const Bf16* latent_norm = nullptr;
  float latent_eps = 0.0F;
  RowProduct others[kOthersMax];
  int32_t other_count = 0;
  RowProduct queries[kQueriesMax];
  int32_t query_count = 0;
  WindowKeys keys = {};  // of others[0].y, if anything
};
bool lone_query_supports(const LoneQuery& query);
void launch_lone_query(const LoneQuery& query, Stream stream);

// The site, the router's choice and gate and up of all experts of x; then, a second launch, down.
struct LoneExperts {
  LoneSite site = {};
  const Bf16* gate = nullptr;
  int64_t gate_rows = 0;
  const float* const* bias_of_row = nullptr;
  RouterOptions options = {};
  Rows<int32_t> experts = {};
  Rows<float> weights = {};
  FewExperts few = {};
  WeightFormat format = WeightFormat::kBf16;  // of the routed ones
};
bool lone_experts_support(const LoneExperts& experts);
void launch_lone_experts(const LoneExperts& experts, Stream stream);

// Attention, the output projection by groups of heads, and the second one. Copies may wait for
// attention alone, and touch nothing that the projections write.
struct LoneAttention {
  Rows<const Bf16> q = {};
  bool turns = false;
  const float* sink = nullptr;
  AttentionShape shape = {};
  RopeAngles angles = {};
  const AttentionRow* rows = nullptr;
  Rows<Bf16> o = {};
  RowProduct inner = {};
  RowProduct outer = {};
  const RowCopy* copies = nullptr;
  int64_t copy_count = 0;
  bool ring_early = false;  // this step has not written the ring so far
};
bool lone_attention_supports(const LoneAttention& attention);
void launch_lone_attention(const LoneAttention& attention, Stream stream);

}  // namespace galley::kernels::cuda
