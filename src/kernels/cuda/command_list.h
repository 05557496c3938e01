// Launches that wait for their step's arguments, and the key under which a graph of
// them is found again.
//
// A step's host code enqueues; flush hands the list to the stream, or to a graph
// that an equal list became before. Two lists are equal if every function and every
// argument are: the key is their hash, 128 bits, so that no list is mistaken for
// another. Knows nothing of what the commands do. Fixed storage, nothing allocated
// after construction. Owned by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/engram.h"
#include "kernels/cuda/expert_layer.h"
#include "kernels/cuda/expert_share.h"
#include "kernels/cuda/few_experts.h"
#include "kernels/cuda/grouped_product.h"
#include "kernels/cuda/hc_site.h"
#include "kernels/cuda/index_select_sm90.h"
#include "kernels/cuda/input_tiles.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lone_row.h"
#include "kernels/cuda/narrow_pair.h"
#include "kernels/cuda/norm_tiles.h"
#include "kernels/cuda/route_plan.h"
#include "kernels/cuda/site_mixes.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// Two independent chains of multiply and rotate over what is added.
class CommandKey {
 public:
  void add(uint64_t word) {
    a_ = rotate((a_ ^ word) * 0x9E3779B97F4A7C15U, 29);
    b_ = rotate((b_ + word) * 0xC2B2AE3D27D4EB4FU, 31) ^ a_;
  }

  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void add_value(T value) {
    if constexpr (std::is_floating_point_v<T>) {
      const auto wide = static_cast<double>(value);
      uint64_t word = 0;
      std::memcpy(&word, &wide, sizeof(word));
      add(word);
    } else {
      add(static_cast<uint64_t>(value));
    }
  }
  template <class T>
  void add_value(T* value) {
    add(reinterpret_cast<uintptr_t>(value));
  }
  template <class T>
  void add_value(const Rows<T>& rows) {
    add_all(rows.data, rows.rows, rows.cols, rows.stride);
  }
  void add_value(const WeightView& w) { add_all(w.format, w.out, w.in, w.data, w.scale, w.folded); }
  void add_value(const ProductArguments& p) {
    add_all(p.weights, p.expert_bytes, p.row_scale, p.x, p.x_scale, p.x_rows, p.blocks, p.totals,
            p.rows, p.experts, p.chunks, p.groups);
    add_all(p.slots, p.outputs, p.y, p.y_stride, p.row_weight, p.limit);
  }
  void add_value(const DensePart& p) { add_all(p.weights, p.y, p.y_stride, p.slots, p.outputs); }
  void add_value(const DenseSet& set) {
    add_all(set.form, set.common, set.count, set.copies, set.copy_count, set.raw);
    for (int32_t i = 0; i < set.count; ++i) add_value(set.parts[i]);
  }
  void add_value(const RopeAngles& angles) { add_all(angles.cos, angles.sin); }
  void add_value(const HcWeights& w) { add_all(w.fn, w.base, w.scale); }
  void add_value(const HcOptions& o) {
    add_all(o.streams, o.sinkhorn_iterations, o.hc_eps, o.norm_eps);
  }
  void add_value(const HcMix& mix) { add_all(mix.pre, mix.post, mix.comb); }
  void add_value(const SiteMixes& m) {
    add_all(m.sums, m.weights, m.options, m.mix, m.rows, m.hidden);
  }
  void add_value(const IndexShape& s) {
    add_all(s.heads, s.head_dim, s.top_k, s.pool_blocks, s.pool_block_size);
  }
  void add_value(const AttentionShape& s) {
    add_all(s.heads, s.head_dim, s.window, s.selected_max);
  }
  void add_value(const AttentionCall& c) {
    add_all(c.q, c.q_stride, c.sink, c.cos, c.sin, c.angle_stride, c.rotary, c.turns, c.keys_early,
            c.rows, c.row_count);
    add_all(c.o, c.o_stride, c.room);
  }
  void add_value(const IndexCall& c) {
    add_all(c.queries, c.query_stride, c.head_weights, c.weight_stride, c.shape, c.rows,
            c.row_count, c.entries_max, c.builds_pool, c.scratch, c.scratch_bytes);
  }
  void add_value(const EngramRows& r) { add_all(r.codes, r.scale); }
  void add_value(const RouterOptions& o) { add_all(o.top_k, o.scale, o.gate_temperature); }
  void add_value(const RowProduct& p) {
    add_all(p.x, p.weight, p.groups, p.y, p.y_f32, p.quantise);
  }
  void add_value(const ProductSet& set) {
    add(static_cast<uint64_t>(set.count));
    for (int32_t i = 0; i < set.count; ++i) add_value(set.products[i]);
    add_all(set.norm_weight, set.norm_eps, set.window_keys, set.copies, set.copy_count, set.mixes);
  }
  void add_value(const NarrowPair& pair) {
    add_all(pair.inner, pair.outer, pair.copies, pair.copy_count);
  }
  void add_value(const WindowKeys& keys) {
    add_all(keys.x, keys.norm_weight, keys.eps, keys.angles, keys.records);
  }
  void add_value(const InputTiles& tiles) { add_all(tiles.codes, tiles.scale, tiles.places); }
  void add_value(const NormTiles& norm) {
    add_all(norm.x, norm.weight, norm.eps, norm.tiles, norm.keys);
  }
  void add_value(const ExpertParts& p) { add_all(p.rows, p.top_k, p.place, p.shared); }
  void add_value(const HcLeave& l) { add_all(l.parts, l.y, l.post, l.comb, l.streams); }
  void add_value(const FewExperts& e) {
    add_all(e.x, e.experts, e.expert_weights, e.expert_count, e.gate, e.up, e.down, e.shared_gate,
            e.shared_up, e.shared_down, e.limit, e.inner, e.out, e.mixes);
  }
  void add_value(const LoneSite& s) {
    add_all(s.leave, s.streams, s.weights, s.options, s.carried, s.norm_weight, s.mix, s.x);
  }
  void add_value(const LateMixes& s) { add_all(s.streams, s.weights, s.options, s.mix); }
  void add_value(const LoneQuery& q) {
    add_all(q.site, q.latent, q.latent_norm, q.latent_eps, q.other_count, q.query_count, q.keys);
    for (int32_t i = 0; i < q.other_count; ++i) add_value(q.others[i]);
    for (int32_t i = 0; i < q.query_count; ++i) add_value(q.queries[i]);
  }
  void add_value(const LoneAttention& a) {
    add_all(a.q, a.turns, a.sink, a.shape, a.angles, a.rows, a.o, a.inner, a.outer, a.copies,
            a.copy_count, a.ring_early);
  }
  void add_value(const LoneExperts& e) {
    add_all(e.site, e.gate, e.gate_rows, e.bias_of_row, e.options, e.experts, e.weights, e.few,
            e.format);
  }
  void add_value(const PairPlan& p) {
    add_all(p.pair, p.begin, p.tile_expert, p.tile_begin, p.tile_count);
  }
  void add_value(const ExpertProduct& p) {
    add_all(p.x, p.pairs_per_x, p.weight, p.shape, p.experts, p.pairs, p.tile_rows, p.plan, p.y);
  }
  void add_value(const ExpertShape& s) {
    add_all(s.experts, s.top_k, s.hidden, s.inner, s.swiglu_limit);
  }
  void add_value(const ExpertTiles& t) {
    add_all(t.gate_up, t.down, t.gate_up_scale, t.down_scale, t.shared_gate_up, t.shared_down);
  }
  // All but what run_experts adds.
  void add_value(const RoutePlan& r) {
    add_all(r.x, r.gate, r.bias_of_row, r.options, r.experts, r.weights, r.margin, r.room);
  }
  void add_value(const RankParts& p) {
    for (const std::byte* one : p.of) add_value(one);
  }
  void add_value(const RankInputs& p) {
    add(static_cast<uint64_t>(p.count));
    add_all(p.self, p.own);
    for (int32_t r = 0; r < p.count; ++r) add_all(p.of[r], p.rows[r]);
  }
  template <class... T>
  void add_all(const T&... values) {
    (add_value(values), ...);
  }

