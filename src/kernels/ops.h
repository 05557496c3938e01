// The model's operations on tensor views: the seam between what the model
// computes (model/) and how a machine computes it.
//
// plain/ is the readable specification, fast/ is SIMD with threads, cuda/ is
// SM90. Every result row depends on that row's inputs alone and is summed in
// an order fixed by (operation, N, K): never on which other rows share the
// call, on thread count, or on whether the row belongs to a prefill, decode or
// verify step. Rows with the same inputs get the same bits.
//
// Shapes in comments: rows R, hidden d, streams n = 4, heads h, head width c,
// rotary channels p (always the last p of a vector). Section numbers are those
// of spec/model.md. Memory belongs to the caller; views of one call must not
// overlap unless stated; sizes were validated when the model was loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "kernels/drawn_token.h"
#include "kernels/memory.h"
#include "kernels/tensor.h"
#include "kernels/weight_folds.h"

namespace galley::kernels {

// One product y = W x of several that share the input x.
struct Product {
  WeightView weight;
  bool quantise_input = false;  // Q8 of x first (0.2)
  // Exactly one is set; R rows of weight.out columns. `y` rounds to bf16 once.
  Rows<Bf16> y;
  Rows<float> y_f32;
};

// cos and sin of t * omega_u for each row: R x p/2 (4.1).
struct RopeAngles {
  Rows<const float> cos;
  Rows<const float> sin;
};

// Weights of one hyper-connection site (3.2).
struct HcWeights {
  const float* fn = nullptr;     // [(2 + n) n, n d]
  const float* base = nullptr;   // [(2 + n) n]
  const float* scale = nullptr;  // [3]
};

struct HcOptions {
  int32_t streams = 4;
  int32_t sinkhorn_iterations = 20;
  float hc_eps = 1e-6F;
  float norm_eps = 1e-20F;
};

// What a site hands on: R x n, R x n, R x n*n (row i, column j at 4 i + j).
struct HcMix {
  Rows<float> pre;
  Rows<float> post;
  Rows<float> comb;
};

// One query row of the core attention (4.6).
struct AttentionRow {
  int64_t position = 0;      // t
  int64_t window_begin = 0;  // first window position it may see: max(0 or replay start, t - W + 1)
  // Window records of positions >= chunk_begin come from this step's own keys,
  // earlier ones from the ring (slot = position mod ring_slots).
  const uint8_t* ring = nullptr;
  int64_t ring_slots = 0;
  const uint8_t* chunk = nullptr;
  int64_t chunk_begin = 0;
  // Selected compressed entries, ascending; none in window-only layers.
  PagedRecords global;
  const int32_t* selected = nullptr;
  const int32_t* selected_count = nullptr;  // null: none

  // For kernels that run on the host.
  int32_t selection() const { return selected_count == nullptr ? 0 : *selected_count; }
};

struct AttentionShape {
  int32_t heads = 0;
  int32_t head_dim = 0;
  int32_t window = 0;        // W: plain/ counts empty slots of a block as the reference does
  int32_t selected_max = 0;  // of any row's selection
};

// One query row of the indexer (4.5).
struct IndexRow {
  int64_t visible = 0;  // N(t): entries j < visible are scored
  PagedRecords keys;
  // Candidate pool to restrict the choice to: ascending block numbers, or null.
  const int32_t* pool = nullptr;
  const int32_t* pool_count = nullptr;
  // Out: min(top_k, eligible) best entries, ascending. Ties: the lower index wins.
  int32_t* selected = nullptr;
  int32_t* selected_count = nullptr;
  // Out, only at the candidate source: the best blocks, ascending.
  int32_t* built_pool = nullptr;
  int32_t* built_pool_count = nullptr;
  // Out, for verification only: f32 score of every visible entry, before the pool mask.
  float* scores = nullptr;
};

struct IndexShape {
  int32_t heads = 0;
  int32_t head_dim = 0;
  int32_t top_k = 0;
  int32_t pool_blocks = 0;  // candidate_topk_blocks, 0 = no pool in this model
  int32_t pool_block_size = 0;
};

struct RouterOptions {
  int32_t top_k = 0;
  float scale = 1.0F;
  float gate_temperature = 1.0F;
};

// One expert, or the shared one.
struct ExpertWeights {
  WeightView w1;  // gate  [I, d]
  WeightView w3;  // up    [I, d]
  WeightView w2;  // down  [d, I]
};

struct MoeWeights {
  std::span<const ExpertWeights> experts;
  ExpertWeights shared;  // on the host it may be absent: nothing is added for it
  float swiglu_limit = 10.0F;
};

// Rows of an Engram table (6.5).
struct EngramTable {
  const uint8_t* codes = nullptr;  // E4M3 [rows, width]
  const uint8_t* scale = nullptr;  // UE8M0 [rows, ceil(width/32)]
  int64_t width = 0;
  bool on_host = true;  // host memory: the checkpoint's mapping
};

// Bytes of one row that move within memory().
struct RowCopy {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t bytes = 0;
};

// Where a row of streams comes from: an embedding row, a row of an image span, or the embedding
// of a token that the step before this one drew.
struct SourceRow {
  const Bf16* row = nullptr;          // or, with `drawn`, the table's first row
  const DrawnToken* drawn = nullptr;  // in memory(), as draw() left it

