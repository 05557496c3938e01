#include "kernels/plain/plain_ops.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/host_ops.h"
#include "kernels/number_formats.h"
#include "kernels/plain/attention.h"
#include "kernels/plain/compressor.h"
#include "kernels/plain/engram.h"
#include "kernels/plain/hyper_connections.h"
#include "kernels/plain/indexer.h"
#include "kernels/plain/linear.h"
#include "kernels/plain/moe.h"
#include "kernels/plain/norm.h"
#include "kernels/plain/quantise.h"
#include "kernels/plain/rope.h"
#include "kernels/plain/router.h"

namespace galley::kernels {
namespace {

class PlainOps final : public HostOps {
 public:
  explicit PlainOps(ThreadPool& pool) : pool_(pool) {}

  std::string_view name() const override { return "plain"; }

  void spread(std::span<const SourceRow> sources, int64_t hidden, int32_t copies,
              Rows<Bf16> streams) override {
    each_row(streams.rows, [&](int64_t r) {
      const Bf16* row = sources[static_cast<size_t>(r)].values(hidden);
      for (int32_t j = 0; j < copies; ++j) {
        std::copy_n(row, hidden, streams.row(r) + j * hidden);
      }
    });
  }

  void linear(Rows<const Bf16> x, std::span<const Product> products) override {
    plain::linear(pool_, x, products);
  }

  void grouped_linear(Rows<const Bf16> x, const WeightView& weight, int32_t groups,
                      Rows<Bf16> y) override {
    plain::grouped_linear(pool_, x, weight, groups, y);
  }

  void rms_norm(Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) override {
    each_row(x.rows, [&](int64_t r) { plain::rms_norm(x.row(r), weight, x.cols, eps, y.row(r)); });
  }

  void hc_enter(Rows<const Bf16> streams, const HcWeights& weights, const HcOptions& options,
                Rows<const float> carried, const Bf16* norm_weight, HcMix mix,
                Rows<Bf16> x) override {
    const int32_t mix_count = (2 + options.streams) * options.streams;
    each_row(streams.rows, [&](int64_t r) {
      std::vector<float> mixes(static_cast<size_t>(mix_count));
      plain::hc_project(streams.row(r), streams.cols, weights.fn, options, mixes.data());
      // Before mix is written: the caller may hand in `carried` as this site's `pre`.
      plain::collapse(streams.row(r), carried.row(r), x.cols, options.streams, x.row(r));
      plain::rms_norm(x.row(r), norm_weight, x.cols, options.norm_eps, x.row(r));
      plain::hc_coefficients(mixes.data(), weights.base, weights.scale, options, mix.pre.row(r),
                             mix.post.row(r), mix.comb.row(r));
    });
  }

  void collapse_norm(Rows<const Bf16> streams, Rows<const float> carried, int32_t stream_count,
                     const Bf16* norm_weight, float eps, Rows<Bf16> x) override {
    each_row(streams.rows, [&](int64_t r) {
      plain::collapse(streams.row(r), carried.row(r), x.cols, stream_count, x.row(r));
      plain::rms_norm(x.row(r), norm_weight, x.cols, eps, x.row(r));
    });
  }

  void hc_leave(Rows<const Bf16> y, Rows<const float> post, Rows<const float> comb,
                int32_t stream_count, Rows<Bf16> streams) override {
    each_row(y.rows, [&](int64_t r) {
      plain::expand(y.row(r), post.row(r), comb.row(r), y.cols, stream_count, streams.row(r));
    });
  }

  void stream_mean(Rows<const Bf16> streams, int32_t stream_count, Rows<Bf16> mean) override {
    each_row(streams.rows, [&](int64_t r) {
      for (int64_t i = 0; i < mean.cols; ++i) {
        float sum = 0.0F;
        for (int32_t j = 0; j < stream_count; ++j) {
          sum += to_f32(streams.row(r)[j * mean.cols + i]);
        }
        mean.row(r)[i] = to_bf16(sum / static_cast<float>(stream_count));
      }
    });
  }

  void rope(Rows<Bf16> x, int32_t heads, const RopeAngles& angles, bool inverse) override {
    each_row(x.rows, [&](int64_t r) { rope_heads(x.row(r), x.cols, heads, angles, r, inverse); });
  }

  void window_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps, const RopeAngles& angles,
                   Rows<uint8_t> records) override {
    each_row(x.rows, [&](int64_t r) {
      std::vector<Bf16> key(static_cast<size_t>(x.cols));
      plain::rms_norm(x.row(r), norm_weight, x.cols, eps, key.data());
      rope_heads(key.data(), x.cols, 1, angles, r, false);
      plain::write_window_record(key.data(), x.cols, records.row(r));
    });
  }

  void compress(Rows<const float> kv, Rows<const float> gate, int32_t ratio,
                const Bf16* norm_weight, float eps, Rows<Bf16> latent) override {
    each_row(latent.rows, [&](int64_t g) {
      plain::compress_group(kv.row(g * ratio), kv.stride, gate.row(g * ratio), gate.stride, ratio,
                            norm_weight, latent.cols, eps, latent.row(g));
    });
  }

