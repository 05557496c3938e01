// A step of one row of a narrow model in few launches.
//
// Floor: latency. A launch adds 1.1 us to the chain however little it does, and every way through
// memory between two of them 0.7; operations of one row are a few hundred instructions each. So
// what follows each other is one launch as long as each block can do for itself what comes before
// its own share: all blocks make x again (lone_site.cuh), each of those that multiply the query's
// latent makes all of the latent and its norm, and every warp of the experts has the router's
// choice for itself. Blocks share nothing but the cluster's barrier that guards what is stored in
// place. Weights are unpacked before the wait (and pinned there: the compiler moves arithmetic
// behind it otherwise); those of experts, which the choice tells, are brought to the L1 before it,
// of all of them, and unpacked by two warps for each that multiplies.
//
// The sums are those of few_rows.cu, route.cu and few_experts.cu, to the bit: the same products of
// the tensor cores in the same order. A product's row is one column of the second operand, the
// other seven are zeros; gate and up of an output are rows of one tile, so that SwiGLU is in one
// lane.
//
// On an H200, behind each other, nano: site, products and queries 5.7 us where they took 13.5 to
// 14.4 in three launches; site, choice and experts 11.2 in two where they took 18.3 in four. What
// is left are instructions that lone warps do one after the other, 4 to 8 cycles each: of 11,500
// cycles of the experts' first launch the row's way to x takes 3,600 (2,000 its norm), the choice
// 3,600, unpacking 2,400 and the product 1,000; the mixes end after 8,000 to 13,000, of which
// Sinkhorn has 6,000. Unpacking is so long that halving it over two warps was worth 0.8 us.
//
// Tried: each block goes its way once before the wait, with weights in place of the row, so that
// its instructions are at hand behind it. A step took 0.51 ms instead of 0.43, and had other bits
// (why was not found). Each lone kernel lets the next be placed before it has waited itself, so
// that the next one's unpacking passes, too: 0.434 -> 0.412 ms a step. So do kernels in front of
// one that has such work (a step's first rows, Engram's, collapse_norm); done by all small kernels
// of a step, it made them wait longer, ten of them being placed at a time (0.418 -> 0.428 ms).
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/lone_row.h"
#include "kernels/cuda/lone_site.cuh"
#include "kernels/cuda/lone_strip.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/record.cuh"
#include "kernels/cuda/route_choice.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kRecordVectors = 1;  // widths up to 256
constexpr uint32_t kClusterMax = 16;
constexpr int kExpertWarps = kLoneWarps / 2;  // of a block, that multiply
constexpr int kDownWarps = 4;
constexpr int kDownThreads = kDownWarps * kWarp;

__device__ __forceinline__ void store_product(const RowProduct& p, int64_t output,
                                              const float (&sums)[4]) {
  each_lone_sum(output, p.weight.out, sums, [&](int64_t o, float sum) {
    if (p.y.data != nullptr) {
      p.y.data[o] = narrow(sum);
    } else {
      p.y_f32.data[o] = sum;
    }
  });
}

// The product that strip `strip` is of, and its first output; null past the end.
struct Strip {
  const RowProduct* product;
  int64_t output;
};
__device__ __forceinline__ Strip strip_at(const RowProduct* products, int32_t count,
                                          int64_t strip) {
  for (int32_t i = 0; i < count; ++i) {
    const int64_t strips = strips_of(products[i].weight);
    if (strip < strips) return {&products[i], strip * kTileOutputs};
    strip -= strips;
  }
  return {nullptr, 0};
}

// --- x, latent, queries ------------------------------------------------------------

struct LoneQueryShared {
  LoneSiteShared site;
  LoneInputs inputs[kLoneWarps];
  alignas(16) Bf16 latent[kLoneLatentMax];
  alignas(16) Bf16 latent_norm[kLoneLatentMax];
};

struct LoneQueryGrid {
  LoneQuery query;
  int32_t query_blocks;
};

