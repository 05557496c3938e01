#include "kernels/cuda/cuda_ops.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/command_list.h"
#include "kernels/cuda/compressor.h"
#include "kernels/cuda/dense_set.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/engram.h"
#include "kernels/cuda/engram_store.h"
#include "kernels/cuda/expert_sharing.h"
#include "kernels/cuda/expert_tables.h"
#include "kernels/cuda/few_experts.h"
#include "kernels/cuda/fold_store.h"
#include "kernels/cuda/held_copies.h"
#include "kernels/cuda/held_lone.h"
#include "kernels/cuda/held_pair.h"
#include "kernels/cuda/held_site.h"
#include "kernels/cuda/held_spread.h"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/index_rooms.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/made_tiles.h"
#include "kernels/cuda/memory_span.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/norm_tiles.h"
#include "kernels/cuda/quantise.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/route_plan.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/scratch_rooms.h"
#include "kernels/cuda/side_stream.h"
#include "kernels/cuda/site_mixes.h"
#include "kernels/cuda/stage_arena.h"
#include "kernels/cuda/step_lane.h"
#include "kernels/cuda/weight_tiles.h"

namespace galley::kernels::cuda {
namespace {

// Steps of more rows launch as they go: the device is then slower than the host.
constexpr int64_t kGraphRowsMax = 512;
constexpr int64_t kSideRowsMax = kGraphRowsMax;  // of the shared expert, beside the others
constexpr int64_t kCopiesAlongMax = 512;         // that a launch of products takes along
constexpr int64_t kFetchAlongMax = 16 << 10;     // bytes that a launch brings to the host

class CudaOps final : public Ops {
  auto appends() {
    return [this](auto* function, const auto&... a) { append_first(function, a...); };
  }

 public:
  static Result<std::unique_ptr<Ops>> create(int32_t index) {
    const DeviceProperties device = TRY(open_device(index));
    const StepStreams streams = TRY(StepStreams::create());
    std::unique_ptr<CudaOps> ops(new CudaOps(device, streams));
    TRY(open_side(ops->side_));
    return std::unique_ptr<Ops>(std::move(ops));
  }

  ~CudaOps() override {
    engram_.release();
    lane_.synchronise();
    close_side(side_);
  }

  int64_t appended_count() const { return lane_.appended_count(); }
  std::string_view name() const override { return "cuda"; }
  Memory& memory() override { return *memory_; }
  WeightFolds* folds() override { return &folds_; }
  ExpertSharing* sharing() override { return &sharing_; }

  Result<void> reserve(const StepBounds& bounds) override {
    entries_ = bounds.entries;
    TRY(lane_.reserve(bounds.stage_bytes));
    scratch_.reserve(bounds);
    for (const MoeWeights& weights : bounds.moe) {
      if (!weights.experts.empty() && !weights.experts[0].w1.folded) expert_table(weights);
    }
    flush();  // another table may lie where one was that is gone
    lane_.synchronise();
    if (!bounds.tables.empty()) {
      TRY(engram_.reserve(bounds.tables, bounds.engram_width / bounds.tables[0].width,
                          std::min(bounds.rows, kGraphRowsMax)));
    }
    if (lane_.failure()) return *lane_.failure();
    return {};
  }

  void begin_step() override {
    if (lane_.is_open()) settle_all();
    lane_.begin_step();
    engram_.begin_step();
    written_.clear();
  }
  void hand_in() override {
    settle_all();
    lane_.hand_in();
  }
  bool overlaps_steps() const override { return true; }
  bool is_done() override { return lane_.is_done(); }
  Result<void> finish() override {
    settle_all();
    return lane_.finish();
  }
  void fetch(void* host, const void* from, int64_t bytes) override {
    if (bytes > kFetchAlongMax) return lane_.fetch(host, from, bytes);
    const RowCopy one{from, host, bytes};  // by a launch: a copy of the engine costs 7 us more
    if (bytes > 0) enqueue(launch_copy, staged(std::span(&one, 1)), int64_t{1});
  }

  const void* stage(const void* host, int64_t bytes) override { return arena().stage(host, bytes); }

  void copy(std::span<const RowCopy> copies) override {
    if (copies.empty()) return;
    for (const RowCopy& one : copies) written_.add(MemorySpan::of(one.to, one.bytes));
    const RowCopy* list = staged(copies);
    const MadeTiles made = made_;
    if (held_site_.meets(copies)) settle_all();
    if (!held_spread_.empty() && !held_spread_.meets(copies)) {
      return append_spread(list, std::ssize(copies));
    }
    if (!fuses_ || std::ssize(copies) > kCopiesAlongMax) {
      enqueue(launch_copy, list, std::ssize(copies));
      return;
    }
    if (!lone_.lets_copy() || !held_copies_.empty()) settle();
    held_copies_.hold(copies, list);
    if (!held_copies_.meet(MemorySpan::of(made.rows()), {})) made_ = made;
  }