  void global_keys(Rows<const Bf16> latent, const RopeAngles& angles,
                   std::span<uint8_t* const> destination) override {
    each_row(latent.rows, [&](int64_t r) {
      std::vector<Bf16> key(latent.row(r), latent.row(r) + latent.cols);
      rope_heads(key.data(), latent.cols, 1, angles, r, false);
      plain::write_global_record(key.data(), latent.cols, destination[r]);
    });
  }

  void index_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps, const RopeAngles& angles,
                  std::span<uint8_t* const> destination) override {
    each_row(x.rows, [&](int64_t r) {
      std::vector<Bf16> key(static_cast<size_t>(x.cols));
      plain::rms_norm(x.row(r), norm_weight, x.cols, eps, key.data());
      rope_heads(key.data(), x.cols, 1, angles, r, false);
      plain::write_index_record(key.data(), x.cols, destination[r]);
    });
  }

  void index_queries(Rows<Bf16> x, int32_t heads, const RopeAngles& angles) override {
    const int64_t width = x.cols / heads;
    each_row(x.rows, [&](int64_t r) {
      rope_heads(x.row(r), x.cols, heads, angles, r, false);
      std::vector<uint8_t> record(static_cast<size_t>(index_record_bytes(width)));
      std::vector<float> wide(static_cast<size_t>(width));
      for (int32_t head = 0; head < heads; ++head) {
        Bf16* query = x.row(r) + head * width;
        plain::write_index_record(query, width, record.data());
        plain::read_index_record(record.data(), width, wide.data());
        for (int64_t i = 0; i < width; ++i) query[i] = to_bf16(wide[i]);
      }
    });
  }

  void index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                    const IndexShape& shape, std::span<const IndexRow> rows) override {
    each_row(queries.rows, [&](int64_t r) {
      plain::index_select_row(queries.row(r), head_weights.row(r), shape, rows[r]);
    });
  }

  void attention(Rows<const Bf16> q, const float* sink, const AttentionShape& shape,
                 const RopeAngles& angles, std::span<const AttentionRow> rows,
                 Rows<Bf16> o) override {
    each_row(q.rows, [&](int64_t r) {
      plain::attention_row(q.row(r), sink, shape, rows[r], o.row(r));
      rope_heads(o.row(r), o.cols, shape.heads, angles, r, true);
    });
  }

  void route(Rows<const Bf16> x, const WeightView& gate, std::span<const float* const> bias_of_row,
             const RouterOptions& options, Rows<int32_t> experts, Rows<float> weights,
             float* margin) override {
    std::vector<float> logits(static_cast<size_t>(x.rows * gate.out));
    const Product product = {gate, false, {}, Rows<float>(logits.data(), x.rows, gate.out)};
    plain::linear(pool_, x, {&product, 1});
    each_row(x.rows, [&](int64_t r) {
      const float row_margin =
          plain::route_row(logits.data() + r * gate.out, bias_of_row[r],
                           static_cast<int32_t>(gate.out), options, experts.row(r), weights.row(r));
      if (margin != nullptr) margin[r] = row_margin;
    });
  }

  void moe(Rows<const Bf16> x, const MoeWeights& weights, Rows<const int32_t> experts,
           Rows<const float> expert_weights, Rows<Bf16> y) override {
    plain::moe(pool_, x, weights, experts, expert_weights, y);
  }

  void engram_lookup(const EngramTable& table, Rows<const int64_t> ids, Rows<Bf16> e) override {
    each_row(ids.rows, [&](int64_t r) {
      for (int64_t column = 0; column < ids.cols; ++column) {
        plain::engram_read(table.codes, table.scale, table.width, ids.row(r)[column],
                           e.row(r) + column * table.width);
      }
    });
  }

  void engram_write(Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                    std::span<const uint8_t> alive, int32_t stream_count, float eps,
                    Rows<Bf16> streams, Rows<float> gate) override {
    each_row(kv.rows, [&](int64_t r) {
      float* gamma = gate.data != nullptr ? gate.row(r) : nullptr;
      if (alive[r] == 0) {
        if (gamma != nullptr) std::fill_n(gamma, stream_count, 0.0F);
        return;
      }
      plain::engram_write_row(kv.row(r), q_weight, k_weight, streams.cols / stream_count,
                              stream_count, eps, streams.row(r), gamma);
    });
  }

 private:
  template <class Body>
  void each_row(int64_t rows, Body&& body) {
    pool_.run(rows, [&](int64_t row, int) { body(row); });
  }

  // The row's angles turn each of its heads.
  static void rope_heads(Bf16* x, int64_t cols, int32_t heads, const RopeAngles& angles,
                         int64_t row, bool inverse) {
    const int64_t width = cols / heads;
    for (int32_t head = 0; head < heads; ++head) {
      plain::rope(x + head * width, width, angles.cos.row(row), angles.sin.row(row),
                  2 * angles.cos.cols, inverse);
    }
  }

  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<Ops> make_plain_ops(ThreadPool& pool) { return std::make_unique<PlainOps>(pool); }

}  // namespace galley::kernels