// Eight strips of the queries, behind all of the latent.
__device__ __forceinline__ void multiply_queries(const LoneQuery& args, int32_t block,
                                                 LoneQueryShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const RowProduct& latent = args.latent;
  const int64_t width = latent.weight.out;
  const Strip own = strip_at(args.queries, args.query_count, int64_t{block} * kLoneWarps + warp);
  StripOperands<kInputBlocks> first;
  StripOperands<kLatentBlocks> second;
  first.load_strip(latent.weight, warp * kTileOutputs);
  if (own.product != nullptr) second.load_strip(own.product->weight, own.output);
  for (int64_t i = threadIdx.x; 2 * i < width; i += kLoneThreads) {
    reinterpret_cast<uint32_t*>(shared.latent_norm)[i] =
        reinterpret_cast<const uint32_t*>(args.latent_norm)[i];
  }
  LoneInputs& inputs = shared.inputs[warp];
  enter_lone(args.site, shared.site, load_lone_norm(args.site), inputs);
  float sums[4];
  first.multiply(latent.quantise ? inputs.quantised : inputs.exact, args.site.x.cols, sums);
  each_lone_sum(warp * kTileOutputs, width, sums, [&](int64_t o, float sum) {
    const Bf16 value = narrow(sum);
    shared.latent[o] = value;
    if (block == 0) latent.y.data[o] = value;
  });
  __syncthreads();
  uint4 value = {};
  uint4 weight = {};
  if (lane * 8 < width) {
    value = reinterpret_cast<const uint4*>(shared.latent)[lane];
    weight = reinterpret_cast<const uint4*>(shared.latent_norm)[lane];
  }
  const float squares = warp_sum(square_sum(widen8(value)));
  put_lone(
      normed(value, lone_inverse_rms(squares, static_cast<int>(width), args.latent_eps), weight),
      width, inputs);
  if (own.product == nullptr) return;
  second.multiply(own.product->quantise ? inputs.quantised : inputs.exact, width, sums);
  store_product(*own.product, own.output, sums);
}

// Eight strips of the other products; the first block has the keys.
__device__ __forceinline__ void multiply_others(const LoneQuery& args, int32_t block,
                                                LoneQueryShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Strip own = strip_at(args.others, args.other_count, int64_t{block} * kLoneWarps + warp);
  StripOperands<kInputBlocks> weights;
  if (own.product != nullptr) weights.load_strip(own.product->weight, own.output);
  LoneInputs& inputs = shared.inputs[warp];
  enter_lone(args.site, shared.site, load_lone_norm(args.site), inputs);
  if (own.product != nullptr) {
    float sums[4];
    weights.multiply(own.product->quantise ? inputs.quantised : inputs.exact, args.site.x.cols,
                     sums);
    store_product(*own.product, own.output, sums);
  }
  if (block != 0 || args.keys.x.rows == 0) return;
  __syncthreads();
  if (warp != 0) return;
  const WindowKeys& keys = args.keys;
  make_record<Record::kWindow, kRecordVectors, true>(
      {keys.x, keys.norm_weight, keys.eps, keys.angles.cos, keys.angles.sin, nullptr, keys.records},
      0);
}

__global__ void __launch_bounds__(kLoneThreads, 1)
    lone_query_kernel(const __grid_constant__ LoneQueryGrid args) {
  __shared__ LoneQueryShared shared;
  const auto block = static_cast<int32_t>(blockIdx.x);
  let_next_begin();
  if (block == static_cast<int32_t>(gridDim.x) - 1)
    return finish_lone(args.query.site, shared.site);
  if (block < args.query_blocks) {
    multiply_queries(args.query, block, shared);
  } else {
    multiply_others(args.query, block - args.query_blocks, shared);
  }
  cluster_wait_apart();
}

// --- x, choice, experts --------------------------------------------------------------

constexpr int kGateSteps = static_cast<int>(kLoneHiddenMax) / 16;

constexpr int kHalfBlocks = kInputBlocks / 2;

struct LoneExpertsShared {
  LoneSiteShared site;
  LoneInputs inputs[kLoneWarps];
  uint4 handed[kExpertWarps][kHalfBlocks][4][kWarp];
};

// What the row chose, a bit an expert; each lane has p of its own one.
struct LoneChoice {
  uint32_t experts;
  float p;
  float sum;

