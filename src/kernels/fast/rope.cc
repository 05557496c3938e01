// Rotations and the keys that end in a packed record. Elementwise; every product and
// sum is rounded like plain/'s. Floor: bytes of the rows.
#include "kernels/fast/rope.h"

#include "base/check.h"
#include "kernels/fast/isa_class.h"
#include "kernels/fast/norm.h"
#include "kernels/fast/quantise.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

// Widest key vector: one row's copy lives on the stack.
constexpr int64_t kWidthMax = 4096;

}  // namespace

void FastOps::rope(Rows<Bf16> x, int32_t heads, const RopeAngles& angles, bool inverse) {
  const int64_t rotary = 2 * angles.cos.cols;
  const int64_t width = x.cols / heads;
  CHECK(rotary <= kRotaryMax && rotary <= width);
  for_rows(x.rows, heads * rotary / 2 + rotary, [&](int64_t begin, int64_t count, int) {
    Rotation rotation;
    for (int64_t r = begin; r < begin + count; ++r) {
      rotation.set_angles(angles.cos.row(r), angles.sin.row(r), rotary, inverse);
      for (int32_t h = 0; h < heads; ++h) {
        rope_row(x.row(r) + h * width, width, rotation, rotary);
      }
    }
  });
}

void FastOps::window_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                          const RopeAngles& angles, Rows<uint8_t> records) {
  const int64_t rotary = 2 * angles.cos.cols;
  CHECK(rotary <= kRotaryMax && x.cols <= kWidthMax);
  for_rows(x.rows, x.cols * 2, [&](int64_t begin, int64_t count, int) {
    Rotation rotation;
    Bf16 key[kWidthMax];
    for (int64_t r = begin; r < begin + count; ++r) {
      rms_norm_row(x.row(r), norm_weight, x.cols, eps, key);
      rotation.set_angles(angles.cos.row(r), angles.sin.row(r), rotary, false);
      rope_row(key, x.cols, rotation, rotary);
      write_window_record(key, x.cols, records.row(r));
    }
  });
}

void FastOps::global_keys(Rows<const Bf16> latent, const RopeAngles& angles,
                          std::span<uint8_t* const> destination) {
  const int64_t rotary = 2 * angles.cos.cols;
  uint8_t* const* to = destination.data();
  CHECK(rotary <= kRotaryMax && latent.cols <= kWidthMax);
  for_rows(latent.rows, latent.cols * 2, [&](int64_t begin, int64_t count, int) {
    Rotation rotation;
    Bf16 key[kWidthMax];
    for (int64_t r = begin; r < begin + count; ++r) {
      std::memcpy(key, latent.row(r), static_cast<size_t>(latent.cols) * sizeof(Bf16));
      rotation.set_angles(angles.cos.row(r), angles.sin.row(r), rotary, false);
      rope_row(key, latent.cols, rotation, rotary);
      write_global_record(key, latent.cols, to[r]);
    }
  });
}

void FastOps::index_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                         const RopeAngles& angles, std::span<uint8_t* const> destination) {
  const int64_t rotary = 2 * angles.cos.cols;
  uint8_t* const* to = destination.data();
  CHECK(rotary <= kRotaryMax && x.cols <= kWidthMax);
  for_rows(x.rows, x.cols * 2, [&](int64_t begin, int64_t count, int) {
    Rotation rotation;
    Bf16 key[kWidthMax];
    for (int64_t r = begin; r < begin + count; ++r) {
      rms_norm_row(x.row(r), norm_weight, x.cols, eps, key);
      rotation.set_angles(angles.cos.row(r), angles.sin.row(r), rotary, false);
      rope_row(key, x.cols, rotation, rotary);
      write_index_record(key, x.cols, to[r]);
    }
  });
}

void FastOps::index_queries(Rows<Bf16> x, int32_t heads, const RopeAngles& angles) {
  const int64_t rotary = 2 * angles.cos.cols;
  const int64_t width = x.cols / heads;
  CHECK(rotary <= kRotaryMax && rotary <= width);
  for_rows(x.rows, x.cols * 2, [&](int64_t begin, int64_t count, int) {
    Rotation rotation;
    for (int64_t r = begin; r < begin + count; ++r) {
      rotation.set_angles(angles.cos.row(r), angles.sin.row(r), rotary, false);
      for (int32_t h = 0; h < heads; ++h) {
        rope_row(x.row(r) + h * width, width, rotation, rotary);
        simulate_q4e8(x.row(r) + h * width, width);
      }
    }
  });
}

}  // namespace galley::kernels::GALLEY_ISA