  // For hosts.
  const Bf16* values(int64_t hidden) const {
    return drawn == nullptr ? row : row + drawn->token * hidden;
  }
};

// The largest calls to come, so that a backend sizes its working memory once.
struct StepBounds {
  int64_t rows = 0;          // R of any call
  int64_t input_width = 0;   // of a product
  int64_t query_width = 0;   // h c
  int64_t hidden = 0;        // d
  int64_t expert_width = 0;  // I
  int32_t experts_per_token = 0;
  int32_t routed_experts = 0;  // that the router chooses from
  int64_t entries = 0;         // compressed entries of one sequence
  IndexShape index;            // heads 0: no index in this model
  int32_t index_records_per_page = 0;
  int64_t engram_width = 0;  // columns times width of an Engram row
  int64_t stage_bytes = 0;   // staged by one step
  int64_t logit_rows = 0;    // of vocab logits each, that may be drawn from
  int64_t vocab = 0;
  std::span<const MoeWeights> moe;      // of every layer; outlive the steps
  std::span<const EngramTable> tables;  // those whose rows are looked up; outlive the steps
};

class ExpertSharing;  // expert_sharing.h

class Ops {
 public:
  virtual ~Ops() = default;

  // "plain", "fast-avx512bf16", "fast-avx2", "cuda".
  virtual std::string_view name() const = 0;

  // --- memory and order ----------------------------------------------------

  virtual Memory& memory() = 0;

  // Weights in the kernels' own order, for who places them in memory(). Null: read as stored.
  virtual WeightFolds* folds();

  // The parts of a layer of experts that several ranks share. Null: not on this backend.
  virtual ExpertSharing* sharing();
  // Whether moe() is a meeting of ranks: then every rank calls it for every layer, rows or not.
  virtual bool joins_ranks() const;

  // Steps within these bounds allocate nothing. Larger calls work, but may allocate.
  virtual Result<void> reserve(const StepBounds& bounds) = 0;

  // What was staged before may be forgotten.
  virtual void begin_step() = 0;
  // The step has all its operations. Where overlaps_steps(), another one may then be begun before
  // this one's finish(); two at most, and memory() must not be read or written meanwhile.
  virtual void hand_in();
  virtual bool overlaps_steps() const;
  // Whether finish() would not wait.
  virtual bool is_done();
  // Waits for every operation of the oldest step that is not finished, handing it in if nobody
  // did. An error is final: the backend cannot go on.
  virtual Result<void> finish() = 0;

  // Copies what operations so far have written to memory().allocate_host() memory, where it is
  // when the step is finished.
  virtual void fetch(void* host, const void* from, int64_t bytes);

  // Where kernels of this step read these host bytes, which may change once this returned only
  // if the result is another pointer.
  virtual const void* stage(const void* host, int64_t bytes) = 0;

  // Whether draw() is there: rows of logits then need not travel to the host.
  virtual bool draws() const;

  // All copies, in any order: no target is another one's source or target.
  virtual void copy(std::span<const RowCopy> copies) = 0;

  // --- rows in and out -----------------------------------------------------

  // streams [R, n d]: each row's n copies of a source row of d values (3.1).
  virtual void spread(std::span<const SourceRow> sources, int64_t hidden, int32_t copies,
                      Rows<Bf16> streams) = 0;

  // A token of each row of logits [R, V] (7), to where the host can copy it from. Only if draws().
  virtual void draw(Rows<const float> logits, std::span<const DrawRequest> requests,
                    DrawnToken* tokens);

  // All products of one input x [R, in].
  virtual void linear(Rows<const Bf16> x, std::span<const Product> products) = 0;

  // The same product with a block-diagonal weight: x [R, G in], weight [G out, in],
  // y [R, G out]; group g maps x's g-th part. Never quantises its input (4.7).
  virtual void grouped_linear(Rows<const Bf16> x, const WeightView& weight, int32_t groups,
                              Rows<Bf16> y) = 0;

  // y = RMS_w(x) (0). x and y may be the same rows.
  virtual void rms_norm(Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) = 0;

  // All products of RMS_w(x), where x is not needed any more: it may be that afterwards, or not.
  virtual void norm_linear(Rows<Bf16> x, const Bf16* weight, float eps,
                           std::span<const Product> products);

  // --- hyper-connections (3) -----------------------------------------------

  // From the streams at a site: the mix of that site, and x = RMS(collapse(streams, carried)).
  virtual void hc_enter(Rows<const Bf16> streams, const HcWeights& weights,
                        const HcOptions& options, Rows<const float> carried,
                        const Bf16* norm_weight, HcMix mix, Rows<Bf16> x) = 0;

