// Draws from the best of a row: min-p, then top-k, then top-p, as engine/sampler.h does them.
//
// The tokens that stay are those before a place in the row's order (the larger logit first, of
// equal ones the lower token), so nothing is sorted: the place is found by halving. A cluster of
// blocks holds a row in its registers, 32 logits a thread. Each turn adds up what weighs more than
// each of three logits between the bounds, over the cluster, and keeps a quarter of the distance:
// up to 16 turns of a logit's bits, as many for equal logits by their tokens, if they are divided
// at all. The token that a draw falls on is found in the same way by its number.
//
// Sums are taken in one order, which the vocabulary fixes, so a row's token does not depend on the
// rows beside it; and since rounding never turns a larger sum into a smaller one, a turn's answers
// fit together.
//
// Floor: the logits once (517 KB a row, from L2). What limits it is the number of turns, some 25
// for a top-p: a turn is a hundred instructions a warp and an exchange over the block and the
// cluster. Measured on one H200: 28 us for up to 132 rows of a vocabulary of 8,192, 79 for one row
// of 129,280, 170 for 37 rows. 256 requests of up to 400
// tokens of nano at a top-p of 0.95, whose rows went to the host's sampler before, took 1.59 s and
// take 0.61. Tried: 64 registers a thread, so that two blocks share a multiprocessor (37 us instead
// of 28 for up to 132 rows of 8,192, 56 for 200 as before).
#include <cooperative_groups.h>

#include <cfloat>

#include "base/random.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_weight.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocksMax = 8;
constexpr int kPivots = 3;

// What threads tell each other, one turn's beside the next one's.
struct Exchange {
  float warps[2][kWarps][kPivots];
  double blocks[2][kBlocksMax][kPivots];
};
static_assert(kWarps == 16 && kBlocksMax <= kWarps);

// All threads of the blocks that share a row.
class Team {
 public:
  __device__ explicit Team(Exchange& exchange)
      : exchange_(exchange), cluster_(cooperative_groups::this_cluster()) {
    if (blocks() > 1) cluster_.sync();  // nobody is told anything before it has begun
  }

  __device__ int blocks() const { return static_cast<int>(cluster_.num_blocks()); }
  __device__ int rank() const { return static_cast<int>(cluster_.block_rank()); }

  __device__ float largest(float value) {
    float values[kPivots] = {value};
    double results[kPivots];
    combine(values, results, [](auto a, auto b) { return fmax(a, b); });
    return static_cast<float>(results[0]);
  }

  // sums[i] = all threads' values[i].
  __device__ void add(float (&values)[kPivots], double (&sums)[kPivots]) {
    combine(values, sums, [](auto a, auto b) { return a + b; });
  }

 private:
  // Of a warp in f32, of warps and blocks in double; every warp folds the block's warps itself.
  template <class Fold>
  __device__ __forceinline__ void combine(float (&values)[kPivots], double (&results)[kPivots],
                                          Fold&& fold) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (float& value : values) {
        value = fold(value, __shfl_xor_sync(kAllLanes, value, distance));
      }
    }
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    turn_ ^= 1;
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kPivots; ++i) exchange_.warps[turn_][warp][i] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPivots; ++i) results[i] = exchange_.warps[turn_][lane % kWarps][i];
#pragma unroll
    for (int distance = kWarps / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (double& result : results) {
        result = fold(result, __shfl_xor_sync(kAllLanes, result, distance));
      }
    }
    if (blocks() == 1) return;
    if (warp < blocks() && lane == 0) {
#pragma unroll
      for (int i = 0; i < kPivots; ++i) {
        *cluster_.map_shared_rank(&exchange_.blocks[turn_][rank()][i], warp) = results[i];
      }
    }
    cluster_.sync();
    const auto& all = exchange_.blocks[turn_];
#pragma unroll
    for (int i = 0; i < kPivots; ++i) {
      results[i] = all[0][i];
      for (int block = 1; block < blocks(); ++block) results[i] = fold(results[i], all[block][i]);
    }
  }

  Exchange& exchange_;
  cooperative_groups::cluster_group cluster_;
  int turn_ = 0;
};

// A logit's key: the better, the smaller. Equal logits have one key, 0 and -0 too.
__device__ __forceinline__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0F);
  return ~(bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFU : 0x80000000U));
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  const uint32_t bits = ~key;
  return __uint_as_float(bits ^ (bits >> 31 != 0 ? 0x80000000U : 0xFFFFFFFFU));
}

struct Element {
  uint32_t place;  // the token's number and 1
  uint32_t key;
  float weight;  // 0: not to be drawn
};

// What stays: everything better than `key`, and of its equals those up to `place`.
struct Cut {
  uint32_t key = 0xFFFFFFFFU;
  uint32_t place = 0xFFFFFFFFU;
};

