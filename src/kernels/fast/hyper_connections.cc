// Hyper-connections (spec/model.md 3): f32 projection of the streams, Sinkhorn,
// collapse and expand.
//
// Projection order: one vector of lanes an output, multiply-added over K in order,
// folded by halves. Sinkhorn: sums are (0 + 2) + (1 + 3) along a row, (0 + 1) + (2 + 3)
// along a column. Collapse and expand: multiply-adds over streams in order. Floor at one row: the
// bytes of fn (24 x n d f32); at many rows f32 multiply-adds. What limits small models is the
// Sinkhorn's chain of 39 divisions.
#include "base/check.h"
#include "kernels/fast/isa_class.h"
#include "kernels/fast/norm.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

constexpr int32_t kStreamsMax = 8;
constexpr int64_t kMixMax = (2 + kStreamsMax) * kStreamsMax;
constexpr int64_t kOutputBlock = 6;

// --- projection ----------------------------------------------------------------

// sums[r * stride + o] of R rows of streams and O rows of fn.
template <int R, int O>
GALLEY_INLINE void project(const float* fn, int64_t width, const Bf16* const* v, float* sums,
                           int64_t stride) {
  VecF sum[R][O];
#pragma GCC unroll 32
  for (int i = 0; i < R * O; ++i) sum[i / O][i % O] = zero();
  for_lanes(width, [&](int64_t i, int64_t n) {
    VecF x[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) x[r] = load(v[r] + i, n);
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o) {
      const VecF f = load(fn + o * width + i, n);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][o] = hn::MulAdd(f, x[r], sum[r][o]);
    }
  });
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o) sums[r * stride + o] = sum_lanes(sum[r][o]);
  }
}

template <int R>
void project_rows(const float* fn, int64_t width, const Bf16* const* v, int64_t outputs,
                  float* sums, int64_t stride) {
  int64_t o = 0;
  for (; o + kOutputBlock <= outputs; o += kOutputBlock) {
    project<R, kOutputBlock>(fn + o * width, width, v, sums + o, stride);
  }
  for (; o < outputs; ++o) project<R, 1>(fn + o * width, width, v, sums + o, stride);
}

// --- coefficients ----------------------------------------------------------------

// Rows whose 4 x 4 matrices go through the Sinkhorn side by side, four lanes a row: its
// steps wait for each other, so one row alone leaves most of the machine idle.
constexpr int64_t kSideBySide = kLanes / 4;

GALLEY_INLINE VecF row_sum(VecF a) {
  const VecF pair = hn::Add(a, hn::Shuffle1032(a));
  return hn::Add(pair, hn::Shuffle2301(pair));
}

GALLEY_INLINE void divide_rows(VecF (&a)[4], VecF delta) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) a[i] = hn::Div(a[i], hn::Add(row_sum(a[i]), delta));
}

GALLEY_INLINE void divide_columns(VecF (&a)[4], VecF delta) {
  const VecF sum = hn::Add(hn::Add(hn::Add(a[0], a[1]), hn::Add(a[2], a[3])), delta);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) a[i] = hn::Div(a[i], sum);
}

// logits: row i of every matrix at [i][4 * matrix]; in place.
void sinkhorn4(float (*logits)[kLanes], const HcOptions& options) {
  const VecF delta = set(options.hc_eps);
  VecF a[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const VecF row = load(logits[i]);
    const VecF pair = hn::Max(row, hn::Shuffle1032(row));
    a[i] = exp(hn::Sub(row, hn::Max(pair, hn::Shuffle2301(pair))));
  }
  divide_rows(a, zero());
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) a[i] = hn::Add(a[i], delta);
  divide_columns(a, delta);
  for (int32_t t = 1; t < options.sinkhorn_iterations; ++t) {
    divide_rows(a, delta);
    divide_columns(a, delta);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) store(a[i], logits[i]);
}

