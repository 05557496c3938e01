// Views of the memory that kernels read and write. They own nothing.
#pragma once

#include <cstdint>

namespace galley::kernels {

// bfloat16 as stored: the upper half of an IEEE binary32.
struct Bf16 {
  uint16_t bits;
};

// `rows` rows of `cols` elements; row starts are `stride` elements apart.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  Rows() = default;
  Rows(T* data_in, int64_t rows_in, int64_t cols_in)
      : data(data_in), rows(rows_in), cols(cols_in), stride(cols_in) {}
  Rows(T* data_in, int64_t rows_in, int64_t cols_in, int64_t stride_in)
      : data(data_in), rows(rows_in), cols(cols_in), stride(stride_in) {}

  T* row(int64_t index) const { return data + index * stride; }
  Rows slice(int64_t begin, int64_t count) const {
    return Rows(data + begin * stride, count, cols, stride);
  }
  operator Rows<const T>() const { return Rows<const T>(data, rows, cols, stride); }  // NOLINT
};

// How a weight matrix [out, in] is stored (spec/model.md 0.1, 0.2).
enum class WeightFormat : uint8_t {
  kFp8Tile32,  // E4M3 bytes [out, in]; UE8M0 scale per 32 x 32 tile [ceil(out/32), ceil(in/32)]
  kFp4Row32,   // E2M1 pairs [out, in/2], even element low; UE8M0 per row and 32 [out, ceil(in/32)]
  kBf16,       // [out, in]
  kF32,        // [out, in]
};

// A weight matrix read in place from the checkpoint's mapping.
struct WeightView {
  WeightFormat format = WeightFormat::kBf16;
  int64_t out = 0;
  int64_t in = 0;
  const void* data = nullptr;
  const uint8_t* scale = nullptr;  // UE8M0, only for the quantised formats; rows ceil(in/32) apart
  bool folded = false;             // data are in a backend's own order (weight_folds.h)

  int64_t data_bytes() const {
    switch (format) {
      case WeightFormat::kFp8Tile32:
        return out * in;
      case WeightFormat::kFp4Row32:
        return out * (in / 2);
      case WeightFormat::kBf16:
        return out * in * 2;
      case WeightFormat::kF32:
        return out * in * 4;
    }
    return 0;
  }
  int64_t scale_bytes() const {
    const int64_t blocks = (in + 31) / 32;
    if (format == WeightFormat::kFp8Tile32) return (out + 31) / 32 * blocks;
    return format == WeightFormat::kFp4Row32 ? out * blocks : 0;
  }

  // Rows [begin, begin + count) as a matrix of its own; for kFp8Tile32 both are multiples of 32.
  WeightView rows(int64_t begin, int64_t count) const;
};

// Packed cache records (spec/model.md 8.1). `width` channels a record; codes
// first, then scales.
//   window: Q8, width E4M3 codes + width/32 UE8M0 scales      (528 B at 512)
//   global: Q4e4, width/2 bytes of E2M1 + width/16 E4M3 scales (288 B at 512)
//   index:  Q4e8, width/2 bytes of E2M1 + width/32 UE8M0 scales (68 B at 128)
constexpr int64_t window_record_bytes(int64_t width) { return width + width / 32; }
constexpr int64_t global_record_bytes(int64_t width) { return width / 2 + width / 16; }
constexpr int64_t index_record_bytes(int64_t width) { return width / 2 + width / 32; }

// Records of one kind and layer scattered over a sequence's pages: record j
// lies in page page_table[j / records_per_page].
struct PagedRecords {
  uint8_t* pool = nullptr;  // this kind and layer's place in page 0
  int64_t page_stride = 0;  // bytes from one page to the next
  const int32_t* page_table = nullptr;
  int32_t records_per_page = 0;
  int32_t record_bytes = 0;

  uint8_t* record(int64_t j) const {
    return pool + page_table[j / records_per_page] * page_stride +
           (j % records_per_page) * record_bytes;
  }
};

}  // namespace galley::kernels