// A thread's logits of a row: held, or (kHeld = 0) read again every time.
template <int kHeld>
class Row {
 public:
  __device__ Row(const float* logits, uint32_t count, int rank, int blocks)
      : logits_(logits),
        count_(count),
        each_(kHeld > 0 ? kHeld : (count + blocks * kThreads - 1) / (blocks * kThreads)),
        first_(static_cast<uint32_t>(rank) * each_ * kThreads + threadIdx.x) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held_[i] = read(static_cast<uint32_t>(i));
  }

  // NaN counts as infinite: such a row has no token.
  __device__ float largest() const {
    float best = -INFINITY;
    visit([&](uint32_t, float logit) { best = isnan(logit) ? INFINITY : fmaxf(best, logit); });
    return best;
  }

  __device__ float weigh_plainly(float peak) const {
    float sum = 0.0F;
    visit([&](uint32_t, float logit) { sum += weight(logit, peak, 1.0F); });
    return sum;
  }

  // From here on there are elements.
  __device__ void set(float peak, float scale, float weight_min) {
    peak_ = peak;
    scale_ = scale;
    weight_min_ = weight_min;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      keys_[i] = key_of(held_[i]);
      weights_[i] = weigh(held_[i]);
    }
  }

  // One that keeps less than the one before.
  __device__ void apply(Cut cut) {
    if (cut.key == cut_.key) cut.place = min(cut.place, cut_.place);
    cut_ = cut;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (!stays(keys_[i], place(static_cast<uint32_t>(i)))) weights_[i] = 0.0F;
    }
  }

  // take(element) of each.
  template <class Take>
  __device__ __forceinline__ void visit_elements(Take&& take) const {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (uint32_t i = 0; i < kHeld; ++i) take(Element{place(i), keys_[i], weights_[i]});
    } else {
      visit([&](uint32_t i, float logit) {
        const uint32_t key = key_of(logit);
        take(Element{place(i), key, stays(key, place(i)) ? weigh(logit) : 0.0F});
      });
    }
  }

  __device__ __forceinline__ float weigh(float logit) const {
    const float found = weight(logit, peak_, scale_);
    return found < weight_min_ ? 0.0F : found;
  }

 private:
  __device__ __forceinline__ uint32_t place(uint32_t i) const { return first_ + i * kThreads + 1; }
  __device__ __forceinline__ bool stays(uint32_t key, uint32_t place) const {
    return key < cut_.key || (key == cut_.key && place <= cut_.place);
  }
  __device__ __forceinline__ float read(uint32_t i) const {
    const uint32_t at = first_ + i * kThreads;
    return at < count_ ? logits_[at] : -INFINITY;
  }
  template <class Visit>
  __device__ __forceinline__ void visit(Visit&& at) const {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (uint32_t i = 0; i < kHeld; ++i) at(i, held_[i]);
    } else {
      for (uint32_t i = 0; i < each_; ++i) at(i, read(i));
    }
  }

  static constexpr int kRegisters = kHeld > 0 ? kHeld : 1;

  const float* logits_;
  uint32_t count_;
  uint32_t each_;
  uint32_t first_;
  float held_[kRegisters];
  uint32_t keys_[kRegisters];
  float weights_[kRegisters];
  Cut cut_;
  float peak_ = 0.0F;
  float scale_ = 0.0F;
  float weight_min_ = 0.0F;
};

struct Found {
  uint32_t bound;
  double below;  // what is smaller adds up to
};

// The smallest bound in (low, high] such that what is not above it adds up to `target`; at `high`
// it does. measure(element, at): what it counts, and sets `at` to where it lies.
template <int kHeld, class Measure>
__device__ Found search(Team& team, const Row<kHeld>& row, uint32_t low, uint32_t high,
                        double target, Measure&& measure) {
  double below = 0.0;
  while (high - low > 1) {
    const uint32_t step = max(1U, (high - low) / (kPivots + 1));
    uint32_t pivots[kPivots];
#pragma unroll
    for (int i = 0; i < kPivots; ++i) {
      pivots[i] = min(low + step * static_cast<uint32_t>(i + 1), high - 1);
    }
    float parts[kPivots] = {};
    row.visit_elements([&](const Element& element) {
      uint32_t at;
      const float counts = measure(element, at);
#pragma unroll
      for (int i = 0; i < kPivots; ++i) parts[i] += at <= pivots[i] ? counts : 0.0F;
    });
    double sums[kPivots];
    team.add(parts, sums);
#pragma unroll
    for (int i = kPivots - 1; i >= 0; --i) {
      if (sums[i] >= target) high = pivots[i];
    }
#pragma unroll
    for (int i = 0; i < kPivots; ++i) {
      if (sums[i] >= target) continue;
      low = pivots[i];
      below = sums[i];
    }
  }
  return {high, below};
}

