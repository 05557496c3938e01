#include "kernels/mirrored_ops.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <vector>

#include "base/check.h"
#include "kernels/host_ops.h"

namespace galley::kernels {
namespace {

class MirroredOps final : public HostOps {
 public:
  explicit MirroredOps(Ops& device) : device_(&device) {}

  std::string_view name() const override { return device_->name(); }

  void copy(std::span<const RowCopy> copies) override {
    std::vector<RowCopy> list;
    for (const RowCopy& one : copies) {
      list.push_back({in(one.from, one.bytes), out(one.to, one.bytes), one.bytes});
    }
    device_->copy(list);
    end();
  }
  void spread(std::span<const SourceRow> sources, int64_t hidden, int32_t copies,
              Rows<Bf16> streams) override {
    std::vector<SourceRow> list;
    for (const SourceRow& source : sources) {
      const int64_t rows = source.drawn == nullptr ? 1 : source.drawn->token + 1;
      list.push_back({in(source.row, rows * hidden * 2), in(source.drawn, sizeof(DrawnToken))});
    }
    device_->spread(list, hidden, copies, out(streams));
    end();
  }
  bool draws() const override { return device_->draws(); }
  void draw(Rows<const float> logits, std::span<const DrawRequest> requests,
            DrawnToken* tokens) override {
    device_->draw(in(logits), requests, out(tokens, logits.rows * int64_t{sizeof(DrawnToken)}));
    end();
  }
  void linear(Rows<const Bf16> x, std::span<const Product> products) override {
    device_->linear(in(x), placed(products));
    end();
  }
  void grouped_linear(Rows<const Bf16> x, const WeightView& weight, int32_t groups,
                      Rows<Bf16> y) override {
    device_->grouped_linear(in(x), in(weight), groups, out(y));
    end();
  }
  void rms_norm(Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) override {
    const Rows<Bf16> result = out(y);
    device_->rms_norm(in_or(x, y, result), in(weight, x.cols * 2), eps, result);
    end();
  }
  void norm_linear(Rows<Bf16> x, const Bf16* weight, float eps,
                   std::span<const Product> products) override {
    device_->norm_linear(out(x), in(weight, x.cols * 2), eps, placed(products));
    end();
  }
  void hc_enter(Rows<const Bf16> streams, const HcWeights& weights, const HcOptions& options,
                Rows<const float> carried, const Bf16* norm_weight, HcMix mix,
                Rows<Bf16> x) override {
    const int64_t n = options.streams;
    const HcWeights placed{.fn = in(weights.fn, (2 + n) * n * streams.cols * 4),
                           .base = in(weights.base, (2 + n) * n * 4),
                           .scale = in(weights.scale, 12)};
    const HcMix result{out(mix.pre), out(mix.post), out(mix.comb)};
    device_->hc_enter(in(streams), placed, options, in_or(carried, mix.pre, result.pre),
                      in(norm_weight, x.cols * 2), result, out(x));
    end();
  }
  void collapse_norm(Rows<const Bf16> streams, Rows<const float> carried, int32_t stream_count,
                     const Bf16* norm_weight, float eps, Rows<Bf16> x) override {
    device_->collapse_norm(in(streams), in(carried), stream_count, in(norm_weight, x.cols * 2), eps,
                           out(x));
    end();
  }
  void hc_leave(Rows<const Bf16> y, Rows<const float> post, Rows<const float> comb,
                int32_t stream_count, Rows<Bf16> streams) override {
    device_->hc_leave(in(y), in(post), in(comb), stream_count, out(streams));
    end();
  }
  void stream_mean(Rows<const Bf16> streams, int32_t stream_count, Rows<Bf16> mean) override {
    device_->stream_mean(in(streams), stream_count, out(mean));
    end();
  }
  void rope(Rows<Bf16> x, int32_t heads, const RopeAngles& angles, bool inverse) override {
    device_->rope(out(x), heads, in(angles), inverse);
    end();
  }
  void window_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps, const RopeAngles& angles,
                   Rows<uint8_t> records) override {
    device_->window_keys(in(x), in(norm_weight, x.cols * 2), eps, in(angles), out(records));
    end();
  }
  void compress(Rows<const float> kv, Rows<const float> gate, int32_t ratio,
                const Bf16* norm_weight, float eps, Rows<Bf16> latent) override {
    device_->compress(in(kv), in(gate), ratio, in(norm_weight, latent.cols * 2), eps, out(latent));
    end();
  }
  void global_keys(Rows<const Bf16> latent, const RopeAngles& angles,
                   std::span<uint8_t* const> destination) override {
    const auto list = records(destination, global_record_bytes(latent.cols));
    device_->global_keys(in(latent), in(angles), list);
    end();
  }
  void index_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps, const RopeAngles& angles,
                  std::span<uint8_t* const> destination) override {
    const auto list = records(destination, index_record_bytes(x.cols));
    device_->index_keys(in(x), in(norm_weight, x.cols * 2), eps, in(angles), list);
    end();
  }
  void index_queries(Rows<Bf16> x, int32_t heads, const RopeAngles& angles) override {
    device_->index_queries(out(x), heads, in(angles));
    end();
  }
  void index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                    const IndexShape& shape, std::span<const IndexRow> rows) override {
    std::vector<IndexRow> list(rows.begin(), rows.end());
    for (IndexRow& row : list) {
      row.keys = in(row.keys, row.visible);
      if (row.pool != nullptr) row.pool = in(row.pool, *row.pool_count * 4);
      if (row.pool_count != nullptr) row.pool_count = in(row.pool_count, 4);
      row.selected = out(row.selected, int64_t{shape.top_k} * 4);
      row.selected_count = out(row.selected_count, 4);
      if (row.built_pool != nullptr) {
        row.built_pool = out(row.built_pool, int64_t{shape.pool_blocks} * 4);
        row.built_pool_count = out(row.built_pool_count, 4);
      }
      if (row.scores != nullptr) row.scores = out(row.scores, row.visible * 4);
    }
    device_->index_select(in(queries), in(head_weights), shape, list);
    end();
  }
  void attention(Rows<const Bf16> q, const float* sink, const AttentionShape& shape,
                 const RopeAngles& angles, std::span<const AttentionRow> rows,
                 Rows<Bf16> o) override {
    const int64_t record = window_record_bytes(shape.head_dim);
    std::vector<AttentionRow> list(rows.begin(), rows.end());
    AttentionShape bounded = shape;
    for (AttentionRow& row : list) {
      const int32_t count = row.selection();
      bounded.selected_max = std::max(bounded.selected_max, count);
      row.ring = in(row.ring, row.ring_slots * record);
      row.chunk = in(row.chunk, std::max<int64_t>(0, row.position - row.chunk_begin + 1) * record);
      const int64_t entries = count == 0 ? 0 : row.selected[count - 1] + 1;
      row.global = in(row.global, entries);
      row.selected = in(row.selected, int64_t{count} * 4);
      if (row.selected_count != nullptr) row.selected_count = in(row.selected_count, 4);
    }
    const Rows<Bf16> result = out(o);
    device_->attention(in_or(q, o, result), in(sink, int64_t{shape.heads} * 4), bounded, in(angles),
                       list, result);
    end();
  }
  void route(Rows<const Bf16> x, const WeightView& gate, std::span<const float* const> bias_of_row,
             const RouterOptions& options, Rows<int32_t> experts, Rows<float> weights,
             float* margin) override {
    std::vector<const float*> biases;
    for (const float* bias : bias_of_row) biases.push_back(in(bias, gate.out * 4));
    device_->route(in(x), in(gate), biases, options, out(experts), out(weights),
                   out(margin, margin == nullptr ? 0 : x.rows * 4));
    end();
  }
  void moe(Rows<const Bf16> x, const MoeWeights& weights, Rows<const int32_t> experts,
           Rows<const float> expert_weights, Rows<Bf16> y) override {
    // Kept for good: the backend knows a layer by its list of experts.
    std::vector<ExpertWeights>& list = expert_lists_.emplace_back();
    for (const ExpertWeights& one : weights.experts) list.push_back(in(one));
    MoeWeights placed{
        .experts = list, .shared = in(weights.shared), .swiglu_limit = weights.swiglu_limit};
    fold(placed, list);
    device_->moe(in(x), placed, in(experts), in(expert_weights), out(y));
    end();
  }
  void engram_lookup(const EngramTable& table, Rows<const int64_t> ids, Rows<Bf16> e) override {
    device_->engram_lookup(table, ids, out(e));
    end();
    // The device's table may give no other rows than the host's did.
    const std::vector<std::byte> gathered = contents(e);
    int64_t rows = 0;
    for (int64_t r = 0; r < ids.rows; ++r) {
      for (int64_t c = 0; c < ids.cols; ++c) rows = std::max(rows, ids.row(r)[c] + 1);
    }
    const EngramTable placed{.codes = in(table.codes, rows * table.width),
                             .scale = in(table.scale, rows * ((table.width + 31) / 32)),
                             .width = table.width,
                             .on_host = false};
    device_->engram_lookup(placed, ids, out(e));
    end();
    CHECK(contents(e) == gathered);
  }
  void engram_write(Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                    std::span<const uint8_t> alive, int32_t stream_count, float eps,
                    Rows<Bf16> streams, Rows<float> gate) override {
    device_->engram_write(in(kv), in(q_weight, streams.cols * 2), in(k_weight, streams.cols * 2),
                          alive, stream_count, eps, out(streams), out(gate));
    end();
  }

 private:
  struct Written {
    void* host;
    const void* device;
    int64_t bytes;
  };

  std::byte* room(int64_t bytes) {
    blocks_.push_back(
        MemoryBlock::create(device_->memory(), std::max<int64_t>(bytes, 256), "a test").value());
    return blocks_.back().data();
  }
  std::byte* place(const void* host, int64_t bytes) {
    std::byte* to = room(bytes);
    if (bytes > 0) device_->memory().write(to, host, bytes);
    return to;
  }
  template <class T>
  const T* in(const T* host, int64_t bytes) {
    return host == nullptr ? nullptr : reinterpret_cast<const T*>(place(host, bytes));
  }
  // Also what it held: operations in place read it, and some leave gaps.
  template <class T>
  T* out(T* host, int64_t bytes) {
    if (host == nullptr) return nullptr;
    std::byte* device = place(host, bytes);
    results_.push_back({host, device, bytes});
    return reinterpret_cast<T*>(device);
  }
  template <class T>
  static int64_t size_of(const Rows<T>& rows) {
    if (rows.data == nullptr || rows.rows == 0) return 0;
    return ((rows.rows - 1) * rows.stride + rows.cols) * static_cast<int64_t>(sizeof(T));
  }
  template <class T>
  Rows<const T> in(Rows<const T> rows) {
    return Rows<const T>(in(rows.data, size_of(rows)), rows.rows, rows.cols, rows.stride);
  }
  template <class T>
  Rows<T> out(Rows<T> rows) {
    return Rows<T>(out(rows.data, size_of(rows)), rows.rows, rows.cols, rows.stride);
  }
  // `result` where x and y are the same rows.
  template <class T>
  Rows<const T> in_or(Rows<const T> x, Rows<T> y, Rows<T> result) {
    return x.data == y.data ? Rows<const T>(result) : in(x);
  }
  WeightView in(WeightView view) {
    view.data = in(static_cast<const uint8_t*>(view.data), view.data_bytes());
    view.scale = in(view.scale, view.scale_bytes());
    return view;
  }
  std::vector<Product> placed(std::span<const Product> products) {
    std::vector<Product> list;
    for (const Product& one : products) {
      const WeightView weight = one.quantise_input ? folded(one.weight) : in(one.weight);
      list.push_back({weight, one.quantise_input, out(one.y), out(one.y_f32)});
    }
    return list;
  }
  // Placed as a model's weights are: folded where the device wants that and nothing is lost.
  WeightView folded(const WeightView& weight) {
    const WeightView raw = in(weight);
    const int64_t bytes = device_->folds() == nullptr ? 0 : device_->folds()->matrix_bytes(weight);
    if (bytes == 0) return raw;
    std::byte* to = room(bytes);
    device_->folds()->fold_matrix(raw, to);
    return device_->folds()->take_counts().value().misfits == 0 ? folded_view(raw, to) : raw;
  }
  void fold(const MoeWeights& layer, std::vector<ExpertWeights>& list) {
    const int64_t bytes = device_->folds() == nullptr ? 0 : device_->folds()->experts_bytes(layer);
    if (bytes == 0) return;
    std::byte* to = room(bytes);
    const auto count = static_cast<int32_t>(list.size());
    for (int32_t e = 0; e <= count; ++e) {
      device_->folds()->fold_expert(layer, e,
                                    e == count ? layer.shared : list[static_cast<size_t>(e)], to);
    }
    if (device_->folds()->take_counts().value().misfits != 0) return;
    for (ExpertWeights& one : list) {
      one = {folded_view(one.w1, to), folded_view(one.w3, to), folded_view(one.w2, to)};
    }
  }
  ExpertWeights in(const ExpertWeights& one) { return {in(one.w1), in(one.w3), in(one.w2)}; }
  RopeAngles in(const RopeAngles& angles) { return {in(angles.cos), in(angles.sin)}; }
  // The pages that hold the first `entries` records.
  PagedRecords in(PagedRecords paged, int64_t entries) {
    if (entries == 0 || paged.pool == nullptr) return {};
    const int64_t pages = (entries + paged.records_per_page - 1) / paged.records_per_page;
    const int64_t last = *std::max_element(paged.page_table, paged.page_table + pages);
    const int64_t bytes =
        last * paged.page_stride +
        std::min<int64_t>(entries, paged.records_per_page) * int64_t{paged.record_bytes};
    paged.pool = reinterpret_cast<uint8_t*>(place(paged.pool, bytes));
    paged.page_table = in(paged.page_table, pages * 4);
    return paged;
  }
  std::vector<uint8_t*> records(std::span<uint8_t* const> destination, int64_t bytes) {
    std::vector<uint8_t*> list;
    for (uint8_t* one : destination) list.push_back(out(one, bytes));
    return list;
  }
  static std::vector<std::byte> contents(const Rows<Bf16>& rows) {
    std::vector<std::byte> bytes;
    for (int64_t r = 0; r < rows.rows; ++r) {
      const auto* row = reinterpret_cast<const std::byte*>(rows.row(r));
      bytes.insert(bytes.end(), row, row + rows.cols * int64_t{sizeof(Bf16)});
    }
    return bytes;
  }

  void end() {
    const auto done = device_->finish();
    if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
    CHECK(done.has_value());  // the device is gone: nothing that follows would mean anything
    for (const Written& one : results_) {
      device_->memory().read(one.host, one.device, one.bytes);
    }
    results_.clear();
    blocks_.clear();
    device_->begin_step();
  }

  Ops* device_;
  std::deque<MemoryBlock> blocks_;
  std::vector<Written> results_;
  std::deque<std::vector<ExpertWeights>> expert_lists_;
};

}  // namespace

std::unique_ptr<Ops> make_mirrored_ops(Ops& device) {
  return std::make_unique<MirroredOps>(device);
}

}  // namespace galley::kernels
