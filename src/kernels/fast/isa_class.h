// The Ops of one instruction set: each file of fast/ defines the operations that it
// is named after.
//
// One parallel region an operation where the work is large, none where it is not
// (a region costs about two microseconds). Owned by the caller's thread; threads of
// the pool use their own scratch.
#pragma once

#include <memory>
#include <string_view>

#include "base/thread_pool.h"
#include "kernels/fast/dot.h"
#include "kernels/fast/scratch.h"
#include "kernels/host_ops.h"
#include "kernels/ops.h"

namespace galley::kernels::GALLEY_ISA {

// Scratch slots of one operation in progress; slots 0 and 1 are dot.h's. Shared
// slots live in the calling thread's scratch and are read by all.
enum Slot : int {
  kSums = 2,
  kSharedOperandA,  // packed inputs, one slot a layout
  kSharedOperandB,
  kSharedOperandC,
  kSharedPointers,
  kSharedPlan,
  kSharedInner,
  kKeys,
  kScores,
  kOutput,
  kOwnWeights,
};

class FastOps final : public HostOps {
 public:
  explicit FastOps(ThreadPool& pool);

  std::string_view name() const override;

  void spread(std::span<const SourceRow> sources, int64_t hidden, int32_t copies,
              Rows<Bf16> streams) override;
  void linear(Rows<const Bf16> x, std::span<const Product> products) override;
  void grouped_linear(Rows<const Bf16> x, const WeightView& weight, int32_t groups,
                      Rows<Bf16> y) override;
  void rms_norm(Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) override;
  void hc_enter(Rows<const Bf16> streams, const HcWeights& weights, const HcOptions& options,
                Rows<const float> carried, const Bf16* norm_weight, HcMix mix,
                Rows<Bf16> x) override;
  void collapse_norm(Rows<const Bf16> streams, Rows<const float> carried, int32_t stream_count,
                     const Bf16* norm_weight, float eps, Rows<Bf16> x) override;
  void hc_leave(Rows<const Bf16> y, Rows<const float> post, Rows<const float> comb,
                int32_t stream_count, Rows<Bf16> streams) override;
  void stream_mean(Rows<const Bf16> streams, int32_t stream_count, Rows<Bf16> mean) override;
  void rope(Rows<Bf16> x, int32_t heads, const RopeAngles& angles, bool inverse) override;
  void window_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps, const RopeAngles& angles,
                   Rows<uint8_t> records) override;
  void compress(Rows<const float> kv, Rows<const float> gate, int32_t ratio,
                const Bf16* norm_weight, float eps, Rows<Bf16> latent) override;
  void global_keys(Rows<const Bf16> latent, const RopeAngles& angles,
                   std::span<uint8_t* const> destination) override;
  void index_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps, const RopeAngles& angles,
                  std::span<uint8_t* const> destination) override;
  void index_queries(Rows<Bf16> x, int32_t heads, const RopeAngles& angles) override;
  void index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                    const IndexShape& shape, std::span<const IndexRow> rows) override;
  void attention(Rows<const Bf16> q, const float* sink, const AttentionShape& shape,
                 const RopeAngles& angles, std::span<const AttentionRow> rows,
                 Rows<Bf16> o) override;
  void route(Rows<const Bf16> x, const WeightView& gate, std::span<const float* const> bias_of_row,
             const RouterOptions& options, Rows<int32_t> experts, Rows<float> weights,
             float* margin) override;
  void moe(Rows<const Bf16> x, const MoeWeights& weights, Rows<const int32_t> experts,
           Rows<const float> expert_weights, Rows<Bf16> y) override;
  void engram_lookup(const EngramTable& table, Rows<const int64_t> ids, Rows<Bf16> e) override;
  void engram_write(Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                    std::span<const uint8_t> alive, int32_t stream_count, float eps,
                    Rows<Bf16> streams, Rows<float> gate) override;

 private:
  // Runs body(first row, row count, thread) over all rows: on the caller alone when
  // rows * row_cost (in clock cycles) is small, else in blocks on all threads. Blocks are
  // cut alike in every operation of a step, so that a row's data stays with one thread.
  template <class Body>
  void for_rows(int64_t rows, int64_t row_cost, Body&& body);

  // body(part, thread) for every part; on the caller alone when `cost` cycles are few.
  template <class Body>
  void for_parts(int64_t parts, int64_t cost, Body&& body);

  // Whether threads should each take rows and all weights rather than all rows and some
  // outputs: rows then never move between caches, if the weights fit into each.
  bool split_by_rows(int64_t rows, int64_t weight_bytes) const;

  // Rows of x packed as operands, and a pointer to each, in the given scratch.
  // `run(rows, row_cost, body)` is for_rows or a plain call.
  template <class Run>
  const Operand* const* pack_rows(Rows<const Bf16> x, bool quantise, Layout layout, int slot,
                                  const Operand** pointers, fast::Scratch& scratch, Run&& run);

  // Some products of some rows, and experts of some rows, on one thread.
  void linear_rows(Rows<const Bf16> x, std::span<const Product> products, int64_t first,
                   int64_t count, fast::Scratch& scratch);
  template <class RunRows, class RunParts>
  void moe_rows(Rows<const Bf16> x, const MoeWeights& weights, Rows<const int32_t> experts,
                Rows<const float> expert_weights, Rows<Bf16> y, fast::Scratch& shared,
                RunRows&& run_rows, RunParts&& run_parts);

  ThreadPool& pool_;
  std::unique_ptr<fast::Scratch[]> scratch_;  // one a thread
};

// Work in cycles below which waking other threads costs more than it saves: about a
// microsecond for the wake-up, and as much for the data that moves between caches. Rows
// that stay with their threads move less.
constexpr int64_t kParallelCycles = 20000;
constexpr int64_t kParallelRowCycles = 8000;

template <class Body>
void FastOps::for_parts(int64_t parts, int64_t cost, Body&& body) {
  if (cost < kParallelCycles) {
    for (int64_t part = 0; part < parts; ++part) body(part, 0);
    return;
  }
  pool_.run(parts, body);
}

template <class Body>
void FastOps::for_rows(int64_t rows, int64_t row_cost, Body&& body) {
  const int64_t threads = pool_.thread_count();
  const bool many = rows >= 4 * threads;
  if (rows <= 1 || rows * row_cost < (many ? kParallelRowCycles : kParallelCycles)) {
    if (rows > 0) body(int64_t{0}, rows, 0);
    return;
  }
  // Up to four blocks a thread balance, each worth its claim.
  int64_t blocks = 4 * threads;
  while (blocks > threads && rows * row_cost / blocks < kParallelCycles) blocks -= threads;
  blocks = blocks < rows ? blocks : rows;
  pool_.run(blocks, [&](int64_t block, int thread) {
    const int64_t begin = rows * block / blocks;
    body(begin, rows * (block + 1) / blocks - begin, thread);
  });
}

inline bool FastOps::split_by_rows(int64_t rows, int64_t weight_bytes) const {
  constexpr int64_t kCachedBytes = int64_t{2} << 20;
  return pool_.thread_count() > 1 && rows >= 8 * pool_.thread_count() &&
         weight_bytes <= kCachedBytes;
}

}  // namespace galley::kernels::GALLEY_ISA
