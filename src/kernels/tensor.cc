#include "kernels/tensor.h"

#include "base/check.h"

namespace galley::kernels {

WeightView WeightView::rows(int64_t begin, int64_t count) const {
  CHECK(begin >= 0 && count >= 0 && begin + count <= out);
  const auto* bytes = static_cast<const uint8_t*>(data);
  const int64_t blocks = (in + 31) / 32;
  WeightView part = *this;
  part.out = count;
  switch (format) {
    case WeightFormat::kFp8Tile32:
      CHECK(begin % 32 == 0);
      part.data = bytes + begin * in;
      part.scale = scale + (begin / 32) * blocks;
      break;
    case WeightFormat::kFp4Row32:
      part.data = bytes + begin * (in / 2);
      part.scale = scale + begin * blocks;
      break;
    case WeightFormat::kBf16:
      part.data = bytes + begin * in * 2;
      break;
    case WeightFormat::kF32:
      part.data = bytes + begin * in * 4;
      break;
  }
  return part;
}

}  // namespace galley::kernels
