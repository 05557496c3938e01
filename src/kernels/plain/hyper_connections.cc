#include "kernels/plain/hyper_connections.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/number_formats.h"
#include "kernels/plain/dot.h"

namespace galley::kernels::plain {
namespace {

float sigmoid(float x) { return 1.0F / (1.0F + exp_f32(-x)); }

// a[i][j] <- a[i][j] / (sum over j + delta).
void normalise_rows(float* a, int32_t n, float delta) {
  for (int32_t i = 0; i < n; ++i) {
    float sum = 0.0F;
    for (int32_t j = 0; j < n; ++j) sum += a[i * n + j];
    for (int32_t j = 0; j < n; ++j) a[i * n + j] /= sum + delta;
  }
}

// a[i][j] <- a[i][j] / (sum over i + delta).
void normalise_columns(float* a, int32_t n, float delta) {
  for (int32_t j = 0; j < n; ++j) {
    float sum = 0.0F;
    for (int32_t i = 0; i < n; ++i) sum += a[i * n + j];
    for (int32_t i = 0; i < n; ++i) a[i * n + j] /= sum + delta;
  }
}

// The count matters: 2T - 1 half-steps after the softmax, ending on columns.
void sinkhorn(float* a, int32_t n, int32_t iterations, float delta) {
  for (int32_t i = 0; i < n; ++i) {
    float* row = a + i * n;
    const float row_max = *std::max_element(row, row + n);
    for (int32_t j = 0; j < n; ++j) row[j] = std::exp(row[j] - row_max);
  }
  normalise_rows(a, n, 0.0F);
  for (int32_t e = 0; e < n * n; ++e) a[e] += delta;
  normalise_columns(a, n, delta);
  for (int32_t t = 1; t < iterations; ++t) {
    normalise_rows(a, n, delta);
    normalise_columns(a, n, delta);
  }
}

}  // namespace

void hc_project(const Bf16* streams, int64_t width, const float* fn, const HcOptions& options,
                float* mixes) {
  std::vector<float> v(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) v[i] = to_f32(streams[i]);
  const float mean = sum_of_products(v.data(), v.data(), width) / static_cast<float>(width);
  const float nu = 1.0F / std::sqrt(mean + options.norm_eps);
  const int32_t mix_count = (2 + options.streams) * options.streams;
  for (int32_t m = 0; m < mix_count; ++m) mixes[m] = dot(fn + m * width, v.data(), width) * nu;
}

void hc_coefficients(const float* mixes, const float* base, const float* scale,
                     const HcOptions& options, float* pre, float* post, float* comb) {
  const int32_t n = options.streams;
  for (int32_t j = 0; j < n; ++j) {
    pre[j] = sigmoid(mixes[j] * scale[0] + base[j]) + options.hc_eps;
    post[j] = 2.0F * sigmoid(mixes[n + j] * scale[1] + base[n + j]);
  }
  for (int32_t e = 0; e < n * n; ++e) comb[e] = mixes[2 * n + e] * scale[2] + base[2 * n + e];
  sinkhorn(comb, n, options.sinkhorn_iterations, options.hc_eps);
}

void collapse(const Bf16* streams, const float* pi, int64_t hidden, int32_t stream_count, Bf16* x) {
  for (int64_t i = 0; i < hidden; ++i) {
    float sum = 0.0F;
    for (int32_t j = 0; j < stream_count; ++j) sum += pi[j] * to_f32(streams[j * hidden + i]);
    x[i] = to_bf16(sum);
  }
}

void expand(const Bf16* y, const float* post, const float* comb, int64_t hidden,
            int32_t stream_count, Bf16* streams) {
  const int32_t n = stream_count;
  std::vector<float> in(static_cast<size_t>(n));
  for (int64_t i = 0; i < hidden; ++i) {
    for (int32_t j = 0; j < n; ++j) in[j] = to_f32(streams[j * hidden + i]);
    for (int32_t j = 0; j < n; ++j) {
      float sum = 0.0F;
      for (int32_t from = 0; from < n; ++from) sum += comb[from * n + j] * in[from];
      streams[j * hidden + i] = to_bf16(std::fma(post[j], to_f32(y[i]), sum));
    }
  }
}

}  // namespace galley::kernels::plain
