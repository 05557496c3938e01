// The angles of rotary embedding: omega per channel pair and cos/sin rows for
// given positions (spec/model.md 4.1).
//
// The f32 product t * omega is part of the model: at large t it carries visible
// rounding, and a better one would be a different model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace galley::kernels {

struct RopeOptions {
  int32_t rotary = 64;  // channels that turn, a pair per angle
  double theta = 10000.0;
  // YaRN, applied when original_positions > 0.
  int64_t original_positions = 0;
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
};

class RopeTable {
 public:
  explicit RopeTable(const RopeOptions& options);

  std::span<const float> omega() const { return omega_; }  // [rotary / 2]

  // Rows of cos and sin [positions, rotary / 2].
  void fill(std::span<const int64_t> positions, Rows<float> cos, Rows<float> sin) const;

 private:
  std::vector<float> omega_;
};

}  // namespace galley::kernels