// Any other number of streams; the released model has four.
void sinkhorn(const float* logits, const HcOptions& options, float* comb) {
  const int32_t n = options.streams;
  const float delta = options.hc_eps;
  const auto rows = [&](float add) {
    for (int32_t i = 0; i < n; ++i) {
      float sum = 0.0F;
      for (int32_t j = 0; j < n; ++j) sum += comb[i * n + j];
      for (int32_t j = 0; j < n; ++j) comb[i * n + j] /= sum + add;
    }
  };
  const auto columns = [&] {
    for (int32_t j = 0; j < n; ++j) {
      float sum = 0.0F;
      for (int32_t i = 0; i < n; ++i) sum += comb[i * n + j];
      for (int32_t i = 0; i < n; ++i) comb[i * n + j] /= sum + delta;
    }
  };
  for (int32_t i = 0; i < n; ++i) {
    float row_max = logits[i * n];
    for (int32_t j = 1; j < n; ++j) {
      row_max = logits[i * n + j] > row_max ? logits[i * n + j] : row_max;
    }
    for (int32_t j = 0; j < n; ++j) {
      comb[i * n + j] = hn::GetLane(exp(set(logits[i * n + j] - row_max)));
    }
  }
  rows(0.0F);
  for (int32_t e = 0; e < n * n; ++e) comb[e] += delta;
  columns();
  for (int32_t t = 1; t < options.sinkhorn_iterations; ++t) {
    rows(delta);
    columns();
  }
}

// Rows [first, first + count) of a site: mixes [count][stride] are F v, not yet times nu.
void coefficients(float* mixes, int64_t stride, const float* nu, int64_t first, int64_t count,
                  const HcWeights& weights, const HcOptions& options, const HcMix& mix) {
  const int32_t n = options.streams;
  for (int64_t r = 0; r < count; ++r) {
    float* m = mixes + r * stride;
    for (int32_t i = 0; i < (2 + n) * n; ++i) {
      const float scale = weights.scale[i < n ? 0 : i < 2 * n ? 1 : 2];
      m[i] = m[i] * nu[r] * scale + weights.base[i];
    }
    for_lanes(2 * n,
              [&](int64_t i, int64_t some) { store(sigmoid(load(m + i, some)), m + i, some); });
    for (int32_t j = 0; j < n; ++j) {
      mix.pre.row(first + r)[j] = m[j] + options.hc_eps;
      mix.post.row(first + r)[j] = 2.0F * m[n + j];
    }
    if (n != 4) sinkhorn(m + 2 * n, options, mix.comb.row(first + r));
  }
  if (n != 4) return;
  for (int64_t r = 0; r < count; r += kSideBySide) {
    HWY_ALIGN float a[4][kLanes];
    for (int64_t s = 0; s < kSideBySide; ++s) {  // the last row fills the lanes left over
      const float* m = mixes + (r + s < count ? r + s : count - 1) * stride + 2 * n;
      for (int i = 0; i < 4; ++i) std::memcpy(a[i] + 4 * s, m + 4 * i, 4 * sizeof(float));
    }
    sinkhorn4(a, options);
    for (int64_t s = 0; s < kSideBySide && r + s < count; ++s) {
      for (int i = 0; i < 4; ++i) {
        std::memcpy(mix.comb.row(first + r + s) + 4 * i, a[i] + 4 * s, 4 * sizeof(float));
      }
    }
  }
}

// --- collapse and expand -----------------------------------------------------------

void collapse_row(const Bf16* streams, const float* pi, int64_t hidden, int32_t n,
                  const Bf16* norm_weight, float eps, Bf16* x) {
  for_lanes(hidden, [&](int64_t i, int64_t count) {
    VecF sum = hn::Mul(set(pi[0]), load(streams + i, count));
    for (int32_t j = 1; j < n; ++j) {
      sum = hn::MulAdd(set(pi[j]), load(streams + j * hidden + i, count), sum);
    }
    store(sum, x + i, count);
  });
  rms_norm_row(x, norm_weight, hidden, eps, x);
}

template <int N>
GALLEY_INLINE void expand_row(const Bf16* y, const float* post, const float* comb, int64_t hidden,
                              Bf16* streams) {
  for_lanes(hidden, [&](int64_t i, int64_t count) {
    VecF in[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) in[j] = load(streams + j * hidden + i, count);
    const VecF out = load(y + i, count);
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      VecF sum = hn::Mul(set(comb[j]), in[0]);
#pragma GCC unroll 8
      for (int from = 1; from < N; ++from) {
        sum = hn::MulAdd(set(comb[from * N + j]), in[from], sum);
      }
      store(hn::MulAdd(set(post[j]), out, sum), streams + j * hidden + i, count);
    }
  });
}