  // The `place`th in ascending order.
  __device__ __forceinline__ int expert(int place) const {
    uint32_t left = experts;
    for (int i = 0; i < place; ++i) left &= left - 1;
    return __ffs(static_cast<int>(left)) - 1;
  }
  __device__ __forceinline__ float weight(const RouterOptions& options, float of_expert) const {
    return of_expert / (sum + 1e-20F) * options.scale;
  }
  __device__ __forceinline__ void store(const ChoiceArguments& choice) const {
    const uint32_t lane = threadIdx.x % kWarp;
    if ((experts >> lane & 1U) == 0) return;
    const int place = __popc(experts & ((1U << lane) - 1U));
    choice.experts.data[place] = static_cast<int32_t>(lane);
    choice.weights.data[place] = weight(choice.options, p);
  }
};

// The router's weights of eight experts, and their biases.
struct LoneGate {
  uint32_t pairs[kGateSteps][2];
  float bias;

  __device__ __forceinline__ void load(const LoneExperts& args) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto steps = static_cast<int>(args.site.x.cols / 16);
    const int expert = lane / 4;
    const bool inside = expert < args.few.expert_count;
    const auto* from =
        reinterpret_cast<const uint32_t*>(args.gate + (inside ? expert : 0) * args.site.x.cols) +
        lane % 4;
#pragma unroll
    for (int step = 0; step < kGateSteps; ++step) {
      pairs[step][0] = inside && step < steps ? from[step * 8] : 0;
      pairs[step][1] = inside && step < steps ? from[step * 8 + 4] : 0;
    }
    bias = lane < args.few.expert_count ? args.bias_of_row[0][lane] : 0.0F;
  }

  // The row's choice, by a warp.
  __device__ __forceinline__ LoneChoice choose(const LoneExperts& args,
                                               const ChoiceArguments& choice, const Bf16* x) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto steps = static_cast<int>(args.site.x.cols / 16);
    float chain[4] = {};
#pragma unroll
    for (int step = 0; step < kGateSteps; ++step) {
      if (step >= steps) break;
      uint32_t a[4] = {};
      if (lane < 4) {
        a[0] = reinterpret_cast<const uint32_t*>(x)[step * 8 + lane];
        a[2] = reinterpret_cast<const uint32_t*>(x)[step * 8 + lane + 4];
      }
      multiply_add(chain, a, pairs[step][0], pairs[step][1]);
    }
    const float even = __shfl_sync(kAllLanes, chain[0], lane / 2);
    const float odd = __shfl_sync(kAllLanes, chain[1], lane / 2);
    const bool inside = lane < choice.expert_count;
    Places<1> all;
    all.p[0] = inside ? 0.0F + (lane % 2 == 0 ? even : odd) : 0.0F;
    all.expert[0] = lane;
    weigh_places(choice, Biases<1>{{bias}}, all);
    // Each counts those that come before it: larger, or equal and lower.
    const uint32_t key = all.key[0];
    int rank = 0;
#pragma unroll
    for (int other = 0; other < kLoneExpertsMax; ++other) {
      const uint32_t of_other = __shfl_sync(kAllLanes, key, other);
      rank += of_other > key || (of_other == key && other < lane) ? 1 : 0;
    }
    LoneChoice chosen;
    chosen.p = all.p[0];
    chosen.sum = 0.0F;
    for (int place = 0; place < choice.options.top_k; ++place) {  // best first
      const uint32_t owner = __ballot_sync(kAllLanes, inside && rank == place);
      chosen.sum += __shfl_sync(kAllLanes, chosen.p, __ffs(static_cast<int>(owner)) - 1);
    }
    chosen.experts = __ballot_sync(kAllLanes, inside && rank < choice.options.top_k);
    return chosen;
  }
};

// `bytes` from `from` to the L1, by a warp.
__device__ __forceinline__ void bring_lines(const uint8_t* from, int64_t bytes) {
  constexpr int64_t kLine = 128;
  const auto lane = static_cast<int64_t>(threadIdx.x % kWarp);
  for (int64_t at = lane * kLine; at < bytes + kLine; at += kWarp * kLine) {
    prefetch_l1(from + min(at, bytes - 1));
  }
}

// Where the routed experts' weights are, one a lane.
struct LoneViews {
  const void* data;
  const uint8_t* scale;