  void spread(std::span<const SourceRow> sources, int64_t hidden, int32_t copies,
              Rows<Bf16> streams) override {
    CHECK(copies == kStreams && streams.cols == copies * hidden);
    lane_.set_waits(streams.rows <= kGraphRowsMax);  // the first operation of a step
    settle_all();
    held_spread_ = HeldSpread::of(sources, staged(sources), hidden, streams);
    if (!fuses_) settle();
  }

  bool draws() const override { return true; }
  void draw(Rows<const float> logits, std::span<const DrawRequest> requests,
            DrawnToken* tokens) override {
    CHECK(std::ssize(requests) == logits.rows);
    if (logits.rows == 0) return;
    void* workspace = bytes(Scratch::kDraw, sample_workspace_bytes(logits.rows, logits.cols));
    const DrawRequest* wanted = staged(requests);
    const auto cuts = std::ranges::count_if(requests, &DrawRequest::is_cut);
    if (cuts < logits.rows) enqueue_first(sample, logits, wanted, tokens, workspace);
    if (cuts > 0) enqueue_first(sample_cut, logits, wanted, tokens);
  }

  void linear(Rows<const Bf16> x, std::span<const Product> products) override {
    if (x.rows == 0 || lone_.hold(x, products)) return;
    if (const auto attention = lone_.take_attention(x, products, held_copies_)) {
      return append(launch_lone_attention, *attention);
    }
    if (const auto pair = held_pair_.take(x, products, held_copies_)) {
      return append(launch_narrow_pair, *pair);
    }
    if (!held_pair_.empty()) settle();
    Rows<const Bf16> exact;
    Rows<const Bf16> quantised;
    InputTiles tiles;
    const bool raw = fuses_ && makes_rows(x, products) && made_.take(x).codes == nullptr;
    for (const Product& product : products) {
      CHECK((product.y.data != nullptr) != (product.y_f32.data != nullptr));
      CHECK(product.weight.in == x.cols && (product.quantise_input || !product.weight.folded));
      if (product.weight.folded) {
        if (tiles.codes == nullptr && !raw) tiles = input_tiles(x);
        add_folded(tiles, x, product);
        continue;
      }
      RowProduct one{.weight = product.weight, .y = product.y, .y_f32 = product.y_f32};
      one.x = x;
      one.quantise = product.quantise_input && quantises_in_place(x) && takes_few_rows(one);
      Rows<const Bf16>& input = product.quantise_input && !one.quantise ? quantised : exact;
      if (input.data == nullptr) input = packed(x, product.quantise_input && !one.quantise);
      one.x = input;
      add_product(one);
    }
    flush_folded();
    flush_products();
  }

  void grouped_linear(Rows<const Bf16> x, const WeightView& weight, int32_t groups,
                      Rows<Bf16> y) override {
    CHECK(x.cols == groups * weight.in && weight.out % groups == 0 && !weight.folded);
    if (x.rows == 0) return;
    if (is_packed_input(x) &&
        lone_.hold(RowProduct{.x = x, .weight = weight, .groups = groups, .y = y}, held_copies_)) {
      return;
    }
    const RowProduct product{.x = packed(x, false), .weight = weight, .groups = groups, .y = y};
    if (fuses_ && !holds_more() && held_keys_.x.rows == 0 && held_pair_.hold(product)) return;
    std::optional<HeldCopies::Aside> aside;
    if (!takes_few_rows(product)) aside.emplace(held_copies_, MemorySpan::of(x), MemorySpan::of(y));
    add_product(product);
    flush_products();
  }

  void rms_norm(Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) override {
    if (x.rows > 0) enqueue_first(cuda::rms_norm, x, weight, eps, y);
  }

  void norm_linear(Rows<Bf16> x, const Bf16* weight, float eps,
                   std::span<const Product> products) override {
    if (x.rows == 0) return;
    if (fuses_ && norm_tiles_supports(x, weight) &&
        std::ranges::all_of(products, [](const Product& one) { return one.weight.folded; })) {
      const InputTiles tiles = tiles_room(x);
      if (held_keys_.x.rows > 0 && !keys_beside_norm(held_keys_)) settle();
      const WindowKeys keys = std::exchange(held_keys_, {});
      enqueue_first(norm_tiles, NormTiles{x, weight, eps, tiles, keys});
      for (const Product& product : products) add_folded(tiles, x, product);
      flush_folded();
      return;
    }
    if (const auto query = lone_.take_query(x, weight, eps, products)) {
      return append(launch_lone_query, *query);
    }
    const ProductSet set = normed_products(x, weight, eps, products);
    if (!fuses_ || !quantises_in_place(x) || set.count < std::ssize(products)) {
      return Ops::norm_linear(x, weight, eps, products);
    }
    append_products(set);
  }

