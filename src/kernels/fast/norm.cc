// Row norms, and the copies that start and end a forward. Sums of squares run over
// four vectors of lanes in turn and fold by halves. Floor: bytes of the rows; the
// limit at one row is the latency of the fold.
#include "kernels/fast/norm.h"

#include "kernels/fast/isa_class.h"

namespace galley::kernels::GALLEY_ISA {

void FastOps::spread(std::span<const SourceRow> sources, int64_t hidden, int32_t copies,
                     Rows<Bf16> streams) {
  const SourceRow* source = sources.data();
  for (int64_t r = 0; r < streams.rows; ++r) {
    for (int32_t j = 0; j < copies; ++j) {
      std::memcpy(streams.row(r) + j * hidden, source[r].values(hidden),
                  static_cast<size_t>(hidden) * sizeof(Bf16));
    }
  }
}

void FastOps::rms_norm(Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) {
  for_rows(x.rows, x.cols / 4 + 50, [&](int64_t begin, int64_t count, int) {
    for (int64_t r = begin; r < begin + count; ++r) {
      rms_norm_row(x.row(r), weight, x.cols, eps, y.row(r));
    }
  });
}

void FastOps::stream_mean(Rows<const Bf16> streams, int32_t stream_count, Rows<Bf16> mean) {
  const int64_t hidden = mean.cols;
  const VecF count_of_streams = set(static_cast<float>(stream_count));
  for_rows(mean.rows, stream_count * hidden / 8, [&](int64_t begin, int64_t rows, int) {
    for (int64_t r = begin; r < begin + rows; ++r) {
      const Bf16* s = streams.row(r);
      for_lanes(hidden, [&](int64_t i, int64_t n) {
        VecF sum = load(s + i, n);
        for (int32_t j = 1; j < stream_count; ++j) sum = hn::Add(sum, load(s + j * hidden + i, n));
        store(hn::Div(sum, count_of_streams), mean.row(r) + i, n);
      });
    }
  });
}

}  // namespace galley::kernels::GALLEY_ISA