  __device__ __forceinline__ void load(const WeightView* views, int32_t count) {
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
    const WeightView& own = views[lane < count ? lane : 0];
    data = own.data;
    scale = own.scale;
  }
  // What a warp reads of outputs [output, output + count) of every expert, to the L1: which expert
  // it is, the wait will tell.
  template <WeightFormat kFormat>
  __device__ __forceinline__ void bring(int32_t experts, int64_t in, int64_t output,
                                        int count) const {
    const int64_t row_bytes = kFormat == WeightFormat::kBf16        ? 2 * in
                              : kFormat == WeightFormat::kFp8Tile32 ? in
                                                                    : in / 2;
    const int64_t blocks = (in + 31) / 32;
    for (int expert = 0; expert < experts; ++expert) {
      const WeightView view = of(expert, {}, kFormat);
      bring_lines(static_cast<const uint8_t*>(view.data) + output * row_bytes, count * row_bytes);
      if constexpr (kFormat == WeightFormat::kFp4Row32) {
        bring_lines(view.scale + output * blocks, count * blocks);
      }
    }
  }
  __device__ __forceinline__ WeightView of(int expert, const WeightView& like,
                                           WeightFormat format) const {
    WeightView view = like;
    view.format = format;
    view.data = reinterpret_cast<const void*>(
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(data), expert));
    view.scale = reinterpret_cast<const uint8_t*>(
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(scale), expert));
    return view;
  }
};

// A warp has gate and up of eight outputs of one expert; another one `helps`: it unpacks the second
// half of their weights, and hands them over.
template <WeightFormat kFormat, bool kShared>
__device__ __forceinline__ void gate_and_up(const LoneExperts& args, int place, int64_t output,
                                            bool helps, LoneExpertsShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const FewExperts& few = args.few;
  const int64_t o = output + lane / 4;
  StripOperands<kHalfBlocks> weights;
  const int first = helps ? kHalfBlocks : 0;  // of K
  LoneGate gate;
  LoneViews gates;
  LoneViews ups;
  if constexpr (kShared) {
    weights.load<kFormat>(few.shared_gate, o, few.shared_up, o, first);
  } else {
    gate.load(args);
    gates.load(few.gate, few.expert_count);
    ups.load(few.up, few.expert_count);
    gates.bring<kFormat>(few.expert_count, few.shared_gate.in, output, 8);
    ups.bring<kFormat>(few.expert_count, few.shared_up.in, output, 8);
  }
  LoneInputs& inputs = shared.inputs[warp];
  enter_lone(args.site, shared.site, load_lone_norm(args.site), inputs);
  float factor = 1.0F;
  if constexpr (!kShared) {
    const ChoiceArguments choice{
        nullptr,      1,      few.expert_count, args.bias_of_row, args.options, args.experts,
        args.weights, nullptr};
    const LoneChoice chosen = gate.choose(args, choice, inputs.exact);
    if (place == 0 && output == 0 && !helps) chosen.store(choice);
    const int expert = chosen.expert(place);
    factor = chosen.weight(args.options, __shfl_sync(kAllLanes, chosen.p, expert));
    weights.load<kFormat>(gates.of(expert, few.shared_gate, kFormat), o,
                          ups.of(expert, few.shared_up, kFormat), o, first);
  }
  const int team = warp % kExpertWarps;
  uint4(&handed)[kHalfBlocks][4][kWarp] = shared.handed[team];
  if (helps) {
#pragma unroll
    for (int block = 0; block < kHalfBlocks; ++block) weights.put(block, handed[block]);
    asm volatile("bar.arrive %0, %1;" ::"r"(team + 1), "n"(2 * kWarp) : "memory");
    return;
  }
  float sums[4] = {};
  weights.add(inputs.quantised, args.site.x.cols, 0, sums);
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(2 * kWarp) : "memory");
#pragma unroll
  for (int block = 0; block < kHalfBlocks; ++block) weights.get(block, handed[block]);
  weights.add(inputs.quantised, args.site.x.cols, kHalfBlocks, sums);
  if (lane % 4 != 0 || o >= few.inner.cols) return;
  row_at(few.inner, place)[o] = narrow(swiglu(narrow(sums[0]), narrow(sums[2]), factor, few.limit));
}