  void hc_enter(Rows<const Bf16> streams, const HcWeights& weights, const HcOptions& options,
                Rows<const float> carried, const Bf16* norm_weight, HcMix mix,
                Rows<Bf16> x) override {
    CHECK(options.streams == kStreams);
    if (streams.rows == 0) return;
    append_mixes();
    void* workspace = bytes(Scratch::kMix, hc_enter_workspace_bytes(streams.rows, x.cols));
    const InputTiles tiles = fuses_ && made_.wanted(x.cols) ? tiles_room(x) : InputTiles{};
    if (held_.streams.data != streams.data || held_.streams.rows != streams.rows) settle();
    held_site_.make_mixes(appends());
    if (fuses_ && hc_site_supports(held_, streams, weights, options, carried, norm_weight, x)) {
      const HcLeave leave = std::exchange(held_, {});
      made_.forget();
      const LoneSite site{leave, streams, weights, options, carried, norm_weight, mix, x};
      if (tiles.codes == nullptr && narrow_site_supports(x)) {
        auto* sums = static_cast<float*>(workspace);
        append_first(narrow_site, leave, streams, weights, options, carried, norm_weight, x, sums);
        held_mixes_ = {sums, weights, options, mix, x.rows, x.cols};
      } else if (tiles.codes != nullptr ? !held_site_.hold(site, tiles) : !lone_.hold(site)) {
        site.apart(appends(), tiles);
      }
    } else {
      append_first(cuda::hc_enter, std::exchange(held_, {}), streams, weights, options, carried,
                   norm_weight, mix, x, tiles, workspace);
    }
    made_.made(x, tiles);
  }

  void collapse_norm(Rows<const Bf16> streams, Rows<const float> carried, int32_t stream_count,
                     const Bf16* norm_weight, float eps, Rows<Bf16> x) override {
    CHECK(stream_count == kStreams);
    settle_all();
    if (x.rows > 0) append_first(cuda::collapse_norm, streams, carried, norm_weight, eps, x);
  }

  void hc_leave(Rows<const Bf16> y, Rows<const float> post, Rows<const float> comb,
                int32_t stream_count, Rows<Bf16> streams) override {
    CHECK(stream_count == kStreams);
    if (y.rows == 0) return;
    if (held_.y.data != y.data || held_.streams.data != nullptr) settle();
    held_.y = Rows<Bf16>(const_cast<Bf16*>(y.data), y.rows, y.cols, y.stride);
    held_.post = post;
    held_.comb = comb;
    held_.streams = streams;
    if (!fuses_) settle();
  }

  void stream_mean(Rows<const Bf16> streams, int32_t stream_count, Rows<Bf16> mean) override {
    CHECK(stream_count == kStreams);
    settle_all();
    if (mean.rows > 0) append_first(cuda::stream_mean, streams, mean);
  }

  void rope(Rows<Bf16> x, int32_t heads, const RopeAngles& angles, bool inverse) override {
    if (x.rows == 0) return;
    const bool products = made_.products_alone();
    const int64_t launches = lane_.appended_count();
    settle();
    // Held, it writes nothing: the last launch is what it was.
    if (products && lane_.appended_count() == launches) made_.made_products();
    held_rope_ = HeldRope{x, heads, angles, inverse};
    if (!fuses_ || inverse) settle();
  }

  void window_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps, const RopeAngles& angles,
                   Rows<uint8_t> records) override {
    written_.add(MemorySpan::of(records));
    if (x.rows == 0 || lone_.hold(WindowKeys{x, norm_weight, eps, angles, records})) return;
    settle_but_mixes();
    held_keys_ = {x, norm_weight, eps, angles, records};
    if (!fuses_ || !(rides_along(held_keys_) || keys_beside_norm(held_keys_))) settle();
  }

  void compress(Rows<const float> kv, Rows<const float> gate, int32_t ratio,
                const Bf16* norm_weight, float eps, Rows<Bf16> latent) override {
    if (latent.rows > 0) enqueue_first(cuda::compress, kv, gate, ratio, norm_weight, eps, latent);
  }