void expand(const Bf16* y, const float* post, const float* comb, int64_t hidden, int32_t n,
            Bf16* streams) {
  switch (n) {
    case 1:
      return expand_row<1>(y, post, comb, hidden, streams);
    case 2:
      return expand_row<2>(y, post, comb, hidden, streams);
    case 3:
      return expand_row<3>(y, post, comb, hidden, streams);
    case 4:
      return expand_row<4>(y, post, comb, hidden, streams);
    case 5:
      return expand_row<5>(y, post, comb, hidden, streams);
    case 6:
      return expand_row<6>(y, post, comb, hidden, streams);
    case 7:
      return expand_row<7>(y, post, comb, hidden, streams);
    default:
      return expand_row<8>(y, post, comb, hidden, streams);
  }
}

}  // namespace

void FastOps::hc_enter(Rows<const Bf16> streams, const HcWeights& weights, const HcOptions& options,
                       Rows<const float> carried, const Bf16* norm_weight, HcMix mix,
                       Rows<Bf16> x) {
  const int32_t n = options.streams;
  CHECK(n >= 1 && n <= kStreamsMax);
  const int64_t width = streams.cols;
  const int64_t outputs = (2 + n) * n;
  const int64_t row_cost = outputs * width / 8 + width / 2 + 1500;
  if (streams.rows < pool_.thread_count() && row_cost >= kParallelCycles) {
    // Too few rows to share out: share the outputs, and the collapse as one more part.
    const int64_t blocks = (outputs + kOutputBlock - 1) / kOutputBlock;
    float* sums = scratch_[0].get<float>(kSharedInner, streams.rows * kMixMax);
    float* nus = scratch_[0].get<float>(kSharedPlan, streams.rows);
    pool_.run(streams.rows * (blocks + 1), [&](int64_t part, int) {
      const int64_t r = part / (blocks + 1);
      const int64_t block = part % (blocks + 1);
      const Bf16* v = streams.row(r);
      if (block == blocks) {
        nus[r] = inverse_rms(v, width, options.norm_eps);
        collapse_row(v, carried.row(r), width / n, n, norm_weight, options.norm_eps, x.row(r));
        return;
      }
      const int64_t first = block * kOutputBlock;
      project_rows<1>(weights.fn + first * width, width, &v,
                      first + kOutputBlock <= outputs ? kOutputBlock : outputs - first,
                      sums + r * kMixMax + first, kMixMax);
    });
    coefficients(sums, kMixMax, nus, 0, streams.rows, weights, options, mix);
    return;
  }
  for_rows(streams.rows, row_cost, [&](int64_t begin, int64_t count, int) {
    float sums[4 * kMixMax];
    float nus[4];
    for (int64_t r = begin; r < begin + count;) {
      const Bf16* v[4];
      const int64_t some = begin + count - r >= 4 ? 4 : 1;
      for (int64_t i = 0; i < some; ++i) v[i] = streams.row(r + i);
      if (some == 4) {
        project_rows<4>(weights.fn, width, v, outputs, sums, kMixMax);
      } else {
        project_rows<1>(weights.fn, width, v, outputs, sums, kMixMax);
      }
      for (int64_t i = 0; i < some; ++i) {
        nus[i] = inverse_rms(v[i], width, options.norm_eps);
        collapse_row(v[i], carried.row(r + i), width / n, n, norm_weight, options.norm_eps,
                     x.row(r + i));
      }
      coefficients(sums, kMixMax, nus, r, some, weights, options, mix);
      r += some;
    }
  });
}

void FastOps::collapse_norm(Rows<const Bf16> streams, Rows<const float> carried,
                            int32_t stream_count, const Bf16* norm_weight, float eps,
                            Rows<Bf16> x) {
  for_rows(streams.rows, streams.cols / 4, [&](int64_t begin, int64_t count, int) {
    for (int64_t r = begin; r < begin + count; ++r) {
      collapse_row(streams.row(r), carried.row(r), x.cols, stream_count, norm_weight, eps,
                   x.row(r));
    }
  });
}

void FastOps::hc_leave(Rows<const Bf16> y, Rows<const float> post, Rows<const float> comb,
                       int32_t stream_count, Rows<Bf16> streams) {
  CHECK(stream_count >= 1 && stream_count <= kStreamsMax);
  for_rows(y.rows, streams.cols / 4, [&](int64_t begin, int64_t count, int) {
    for (int64_t r = begin; r < begin + count; ++r) {
      expand(y.row(r), post.row(r), comb.row(r), y.cols, stream_count, streams.row(r));
    }
  });
}

}  // namespace galley::kernels::GALLEY_ISA