__global__ void __launch_bounds__(kLoneThreads, 1)
    lone_experts_kernel(const __grid_constant__ LoneExperts args) {
  __shared__ LoneExpertsShared shared;
  let_next_begin();
  if (blockIdx.x == gridDim.x - 1) return finish_lone(args.site, shared.site);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto eights = static_cast<int>(args.few.inner.cols / 8);
  const int task = static_cast<int>(blockIdx.x) * kExpertWarps + warp % kExpertWarps;
  const int place = task / eights;
  const bool helps = warp >= kExpertWarps;
  const int64_t output = task % eights * 8;
  if (place > args.options.top_k) {
    enter_lone(args.site, shared.site, load_lone_norm(args.site), shared.inputs[warp]);
  } else if (place == args.options.top_k) {
    with_format(args.few.shared_gate.format, [&]<WeightFormat kFormat>() {
      gate_and_up<kFormat, true>(args, place, output, helps, shared);
    });
  } else {
    with_format(args.format, [&]<WeightFormat kFormat>() {
      gate_and_up<kFormat, false>(args, place, output, helps, shared);
    });
  }
  cluster_wait_apart();
}

// --- experts, down ---------------------------------------------------------------------

// A warp has 16 outputs of one expert, whose Q8 inputs it prepares itself.
constexpr int kInnerBlocks = tile_blocks(kLoneInnerMax);

struct LoneDown {
  FewExperts few;
  WeightFormat format;
};

template <WeightFormat kFormat, bool kShared>
__device__ __forceinline__ void down(const FewExperts& few, int place, int64_t output,
                                     Bf16* inputs) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t o = output + lane / 4;
  const int64_t inner = few.inner.cols;
  StripOperands<kInnerBlocks> weights;
  LoneViews views;
  if constexpr (kShared) {
    weights.load<kFormat>(few.shared_down, o, few.shared_down, o + 8);
  } else {
    views.load(few.down, few.expert_count);
    views.bring<kFormat>(few.expert_count, few.shared_down.in, output, kTileOutputs);
  }
  await_earlier();
  const Bf16* row = row_at(few.inner, place);
  if constexpr (!kShared) {
    const int expert = few.experts.data[place];
    prepare_piece(row, inner, lane, true, nullptr, inputs);
    weights.load<kFormat>(views.of(expert, few.shared_down, kFormat), o,
                          views.of(expert, few.shared_down, kFormat), o + 8);
  } else {
    prepare_piece(row, inner, lane, true, nullptr, inputs);
  }
  __syncwarp();
  float sums[4];
  weights.multiply(inputs, inner, sums);
  Bf16* to = row_at(few.out, place);
  each_lone_sum(output, few.out.cols, sums, [&](int64_t at, float sum) { to[at] = narrow(sum); });
}

__global__ void __launch_bounds__(kDownThreads, 1)
    lone_down_kernel(const __grid_constant__ LoneDown args) {
  __shared__ alignas(16) Bf16 inputs[kDownWarps][kLoneInnerMax];
  const FewExperts& few = args.few;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto strips = static_cast<int>(few.out.cols / kTileOutputs);
  const int task = static_cast<int>(blockIdx.x) * kDownWarps + warp;
  const int place = task / strips;
  const int64_t output = task % strips * kTileOutputs;
  const auto top_k = static_cast<int>(few.experts.cols);
  let_next_begin();
  if (place > top_k) return await_earlier();
  const bool shared = place == top_k;
  with_format(shared ? few.shared_down.format : args.format, [&]<WeightFormat kFormat>() {
    if (shared) {
      down<kFormat, true>(few, place, output, inputs[warp]);
    } else {
      down<kFormat, false>(few, place, output, inputs[warp]);
    }
  });
}

// --- on the host ---------------------------------------------------------------------

template <class Arguments>
void launch_cluster(void (*kernel)(Arguments), int64_t blocks, Stream stream,
                    const Arguments& arguments) {
  CHECK(blocks <= kClusterMax);
  launch_kernel(kernel, {blocks, kLoneThreads, 0, static_cast<uint32_t>(blocks)}, stream,
                arguments);
}

int64_t blocks_of(const RowProduct* products, int32_t count) {
  int64_t strips = 0;
  for (int32_t i = 0; i < count; ++i) strips += strips_of(products[i].weight);
  return divide_up(strips, kLoneWarps);
}