// Leaves the fewest best of the row that reach `target`: weights, or numbers of tokens.
template <int kHeld>
__device__ void keep_best(Team& team, Row<kHeld>& row, uint32_t first_key, uint32_t last_key,
                          bool numbers, double target, uint32_t place_max) {
  const Found best =
      search(team, row, first_key - 1, last_key, target, [&](const Element& element, uint32_t& at) {
        at = element.key;
        return numbers && element.weight > 0.0F ? 1.0F : element.weight;
      });
  // Equals share a weight, so a number of them is wanted.
  const double one = numbers ? 1.0 : static_cast<double>(row.weigh(logit_of(best.bound)));
  const double wanted = fmax(ceil((target - best.below) / one), 1.0);
  const auto equal = [&](const Element& element) {
    return element.key == best.bound && element.weight > 0.0F ? 1.0F : 0.0F;
  };
  float equals[kPivots] = {};
  row.visit_elements([&](const Element& element) { equals[0] += equal(element); });
  double there[kPivots];
  team.add(equals, there);
  Cut cut{best.bound, place_max};
  if (wanted < there[0]) {
    cut.place = search(team, row, 0, place_max, wanted, [&](const Element& element, uint32_t& at) {
                  at = element.place;
                  return equal(element);
                }).bound;
  }
  row.apply(cut);
}

struct CutArguments {
  Rows<const float> logits;
  const DrawRequest* requests;
  DrawnToken* tokens;
};

template <int kHeld>
__global__ void __launch_bounds__(kThreads) cut_kernel(CutArguments args) {
  await_earlier();
  __shared__ Exchange exchange;
  const DrawRequest request = args.requests[blockIdx.y];
  if (!request.is_cut()) return;
  const float* logits = row_of(args.logits, blockIdx.y);
  const auto count = static_cast<uint32_t>(args.logits.cols);
  Team team(exchange);
  Row<kHeld> row(logits, count, team.rank(), team.blocks());
  const float peak = team.largest(row.largest());
  DrawnToken result;
  if (isfinite(peak)) {
    row.set(peak, 1.0F / request.temperature, request.min_p);
    const uint32_t first_key = key_of(peak);
    // Whatever weighs anything lies within.
    const uint32_t last_key = key_of(fmaxf(peak - 90.0F * request.temperature, -FLT_MAX));
    const auto left = [&](float raw) {  // {raw, number of tokens, their weight}, of all threads
      float parts[kPivots] = {raw};
      row.visit_elements([&](const Element& element) {
        parts[1] += element.weight > 0.0F ? 1.0F : 0.0F;
        parts[2] += element.weight;
      });
      double sums[kPivots];
      team.add(parts, sums);
      return make_double3(sums[0], sums[1], sums[2]);
    };
    double3 kept = left(row.weigh_plainly(peak));
    const double plain = kept.x;
    if (request.top_k > 0 && kept.y > request.top_k) {
      keep_best(team, row, first_key, last_key, true, request.top_k, count);
      kept = left(0.0F);
    }
    if (request.top_p < 1.0F) {
      keep_best(team, row, first_key, last_key, false, request.top_p * kept.z, count);
      kept = left(0.0F);
    }
    const double passed =
        random_unit(request.seed, static_cast<uint64_t>(request.position), request.stream) * kept.z;
    // The first token behind which more than that lies; the last, if rounding left no more.
    const double target = fmin(nextafter(passed, DBL_MAX), kept.z);
    const Found drawn =
        search(team, row, 0, count, target, [&](const Element& element, uint32_t& at) {
          at = element.place;
          return element.weight;
        });
    result.valid = 1;
    result.token = static_cast<int32_t>(drawn.bound - 1);
    result.logprob = logits[result.token] - (peak + static_cast<float>(log(plain)));
  }
  if (team.rank() == 0 && threadIdx.x == 0) args.tokens[blockIdx.y] = result;
}

template <int kHeld>
void launch_cut(const CutArguments& args, unsigned blocks, Stream stream) {
  const dim3 grid(blocks, static_cast<unsigned>(args.logits.rows));
  launch_kernel(cut_kernel<kHeld>, {grid, kThreads, 0, blocks}, stream, args);
}

}  // namespace

void sample_cut(Stream stream, Rows<const float> logits, const DrawRequest* requests,
                DrawnToken* tokens) {
  CHECK(logits.cols <= kSampleVocabMax && logits.rows < 65536);
  if (logits.rows == 0) return;
  const CutArguments args{logits, requests, tokens};
  constexpr int64_t kFew = 16;  // logits a thread, of a small vocabulary
  constexpr int64_t kMany = 32;
  if (logits.cols <= kFew * kThreads) {
    launch_cut<kFew>(args, 1, stream);
  } else if (logits.cols <= kMany * kThreads * kBlocksMax) {
    launch_cut<kMany>(args, static_cast<unsigned>(divide_up(logits.cols, kMany * kThreads)),
                      stream);
  } else {
    launch_cut<0>(args, kBlocksMax, stream);
  }
}

}  // namespace galley::kernels::cuda