  void global_keys(Rows<const Bf16> latent, const RopeAngles& angles,
                   std::span<uint8_t* const> destination) override {
    if (latent.rows > 0) enqueue_first(cuda::global_keys, latent, angles, staged(destination));
  }

  void index_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps, const RopeAngles& angles,
                  std::span<uint8_t* const> destination) override {
    if (x.rows == 0) return;
    enqueue_first(cuda::index_keys, x, norm_weight, eps, angles, staged(destination));
  }

  void index_queries(Rows<Bf16> x, int32_t heads, const RopeAngles& angles) override {
    if (x.rows > 0) enqueue_first(cuda::index_queries, x, heads, angles);
  }

  void index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                    const IndexShape& shape, std::span<const IndexRow> rows) override {
    if (queries.rows == 0) return;
    const auto [most, builds_pool, reads_pool, wants_scores] = IndexWants::of(rows, entries_);
    int64_t entries = most;
    const bool released = index_select_sm90_supports(shape, rows.front().keys.records_per_page);
    if (released && !(wants_scores && reads_pool)) {
      if (reads_pool) {
        entries = std::min(entries, int64_t{shape.pool_blocks} * shape.pool_block_size);
      }
      IndexCall call = IndexCall::of(queries, head_weights, shape, staged(rows));
      call.entries_max = entries;
      call.builds_pool = builds_pool;
      const int64_t room = index_room_bytes(queries.rows, entries, builds_pool);
      call.scratch_bytes = static_cast<size_t>(room);
      call.scratch = bytes(Scratch::kIndex, room);
      enqueue(index_select_sm90, call, device_.multiprocessors);
      return;
    }
    const ScoreRooms rooms = ScoreRooms::of(shape, queries.rows, entries);
    auto* scores = static_cast<float*>(bytes(Scratch::kScores, rooms.score_bytes));
    auto* block_scores = static_cast<float*>(bytes(Scratch::kBlockScores, rooms.block_bytes));
    const IndexRow* arguments = staged(rows);
    for (int64_t begin = 0; begin < queries.rows; begin += rooms.rows_at_once) {
      const int64_t count = std::min(rooms.rows_at_once, queries.rows - begin);
      enqueue(launch_index_select, queries.slice(begin, count), head_weights.slice(begin, count),
              shape, arguments + begin, scores, entries, block_scores, rooms.blocks);
    }
  }

  void attention(Rows<const Bf16> q, const float* sink, const AttentionShape& shape,
                 const RopeAngles& angles, std::span<const AttentionRow> rows,
                 Rows<Bf16> o) override {
    if (q.rows == 0) return;
    const auto rotary = static_cast<int32_t>(2 * angles.cos.cols);
    const bool released = attention_sm90_supports(shape, rotary);
    void* room = nullptr;
    if (released && q.rows <= kAttentionRoomRows) {
      room = bytes(Scratch::kAttention, kAttentionRoomRows * kAttentionRoomBytes);
    }
    const bool turns = held_rope_ && held_rope_->is_of(q, shape.heads, angles);
    if (turns) held_rope_.reset();
    if (released) {
      AttentionCall call = AttentionCall::of(q, sink, angles, staged(rows), o);
      call.turns = turns ? 1 : 0;
      call.room = static_cast<uint8_t*>(room);
      const bool products = made_.products_alone();
      const int64_t launches = lane_.appended_count();
      settle();
      call.keys_early = products && lane_.appended_count() == launches ? 1 : 0;
      append_first(attention_and_mixes, call, device_.multiprocessors, held_site_.take_mixes(),
                   &std::as_const(side_));
      return;
    }
    settle();
    const AttentionRow* staged_rows = staged(rows);
    const LoneAttention lone{q, turns, sink, shape, angles, staged_rows, o};
    if (fuses_ && lone_.hold(lone, rows[0], written_)) return;
    append(launch_attention, q, turns, sink, shape, angles, staged_rows, o);
  }

  void route(Rows<const Bf16> x, const WeightView& gate, std::span<const float* const> bias_of_row,
             const RouterOptions& options, Rows<int32_t> experts, Rows<float> weights,
             float* margin) override {
    CHECK(gate.format == WeightFormat::kBf16 && gate.in == x.cols);
    if (x.rows == 0) return;
    void* workspace = bytes(Scratch::kRouter, route_workspace_bytes(x.rows, x.cols, gate.out));
    const float* const* biases = staged(bias_of_row);
    if (margin == nullptr && lone_.hold(x, gate, biases, options, experts, weights, workspace)) {
      return;
    }
    const MadeTiles made = made_;  // a router writes nothing else
    // The shared expert needs x alone, so it may begin here.
    const bool forks = fuses_ && x.rows <= kSideRowsMax && made.has(x);
    void* room = forks ? scratch_.filled(Scratch::kRoutePlan, route_plan_room_bytes()) : nullptr;
    if (forks && held_site_.makes(x)) held_site_.make_x(appends());
    settle_but_mixes();
    if (forks) append_first(fork_side, static_cast<const SideStream*>(&side_));
    forked_ = forks ? x.data : nullptr;
    forked_at_ = lane_.flush_count();
    held_route_ = {x, gate, biases, options, experts, weights, margin, workspace, room};
    if (!route_plan_supports(*held_route_)) settle_but_mixes();
    made_ = made;
  }

  void moe(Rows<const Bf16> x, const MoeWeights& weights, Rows<const int32_t> experts,
           Rows<const float> expert_weights, Rows<Bf16> y) override {
    if (x.rows == 0) return;
    if (weights.experts[0].w1.folded) {
      const ExpertShape shape = FoldStore::shape_of(weights, static_cast<int32_t>(experts.cols));
      CHECK(is_packed_input(x) && is_packed_input(y));
      CHECK(experts.stride == experts.cols && expert_weights.stride == experts.cols);
      auto* room =
          static_cast<uint8_t*>(bytes(Scratch::kExperts, expert_workspace_bytes(shape, x.rows)));
      const InputTiles x_tiles = made_.take(x);
      // The place of the fork is an event of this graph, or was recorded as it was listed.
      const bool aside = std::exchange(forked_, nullptr) == x.data && x_tiles.codes != nullptr &&
                         lane_.joins(forked_at_);
      const bool along = aside && held_route_ && routes_along(*held_route_, shape, x);
      const RoutePlan routed = along ? *std::exchange(held_route_, {}) : RoutePlan();
      enqueue_first(run_experts, shape, FoldStore::tiles_of(weights, shape), x, x_tiles,
                    aside ? &std::as_const(side_) : nullptr,
                    aside ? held_site_.take_mixes() : LateMixes(), experts.data,
                    expert_weights.data, routed, room);
      held_.parts = expert_parts(shape, x.rows, room);
      held_.y = y;
      if (!fuses_) settle();
      return;
    }
    if (fuses_ && few_experts_support(x, weights, experts.cols)) {
      CHECK(expert_weights.stride == expert_weights.cols);
      held_few(x, weights, experts, expert_weights, y);
      return;
    }
    const Rows<const Bf16> input = packed(x, true);
    const int64_t inner = weights.shared.w1.out;
    const int64_t padded = whole_vectors(inner);
    const auto shared_part = [&](Scratch scratch) {
      return Rows<Bf16>(bf16(scratch, x.rows, padded).data, x.rows, inner, padded);
    };
    const Rows<Bf16> shared_gate = shared_part(Scratch::kSharedGate);
    const Rows<Bf16> shared_up = shared_part(Scratch::kSharedUp);
    const Rows<Bf16> shared = bf16(Scratch::kShared, x.rows, x.cols);
    dense(input, weights.shared.w1, shared_gate);
    dense(input, weights.shared.w3, shared_up);
    flush_products();
    enqueue(launch_swiglu, shared_gate, shared_up, static_cast<const float*>(nullptr),
            weights.swiglu_limit, shared_gate);
    dense(shared_gate, weights.shared.w2, shared);
    flush_products();
    const Rows<Bf16> pairs = routed(x, input, weights, experts, expert_weights);
    enqueue(launch_combine, pairs, static_cast<int32_t>(experts.cols), shared, y);
  }

  bool may_await_ids(int64_t rows) const override {
    return rows <= kGraphRowsMax && engram_.posts_all(rows);
  }
  void await_ids() override { lane_.await_ids(); }
  void give_ids() override {
    engram_.fill();
    lane_.ids_given();
  }

  void engram_lookup(const EngramTable& table, Rows<const int64_t> ids, Rows<Bf16> e) override {
    if (ids.rows == 0) return;
    if (engram_.posts(table, ids)) {
      const EngramStore::Posted posted = engram_.post(table, ids);
      if (!lane_.awaits_ids()) engram_.fill();
      enqueue_first(engram_await, posted.flag);
      if (posted.cells != nullptr) {
        append_first(engram_lookup_kept, posted.kept, posted.staged, table.width, posted.cells, e);
      } else {
        append_first(cuda::engram_lookup, table.codes, table.scale, table.width, posted.ids, e);
      }
      return;
    }
    CHECK(!lane_.awaits_ids());
    const EngramStore::Gathered rows = engram_.gather(table, ids, arena());
    if (rows.ids.data == nullptr) return;
    enqueue_first(cuda::engram_lookup, rows.codes, rows.scale, table.width, rows.ids, e);
  }

  void engram_write(Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                    std::span<const uint8_t> alive, int32_t stream_count, float eps,
                    Rows<Bf16> streams, Rows<float> gate) override {
    CHECK(stream_count == kStreams);
    if (kv.rows == 0) return;
    settle_all();
    append_first(cuda::engram_write, kv, q_weight, k_weight, staged(alive), eps, streams, gate);
  }

 private:
  CudaOps(const DeviceProperties& device, const StepStreams& streams)
      : device_(device),
        memory_(make_device_memory(streams.kernels, [this] { flush(); })),
        lane_(streams, *memory_),
        folds_(*memory_, streams.kernels),
        scratch_(*memory_, lane_, [this] { flush(); }),
        engram_(*memory_, streams.copies),
        expert_tables_(*memory_),
        sharing_(
            *memory_, lane_.commands(), [this] { settle(); }, [this] { lane_.appended(); },
            [this](Rows<const Bf16> x) { return made_.take(x); }) {}

  StageArena& arena() { return lane_.arena(); }
  // Launches now, or with the rest of a small step; behind what the call before held back.
  template <class Function, class... A>
  void enqueue(Function* function, const A&... arguments) {
    settle();
    append(function, arguments...);
  }
  template <class Function, class... A>
  void enqueue_first(Function* function, const A&... arguments) {
    settle();
    append_first(function, arguments...);
  }
  template <class Function, class... A>
  void append(Function* function, const A&... arguments) {
    made_.forget();
    lane_.commands().add(function, arguments...);
    lane_.appended();
  }
  template <class Function, class... A>
  void append_first(Function* function, const A&... arguments) {
    made_.forget();
    lane_.commands().add_first(function, arguments...);
    lane_.appended();
  }
  void append_spread(const RowCopy* copies, int64_t count) {
    const HeldSpread one = std::exchange(held_spread_, {});
    append_first(cuda::spread, one.sources, one.streams, copies, count);
  }
  // What the last calls were, where the next may do it along with its own work: a route, the sum
  // of the experts, hc_leave, or one after the other. Any other call comes behind it.
  void settle() {
    made_.forget();
    append_mixes();
    if (!held_spread_.empty()) append_spread(nullptr, 0);
    if (const auto lone = lone_.take()) lone->apart(appends());
    held_site_.apart(appends());
    if (const auto rope = std::exchange(held_rope_, {})) {
      append_first(cuda::rope, rope->x, rope->heads, rope->angles, rope->inverse);
    }
    if (const auto routed = std::exchange(held_route_, {})) append_first(route_alone, *routed);
    const WindowKeys keys = std::exchange(held_keys_, {});
    if (keys.x.rows > 0) {
      append_first(cuda::window_keys, keys.x, keys.norm_weight, keys.eps, keys.angles,
                   keys.records);
    }
    const HeldCopies::Staged copies = held_copies_.take();
    if (copies.count > 0) append(launch_copy, copies.list, copies.count);
    if (const auto inner = held_pair_.take()) append(launch_few_rows, *inner);
    held_site_.leave(std::exchange(held_, {}), appends());
  }

  // And a site's late mixes, which are in the way of few calls.
  void settle_all() {
    settle();
    held_site_.make_mixes(appends());
  }

  void append_mixes() {
    const SiteMixes mixes = std::exchange(held_mixes_, {});
    if (mixes.rows > 0) append_first(site_mixes, mixes);
  }
  // In front of a call that neither reads nor writes what mixes are made of, or into.
  void settle_but_mixes() {
    const SiteMixes mixes = std::exchange(held_mixes_, {});
    settle();
    held_mixes_ = mixes;
  }

  void flush() {
    settle_all();
    lane_.flush();
  }

  template <class T>
  const T* staged(std::span<const T> host) {
    return static_cast<const T*>(
        arena().stage(host.data(), std::ssize(host) * static_cast<int64_t>(sizeof(T))));
  }

  void* bytes(Scratch which, int64_t count) { return scratch_.bytes(which, count); }
  Rows<Bf16> bf16(Scratch which, int64_t rows, int64_t cols) {
    return Rows<Bf16>(static_cast<Bf16*>(bytes(which, rows * cols * int64_t{sizeof(Bf16)})), rows,
                      cols);
  }

  // x as products read it, of x.cols columns.
  Rows<const Bf16> packed(Rows<const Bf16> x, bool quantise) {
    if (!quantise && is_packed_input(x)) return x;
    const int64_t columns = whole_vectors(x.cols);
    const Rows<Bf16> room =
        bf16(quantise ? Scratch::kQuantised : Scratch::kPacked, x.rows, columns);
    enqueue(launch_pack_input, x, quantise, room);
    return Rows<const Bf16>(room.data, x.rows, x.cols, columns);
  }

  // By the products that read them: few narrow rows.
  bool quantises_in_place(Rows<const Bf16> x) const {
    return fuses_ && x.rows <= ProductSet::kRowsMax && is_packed_input(x) && x.cols % 16 == 0 &&
           x.cols <= ProductSet::kQuantisedWidthMax;
  }

  // Products of one call, which read nothing of each other: those of few rows share a launch.
  void add_product(const RowProduct& product) {
    if (fuses_ && takes_narrow(product)) {
      if (narrow_.count == ProductSet::kMax) flush_products();
      narrow_.products[narrow_.count++] = product;
      return;
    }
    if (!fuses_ || !takes_few_rows(product)) {
      CHECK(!product.quantise);
      enqueue(launch_product, product);
      return;
    }
    if (products_.count == ProductSet::kMax) flush_products();
    products_.products[products_.count++] = product;
  }
  void flush_products() {
    if (narrow_.count > 0) enqueue(launch_narrow, narrow_);
    narrow_ = {};
    if (products_.count > 0) append_products(products_);
    products_ = {};
  }
  // Than keys, copies and mixes.
  bool holds_more() const {
    return !held_site_.empty() || !held_spread_.empty() || !lone_.empty() || held_rope_ ||
           held_route_ || held_.y.data != nullptr || !held_pair_.empty();
  }
  // With what was held back on the side, if it has nothing to do with them.
  void append_products(ProductSet set) {
    const bool alone = holds_more() || touches(set, held_keys_) || !rides_along(held_keys_) ||
                       touches(set, held_copies_.list());
    if (alone) settle();
    // Products with a norm in front take as long as the mixes do.
    if (set.norm_weight != nullptr) set.mixes = std::exchange(held_mixes_, {});
    set.window_keys = std::exchange(held_keys_, {});
    held_copies_.move_to(set);
    append(launch_few_rows, set);
  }

  // Room for x in Q8, as folded products read it.
  InputTiles tiles_room(Rows<const Bf16> x) {
    return InputTiles::in(
        static_cast<uint8_t*>(bytes(Scratch::kTiles, InputTiles::bytes(x.rows, x.cols))), x.rows,
        x.cols);
  }
  InputTiles input_tiles(Rows<const Bf16> x) {
    CHECK(is_packed_input(x));
    if (const InputTiles made = made_.take(x); made.codes != nullptr) return made;
    const InputTiles tiles = tiles_room(x);
    // Copies go along; a launch of products might have another form with them.
    if (!held_copies_.empty() && !held_copies_.meet(MemorySpan::of(x), {})) {
      const HeldCopies::Staged copies = held_copies_.take();
      enqueue_first(quantise_rows_and_copy, x, tiles.places, tiles.codes, tiles.scale, copies.list,
                    copies.count);
      return tiles;
    }
    enqueue_first(quantise_rows, x, tiles.places, tiles.codes, tiles.scale);
    return tiles;
  }
  // Folded products of one call, in as few launches as there are forms of results.
  void add_folded(const InputTiles& tiles, Rows<const Bf16> x, const Product& product) {
    if (!has_room_for(folded_, product)) flush_folded();
    cuda::add_product(folded_, tiles, x, product);
    if (!fuses_) flush_folded();
  }
  void flush_folded() {
    DenseSet set = std::exchange(folded_, {});
    if (set.count == 0) return;
    if (dense_takes_copies(set.common.rows) && !touches(set, held_copies_.list())) {
      held_copies_.move_to(set);
    }
    enqueue_first(dense_products, set);
    if (set.copy_count == 0) made_.made_products();
  }

  void dense(Rows<const Bf16> x, const WeightView& weight, Rows<Bf16> y) {
    add_product({.x = x, .weight = weight, .y = y});
  }

  // moe of few narrow rows, but for the sum of the experts.
  void held_few(Rows<const Bf16> x, const MoeWeights& weights, Rows<const int32_t> experts,
                Rows<const float> expert_weights, Rows<Bf16> y) {
    const int64_t pairs = experts.rows * experts.cols;
    const int64_t inner = weights.shared.w1.out;
    FewExperts few = few_experts_of(x, weights, expert_table(weights), experts, expert_weights);
    few.inner = bf16(Scratch::kGate, pairs + x.rows, inner);
    few.out = bf16(Scratch::kPairs, pairs + x.rows, x.cols);
    if (const auto lone = lone_.take_experts(few, weights.experts[0].w1.format)) {
      append(launch_lone_experts, *lone);
    } else {
      settle_but_mixes();
      few.mixes = std::exchange(held_mixes_, {});
      append(launch_few_experts, few);
    }
    held_.parts = {few.out.slice(0, pairs), static_cast<int32_t>(experts.cols), nullptr,
                   few.out.slice(pairs, x.rows)};
    held_.y = y;
  }

  // Of a layer's stored experts; an empty one after a failure, which finish() tells.
  const ExpertTable& expert_table(const MoeWeights& weights) {
    static constexpr ExpertTable kNone = {};
    const auto table = expert_tables_.of(weights);
    if (!table) lane_.fail(table.error());
    return table ? **table : kNone;
  }

  // One row a pair (row, choice): bf16 results of the chosen experts.
  Rows<Bf16> routed(Rows<const Bf16> x, Rows<const Bf16> input, const MoeWeights& weights,
                    Rows<const int32_t> experts, Rows<const float> expert_weights) {
    const auto count = static_cast<int32_t>(weights.experts.size());
    const int64_t pairs = experts.rows * experts.cols;
    const ExpertWeights& first = weights.experts.front();
    const int64_t inner = first.w1.out;
    const int64_t padded = whole_vectors(inner);
    CHECK(expert_weights.stride == expert_weights.cols);
    const int32_t tile_rows = expert_tile_rows(pairs, count);
    ExpertProduct product;
    product.plan = PairPlan::in(bytes(Scratch::kPlan, pair_plan_bytes(pairs, count, tile_rows)),
                                pairs, count, tile_rows);
    enqueue(launch_expert_plan, experts, count, tile_rows, product.plan);
    product.experts = count;
    product.pairs = pairs;
    product.tile_rows = tile_rows;
    product.x = input;
    product.pairs_per_x = static_cast<int32_t>(experts.cols);
    const ExpertTable& table = expert_table(weights);
    const Rows<Bf16> gate(bf16(Scratch::kGate, pairs, padded).data, pairs, inner, padded);
    const Rows<Bf16> up(bf16(Scratch::kUp, pairs, padded).data, pairs, inner, padded);
    const auto multiply = [&](size_t matrix, const WeightView& shape, Rows<Bf16> y) {
      product.weight = table.matrix[matrix];
      product.shape = shape;
      product.y = y;
      enqueue(launch_expert_product, product);
    };
    multiply(0, first.w1, gate);
    multiply(1, first.w3, up);
    enqueue(launch_swiglu, gate, up, expert_weights.data, weights.swiglu_limit, gate);
    product.x = gate;
    product.pairs_per_x = 1;
    const Rows<Bf16> result = bf16(Scratch::kPairs, pairs, x.cols);
    multiply(2, first.w2, result);
    return result;
  }

  DeviceProperties device_;
  std::unique_ptr<Memory> memory_;
  StepLane lane_;
  SideStream side_;               // of the shared expert
  const Bf16* forked_ = nullptr;  // the rows that it may have from there
  int64_t forked_at_ = 0;         // StepLane::flush_count then
  FoldStore folds_;
  ScratchRooms scratch_;
  EngramStore engram_;
  ExpertTables expert_tables_;
  CudaExpertSharing sharing_;
  ProductSet products_;  // of the call that is being made
  ProductSet narrow_;    // the same, of takes_narrow
  DenseSet folded_;      // and of folded weights
  // What calls before this one left to do (settle()); of ropes, keys and copies one at a time.
  HcLeave held_;
  HeldSite held_site_;
  HeldSpread held_spread_;
  WrittenSpans written_;  // by this step's copies and records
  std::optional<HeldRope> held_rope_;
  std::optional<RoutePlan> held_route_;  // waits for the plan of its choices
  WindowKeys held_keys_;
  SiteMixes held_mixes_;
  HeldCopies held_copies_{kCopiesAlongMax};
  HeldLone lone_;
  HeldPair held_pair_;
  const bool fuses_ = std::getenv("GALLEY_CUDA_FUSE") == nullptr ||
                      std::string_view(std::getenv("GALLEY_CUDA_FUSE")) != "0";
  int64_t entries_ = 0;  // of the longest sequence, where reserve() told
  MadeTiles made_;       // in Scratch::kTiles
};

}  // namespace

Result<std::unique_ptr<Ops>> make_cuda_ops(int32_t index) { return CudaOps::create(index); }
int64_t command_count(const Ops& ops) { return dynamic_cast<const CudaOps&>(ops).appended_count(); }

}  // namespace galley::kernels::cuda