// Whether clusters of up to kClusterMax blocks run here.
bool has_clusters() {
  static const bool has = [] {
    const auto fits = [](auto kernel) {
      if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) !=
          cudaSuccess) {
        return false;
      }
      cudaLaunchAttribute cluster = {};
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim.x = kClusterMax;
      cluster.val.clusterDim.y = 1;
      cluster.val.clusterDim.z = 1;
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(kClusterMax);
      config.blockDim = dim3(kLoneThreads);
      config.attrs = &cluster;
      config.numAttrs = 1;
      int count = 0;
      return cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess && count > 0;
    };
    const bool both = fits(lone_query_kernel) && fits(lone_experts_kernel);
    cudaGetLastError();  // what a device lacks is no error
    return both;
  }();
  return has;
}

bool is_lone_product(const RowProduct& p, int64_t cols) {
  return p.x.rows == 1 && p.weight.in == cols && p.groups == 1 && !p.weight.folded &&
         takes_few_rows(p);
}

}  // namespace

bool lone_site_supports(const LoneSite& site) {
  const HcLeave& leave = site.leave;
  const ExpertParts& parts = leave.parts;
  return site.options.streams == kStreams && site.x.rows == 1 && site.x.cols <= kLoneHiddenMax &&
         site.x.cols % kGroup == 0 &&
         is_whole_site(leave, site.streams, site.weights, site.carried, site.norm_weight, site.x) &&
         (leave.y.data == nullptr || leave.streams.data == site.streams.data) &&
         (parts.rows.data == nullptr || (parts.place == nullptr && parts.top_k <= kLonePartsMax &&
                                         is_whole(parts.rows) && is_whole(parts.shared))) &&
         has_clusters();
}

bool lone_query_supports(const LoneQuery& query) {
  const int64_t hidden = query.site.x.cols;
  const RowProduct& latent = query.latent;
  const int64_t width = latent.weight.out;
  if (!is_lone_product(latent, hidden) || latent.y.data == nullptr || width > kLoneLatentMax ||
      width % 16 != 0 || !is_whole(query.latent_norm, width) || query.query_count == 0) {
    return false;
  }
  for (int32_t i = 0; i < query.other_count; ++i) {
    if (!is_lone_product(query.others[i], hidden)) return false;
  }
  for (int32_t i = 0; i < query.query_count; ++i) {
    if (!is_lone_product(query.queries[i], width)) return false;
  }
  if (query.keys.x.rows > 0) {
    const bool rides = query.other_count > 0 && query.others[0].y.data == query.keys.x.data &&
                       strips_of(query.others[0].weight) <= kLoneWarps && rides_along(query.keys) &&
                       query.keys.x.cols <= 8 * kWarp * kRecordVectors;
    if (!rides) return false;
  }
  return blocks_of(query.queries, query.query_count) + blocks_of(query.others, query.other_count) +
             1 <=
         kClusterMax;
}

void launch_lone_query(const LoneQuery& query, Stream stream) {
  const int64_t query_blocks = blocks_of(query.queries, query.query_count);
  launch_cluster(lone_query_kernel, query_blocks + blocks_of(query.others, query.other_count) + 1,
                 stream, LoneQueryGrid{query, static_cast<int32_t>(query_blocks)});
}

namespace {

int64_t blocks_of(const LoneExperts& experts) {
  const int64_t tasks = (experts.options.top_k + 1) * (experts.few.inner.cols / 8);
  return divide_up(tasks, kExpertWarps) + 1;
}

}  // namespace

bool lone_experts_support(const LoneExperts& experts) {
  const int64_t hidden = experts.site.x.cols;
  return experts.few.expert_count == experts.gate_rows && experts.gate_rows <= kLoneExpertsMax &&
         experts.few.experts.rows == 1 && hidden % 16 == 0 && is_whole(experts.gate, hidden) &&
         experts.few.inner.cols % kTileOutputs == 0 && experts.few.inner.cols <= kLoneInnerMax &&
         experts.few.out.cols % kTileOutputs == 0 && blocks_of(experts) <= kClusterMax;
}

void launch_lone_experts(const LoneExperts& experts, Stream stream) {
  launch_cluster(lone_experts_kernel, blocks_of(experts), stream, experts);
  const int64_t tasks = (experts.options.top_k + 1) * (experts.few.out.cols / kTileOutputs);
  launch_kernel(lone_down_kernel, {divide_up(tasks, kDownWarps), kDownThreads}, stream,
                LoneDown{experts.few, experts.format});
}

}  // namespace galley::kernels::cuda