  bool operator==(const CommandKey&) const = default;

 private:
  static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

  uint64_t a_ = 0x243F6A8885A308D3U;
  uint64_t b_ = 0x13198A2E03707344U;
};

class CommandList {
 public:
  explicit CommandList(int64_t bytes_max)
      : room_(bytes_max),
        storage_(new std::max_align_t[static_cast<size_t>(
            bytes_max / static_cast<int64_t>(sizeof(std::max_align_t)))]) {}

  bool empty() const { return commands_.empty(); }
  int64_t count() const { return static_cast<int64_t>(commands_.size()); }
  const CommandKey& key() const { return key_; }
  // Of the functions alone.
  const CommandKey& form() const { return form_; }
  // Whether one more command surely fits.
  bool has_room() const { return used_ + kCommandBytesMax <= room_; }

  // function(arguments..., stream) or function(stream, arguments...), later.
  template <class Function, class... A>
  void add(Function* function, const A&... arguments) {
    put(function, std::tuple<std::decay_t<A>...>(arguments...),
        [](Function* f, Stream stream, const auto&... values) { f(values..., stream); });
  }
  template <class Function, class... A>
  void add_first(Function* function, const A&... arguments) {
    put(function, std::tuple<std::decay_t<A>...>(arguments...),
        [](Function* f, Stream stream, const auto&... values) { f(stream, values...); });
  }

  void run(Stream stream) const {
    for (const Command* command : commands_) command->run(stream);
  }
  void clear() {
    commands_.clear();
    used_ = 0;
    key_ = {};
    form_ = {};
  }

 private:
  static constexpr int64_t kCommandBytesMax = 2560;

  struct Command {
    virtual void run(Stream stream) const = 0;

   protected:
    ~Command() = default;
  };
  template <class Function, class Arguments, class How>
  struct CallCommand final : Command {
    CallCommand(Function* f, const Arguments& a) : function(f), arguments(a) {}
    void run(Stream stream) const override {
      std::apply([&](const auto&... values) { How()(function, stream, values...); }, arguments);
    }
    Function* function;
    Arguments arguments;
  };

  template <class Function, class Arguments, class How>
  void put(Function* function, const Arguments& arguments, How /*how*/) {
    using Stored = CallCommand<Function, Arguments, How>;
    static_assert(std::is_trivially_destructible_v<Arguments> &&
                  sizeof(Stored) <= kCommandBytesMax);
    key_.add(reinterpret_cast<uintptr_t>(function));
    form_.add(reinterpret_cast<uintptr_t>(function));
    std::apply([this](const auto&... values) { key_.add_all(values...); }, arguments);
    auto* place = reinterpret_cast<std::byte*>(storage_.get()) + used_;
    commands_.push_back(new (place) Stored(function, arguments));
    used_ += (static_cast<int64_t>(sizeof(Stored)) + 15) / 16 * 16;
  }

  int64_t room_;
  std::unique_ptr<std::max_align_t[]> storage_;
  int64_t used_ = 0;
  std::vector<const Command*> commands_;
  CommandKey key_;
  CommandKey form_;
};

}  // namespace galley::kernels::cuda