  // x = RMS(collapse(streams, carried)) alone, before the head (7).
  virtual void collapse_norm(Rows<const Bf16> streams, Rows<const float> carried,
                             int32_t stream_count, const Bf16* norm_weight, float eps,
                             Rows<Bf16> x) = 0;

  // streams <- expand(y, streams, post, comb), in place.
  virtual void hc_leave(Rows<const Bf16> y, Rows<const float> post, Rows<const float> comb,
                        int32_t stream_count, Rows<Bf16> streams) = 0;

  // bf16 mean over the n streams [R, d]: what the draft head captures (3.4).
  virtual void stream_mean(Rows<const Bf16> streams, int32_t stream_count, Rows<Bf16> mean) = 0;

  // --- attention (4) -------------------------------------------------------

  // Rotates the last p channels of each of `heads` vectors of a row, in place.
  virtual void rope(Rows<Bf16> x, int32_t heads, const RopeAngles& angles, bool inverse) = 0;

  // Window records of R rows: Q8(rope(RMS(x))) (4.2). records: R x window_record_bytes.
  virtual void window_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                           const RopeAngles& angles, Rows<uint8_t> records) = 0;

  // Latents of full groups of `ratio` (> 1) members: kv and gate are [G ratio, c] in
  // position order; latent [G, c] = RMS(bf16(softmax-weighted sum)) (4.3).
  virtual void compress(Rows<const float> kv, Rows<const float> gate, int32_t ratio,
                        const Bf16* norm_weight, float eps, Rows<Bf16> latent) = 0;

  // Global records Q4e4(rope(latent)); angles of each group's first position.
  // destination[i] receives record i (a place in a page).
  virtual void global_keys(Rows<const Bf16> latent, const RopeAngles& angles,
                           std::span<uint8_t* const> destination) = 0;

  // Index records Q4e8(rope(RMS(x))), x = indexer.wk latent (4.5).
  virtual void index_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                          const RopeAngles& angles, std::span<uint8_t* const> destination) = 0;

  // Index queries, in place: x <- Q4e8(rope(x)) for each of `heads` vectors (4.5).
  virtual void index_queries(Rows<Bf16> x, int32_t heads, const RopeAngles& angles) = 0;

  // Scores, candidate pool and selection of each row (4.5). queries [R, heads width] from
  // index_queries; head_weights [R, heads] = weights_proj x, not yet scaled: the factor
  // width^-0.5 heads^-0.5 and its bf16 rounding are applied here.
  virtual void index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                            const IndexShape& shape, std::span<const IndexRow> rows) = 0;

  // o [R, h c] = attention of q [R, h c] over each row's window and selection,
  // then the inverse rotation (4.6, 4.7). o may be q.
  virtual void attention(Rows<const Bf16> q, const float* sink, const AttentionShape& shape,
                         const RopeAngles& angles, std::span<const AttentionRow> rows,
                         Rows<Bf16> o) = 0;

  // --- experts (5) ---------------------------------------------------------

  // Chosen experts ascending and their weights, R x top_k. bias_of_row[r] is `bias` or
  // `bias_vl`. margin, if set (verification), gets the biased score of the last chosen
  // minus that of the first not chosen.
  virtual void route(Rows<const Bf16> x, const WeightView& gate,
                     std::span<const float* const> bias_of_row, const RouterOptions& options,
                     Rows<int32_t> experts, Rows<float> weights, float* margin) = 0;

  // y = bf16(sum of the chosen experts ascending, then the shared expert).
  virtual void moe(Rows<const Bf16> x, const MoeWeights& weights, Rows<const int32_t> experts,
                   Rows<const float> expert_weights, Rows<Bf16> y) = 0;

  // --- Engram (6) ----------------------------------------------------------

  // Ids that the host learns while the step is computed. await_ids(), behind begin_step(): those of
  // the step's lookups are read when give_ids() is called, behind hand_in(), and must stay where
  // they are until then. Nothing that waits for the device may be called in between, but for
  // finish() of the step before. Only where may_await_ids(), of a step's rows.
  virtual bool may_await_ids(int64_t rows) const;
  virtual void await_ids();
  virtual void give_ids();

  // e [R, columns * width]: table row ids[r][column] dequantised to bf16 (6.5). `ids` is host
  // memory.
  virtual void engram_lookup(const EngramTable& table, Rows<const int64_t> ids, Rows<Bf16> e) = 0;

  // Gated write into the streams, in place. kv [R, (n + 1) d]: n keys, then the value.
  // alive[r] = 0 leaves row r untouched. gate [R, n], if set (verification), gets gamma.
  virtual void engram_write(Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                            std::span<const uint8_t> alive, int32_t stream_count, float eps,
                            Rows<Bf16> streams, Rows<float> gate) = 0;
};

}  // namespace galley::kernels
