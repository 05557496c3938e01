// One test body for every backend of kernels::Ops.
//
// A backend's test file instantiates the suite and nothing else:
//
//   INSTANTIATE_TEST_SUITE_P(Plain, OpsTest, testing::Values(Backend{...}), backend_name);
//
// Each case compares against plain loops in double precision that round to bf16
// where the specification rounds, and shows row invariance: a row alone, in any
// batch and on any thread count has the same bits.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/number_formats.h"
#include "kernels/ops.h"

namespace galley::kernels {

struct Backend {
  std::string name;
  // Null: this machine cannot run it, and the suite is reported as skipped.
  std::function<std::unique_ptr<Ops>(ThreadPool&)> make;
  // Error of an index score, as a share of the sum of its terms' magnitudes: 2^-6 where
  // dot, product and sum round to bf16 (three half ulps of 2^-8, rounded up), 2^-18 in f32.
  double index_score_error = 0x1p-18;
  // Relative L2 error of a head's output. The result is bf16 either way; bf16 probabilities add
  // 2^-8 of each of them, more where the values nearly cancel: 0.01.
  double attention_error = 0.002;
};

inline std::string backend_name(const testing::TestParamInfo<Backend>& info) {
  std::string name;
  for (const char c : info.param.name)
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

class OpsTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override;

  // `compute(ops, begin, count)` gives the bytes of result rows [begin, begin + count).
  // Shows that cutting the rows differently or other thread counts change no bit.
  using Compute = std::function<std::vector<uint8_t>(Ops& ops, int64_t begin, int64_t count)>;
  void expect_row_invariant(int64_t rows, const Compute& compute);

  Ops& ops() { return *ops_; }

 private:
  ThreadPool pool_{2};
  ThreadPool other_pool_{3};
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Ops> other_ops_;
};

// --- inputs ------------------------------------------------------------------

// Reproducible inputs; every value in a hundred is an outlier, every twentieth a zero.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  double normal() { return normal_(engine_); }
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(bound));
  }
  std::vector<Bf16> bf16(int64_t count, double scale = 1.0);
  std::vector<float> f32(int64_t count, double scale = 1.0);

 private:
  double with_outliers();

  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
};

// A weight matrix that owns its bytes. Values are about in^-0.5.
class StoredWeight {
 public:
  StoredWeight(Random& random, WeightFormat format, int64_t out, int64_t in);

  WeightView view() const;
  double at(int64_t out, int64_t in) const;

 private:
  WeightFormat format_;
  int64_t out_;
  int64_t in_;
  std::vector<uint8_t> data_;
  std::vector<uint8_t> scale_;
};

template <class T>
Rows<T> as_rows(std::vector<T>& data, int64_t rows) {
  return Rows<T>(data.data(), rows, static_cast<int64_t>(data.size()) / rows);
}
template <class T>
Rows<const T> as_rows(const std::vector<T>& data, int64_t rows) {
  return Rows<const T>(data.data(), rows, static_cast<int64_t>(data.size()) / rows);
}

template <class T>
void append_bytes(std::vector<uint8_t>& bytes, const T* data, int64_t count) {
  const auto* begin = reinterpret_cast<const uint8_t*>(data);
  bytes.insert(bytes.end(), begin, begin + count * static_cast<int64_t>(sizeof(T)));
}
template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& data) {
  std::vector<uint8_t> bytes;
  append_bytes(bytes, data.data(), static_cast<int64_t>(data.size()));
  return bytes;
}

// cos and sin tables for rows at the given positions, with their owner.
struct StoredAngles {
  StoredAngles(int64_t first_position, int64_t rows, int64_t rotary);
  RopeAngles view(int64_t begin, int64_t count) const;

  int64_t rows;
  std::vector<float> cos;
  std::vector<float> sin;
};

// --- double-precision loops ---------------------------------------------------

double round_to_bf16(double value);
std::vector<double> widened(const Bf16* x, int64_t count);
// bf16(RMS_w(x; eps)), each element.
std::vector<double> reference_rms(const std::vector<double>& x, const Bf16* weight, double eps);
// The last `2 pairs` channels turned, rounded to bf16.
void reference_rope(std::vector<double>& x, const float* cos, const float* sin, int64_t pairs,
                    bool inverse);
// What Q8 makes of a row, simulated form.
std::vector<double> reference_q8(const std::vector<double>& x);

// Norm of the difference over the norm of the reference.
double relative_l2(const Bf16* actual, const std::vector<double>& reference);

}  // namespace galley::kernels
