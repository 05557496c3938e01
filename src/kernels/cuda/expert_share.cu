// Experts that several cards share: rows come from another card's memory and results go back.
//
// Floor at 16,384 rows of each of two cards: 86 MB of codes and 503 MB of results a layer in each
// direction, 0.22 and 1.28 ms at 394 GB/s, beside a layer of about 10 ms of products.
//
// Design. The copy engines do all of it, on a stream of their own: rows are sent while the shared
// expert computes, results of the other card's rows while those of the own rows are computed, so
// neither takes a multiprocessor or a place in front of a product. A copy's size must be known to
// the host, which does not know how many choices went to which card: the copy is as long as an even
// share and an eighth more, and a kernel brings what is beyond it, which for even routing is
// nothing. Flags are copied behind the data, by the same engine: a counter, so that a step of a
// graph is like any other. Who waits is one thread, and the next kernel is not placed meanwhile:
// where two ranks are on one card (a test), waiting blocks would take the room of working ones.
//
// Gate and up take the rows of all ranks in one product. Experts that few rows choose come in
// blocks twice as full, and their weights are read and unpacked once. Down has a plan for each
// rank's rows, since results travel together and while others are computed; quantising carries
// inner values from the places of one plan to those of the other. Of few rows down is one product,
// too, and a copy takes each rank's results out of it.
//
// On an H200, a step of 16,384 rows in 4 prompts (20 layers of all rows, 20 of their tails), with a
// copy of its own rows in place of the other rank's, traced: 455 ms with a plan and products for
// each rank, 439 since, where one card with all experts takes 436. Gate and up of experts of up to
// 128 rows went from 20.7 to 7.8 ms, products of the tails from 20.4 to 16.6. Then, 3 ms less of
// launches but no more than the noise of a step: inner values quantised in the order of their
// places instead of the choices, half of which are another card's (185 us a rank's, now 152 and
// 128; 217 for all of a layer at once), and the codes that the site left, not made again (75 us).
// What is left beside one card are two plans more (27 to 56 us).
//
// Rows are quantised once, by the site or here, and travel as codes; spread_rows copies them to
// the places of their choices, 1 byte read and about 3 written a value. A place's codes are those
// that quantise_choices would write there, so the products' bits are those of run_experts.
//
// Rejected: results stored to the other card by the product itself. A warp stores 32 bytes of each
// of four rows; so short writes use about half of the link, and the product would wait for it.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/await_raised.cuh"
#include "kernels/cuda/carver.h"
#include "kernels/cuda/expert_arguments.h"
#include "kernels/cuda/expert_plan.h"
#include "kernels/cuda/expert_share.h"
#include "kernels/cuda/ordered_launch.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kCombineThreads = 128;
constexpr int32_t kRestBlocks = 264;

uint32_t blocks_of(int64_t items, int64_t each) {
  return static_cast<uint32_t>((items + each - 1) / each);
}

// Of so many choices of all ranks each weight's way from memory counts: results of all ranks are
// one product, too, and each rank's are copied out of it.
int64_t few_choices(const ExpertShape& shape) { return int64_t{64} * shape.experts; }

// Rows of all ranks have a plan of their own up to their inner values, results of each rank's one
// that places them together.
struct Workspace {
  int32_t* local = nullptr;  // [choices of all] experts counted from this rank's first
  float* weights = nullptr;
  ExpertPlan all;
  QuantisedRows x8;
  Bf16* inner = nullptr;
  ExpertPlan one;  // its places and totals are with the results
  QuantisedRows inner8;
  Bf16* few_out = nullptr;  // results of all ranks, in the places of their inner values
  Bf16* shared_inner = nullptr;
  QuantisedRows shared_inner8;
  Bf16* shared_out = nullptr;
};

// All but the places and totals.
ExpertPlan carve_plan(int64_t choices, int64_t places, int64_t experts, Carver& carver) {
  ExpertPlan plan;
  plan.row_weight = carver.take<float>(places + 256);
  plan.blocks = carver.take<TokenBlock>(plan_blocks(choices, experts, 8));
  return plan;
}

Workspace carve(const ExpertShape& shape, int32_t ranks, int64_t rows, Carver& carver) {
  const int64_t choices = rows * shape.top_k;
  const int64_t of_all = ranks * choices;
  const int64_t places = plan_places(choices, shape.experts);
  const int64_t places_of_all = plan_places(of_all, shape.experts);
  const int64_t inner_chunks = shape.down().chunks();
  Workspace work;
  work.local = carver.take<int32_t>(of_all);
  work.weights = carver.take<float>(of_all);
  work.all = carve_plan(of_all, places_of_all, shape.experts, carver);
  work.all.place = carver.take<int32_t>(of_all);
  work.all.totals = carver.take<PlanTotals>(1);
  work.x8 = carve_rows(places_of_all, shape.gate_up().chunks(), carver);
  work.inner = carver.take<Bf16>(places_of_all * shape.inner);
  work.one = carve_plan(choices, places, shape.experts, carver);
  const int64_t few_places = plan_places(std::min(of_all, few_choices(shape)), shape.experts);
  work.inner8 = carve_rows(std::max(places, few_places), inner_chunks, carver);
  work.few_out = carver.take<Bf16>(few_places * shape.hidden);
  work.shared_inner = carver.take<Bf16>(rows * shape.inner);
  work.shared_inner8 = carve_rows((rows + 7) / 8 * 8, inner_chunks, carver);
  work.shared_out = carver.take<Bf16>(rows * shape.hidden);
  return work;
}

Workspace workspace_at(const ExpertShape& shape, int32_t ranks, int64_t rows_max, uint8_t* memory) {
  Carver carver(memory);
  return carve(shape, ranks, rows_max, carver);
}

ShareInput carve_input(const ExpertShape& shape, int64_t rows, Carver& carver) {
  const int64_t chunks = shape.gate_up().chunks();
  ShareInput input;
  input.places = (rows + 7) / 8 * 8;
  input.codes = carver.take<uint8_t>(input.places * chunks * kChunk);
  input.scale = carver.take<float>(input.places * chunks);
  input.experts = carver.take<int32_t>(rows * shape.top_k);
  input.weights = carver.take<float>(rows * shape.top_k);
  return input;
}

ShareParts carve_parts(const ExpertShape& shape, int64_t rows, Carver& carver) {
  ShareParts parts;
  parts.places = plan_places(rows * shape.top_k, shape.experts);
  parts.place = carver.take<int32_t>(rows * shape.top_k);
  parts.totals = carver.take<PlanTotals>(1);
  parts.rows = carver.take<Bf16>(parts.places * shape.hidden);
  return parts;
}

uint8_t* writable(const std::byte* memory) {
  return reinterpret_cast<uint8_t*>(const_cast<std::byte*>(memory));
}

__global__ void __launch_bounds__(kThreads)
    copy_choices_kernel(const int32_t* experts, const float* weights, int64_t choices,
                        ShareInput to) {
  await_earlier();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= choices) return;
  to.experts[i] = experts[i];
  to.weights[i] = weights[i];
}

// Choices of all ranks, one rank's behind the other's.
struct Choices {
  const int32_t* experts[kShareRanksMax];
  const float* weights[kShareRanksMax];
  int64_t begin[kShareRanksMax + 1];
};

// blockIdx.y is the rank.
__global__ void __launch_bounds__(kThreads)
    gather_choices_kernel(const __grid_constant__ Choices from, int32_t first, int32_t* local,
                          float* weights) {
  await_earlier();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t to = from.begin[blockIdx.y] + i;
  if (to >= from.begin[blockIdx.y + 1]) return;
  local[to] = from.experts[blockIdx.y][i] - first;
  weights[to] = from.weights[blockIdx.y][i];
}

// Results from the places of one plan to those of another plan of the same choices.
__global__ void __launch_bounds__(kThreads)
    move_results_kernel(const uint4* from, const int32_t* from_place, const int32_t* to_place,
                        int32_t pieces, uint4* to) {
  await_earlier();
  const int64_t there = from_place[blockIdx.x];
  const int64_t here = to_place[blockIdx.x];
  if (there < 0) return;
  for (int32_t i = threadIdx.x; i < pieces; i += kThreads) {
    to[here * pieces + i] = from[there * pieces + i];
  }
}

// Results behind the first `copied` places, straight to the other card.
__global__ void __launch_bounds__(kThreads)
    send_rest_kernel(const uint4* from, const PlanTotals* totals, int64_t copied, int64_t pieces,
                     uint4* to) {
  await_earlier();
  const int64_t end = static_cast<int64_t>(totals->places) * pieces;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = copied * pieces + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < end; i += step) {
    to[i] = from[i];
  }
  __threadfence_system();
}

__global__ void count_sent_kernel(RankFlag* own) {
  await_earlier();
  ++own->sent;
}

// Launched in full order.
__global__ void await_flag_kernel(RankFlag* own) {
  const uint64_t wanted = own->awaited + 1;
  own->awaited = wanted;
  own->waited_ns += await_raised(&own->raised, wanted);
}

// y[row] of 8 columns a thread.
__global__ void __launch_bounds__(kCombineThreads)
    combine_shares_kernel(const int32_t* experts, int32_t each, int32_t top_k,
                          const __grid_constant__ RankParts parts, int64_t rows_at,
                          const Bf16* shared, Rows<Bf16> y) {
  await_earlier();
  const auto row = static_cast<int64_t>(blockIdx.y);
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kCombineThreads + threadIdx.x) * 8;
  if (column >= y.cols) return;
  float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  const auto add = [&](uint4 raw) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      sum[2 * i] += __uint_as_float(words[i] << 16);
      sum[2 * i + 1] += __uint_as_float(words[i] & 0xffff0000U);
    }
  };
  constexpr int32_t kAtOnce = 6;
  const uint4 of_shared = *reinterpret_cast<const uint4*>(shared + row * y.cols + column);
  for (int32_t begin = 0; begin < top_k; begin += kAtOnce) {
    uint4 raw[kAtOnce];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      raw[i] = {0, 0, 0, 0};
      if (begin + i >= top_k) continue;
      const int64_t choice = row * top_k + begin + i;
      const std::byte* owner = parts.of[experts[choice] / each];
      const int64_t place = reinterpret_cast<const int32_t*>(owner)[choice];
      raw[i] = *reinterpret_cast<const uint4*>(reinterpret_cast<const Bf16*>(owner + rows_at) +
                                               place * y.cols + column);
    }
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      if (begin + i < top_k) add(raw[i]);
    }
  }
  add(of_shared);
  __nv_bfloat162 pairs[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
  *reinterpret_cast<uint4*>(y.data + row * y.stride + column) =
      *reinterpret_cast<const uint4*>(pairs);
}

// As packed, or with the codes that were made before.
ShareInput own_input(const ExpertShape& shape, const std::byte* memory, const InputTiles& own,
                     int64_t rows) {
  ShareInput input = share_input(shape, memory, rows);
  if (own.codes == nullptr) return input;
  CHECK(own.places == input.places);
  input.codes = own.codes;
  input.scale = own.scale;
  return input;
}

// As many as an even share of these choices: the choice of a kernel changes no bit.
int32_t block_tokens(const ExpertShape& shape, int32_t ranks, int64_t choices) {
  const int64_t even = choices <= 8 ? choices : std::max<int64_t>(9, choices / ranks);
  return expert_block_tokens(even, shape.experts);
}

void send(Stream stream, const SideStream& lane, const void* from, int64_t bytes, void* to) {
  fork_side(stream, &lane);
  enter_side(lane);
  cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, lane.stream);
}

}  // namespace

ShareInput share_input(const ExpertShape& shape, const std::byte* memory, int64_t rows) {
  Carver carver(writable(memory));
  return carve_input(shape, rows, carver);
}
int64_t share_input_bytes(const ExpertShape& shape, int64_t rows) {
  Carver carver(nullptr);
  carve_input(shape, rows, carver);
  return carver.used();
}
ShareParts share_parts(const ExpertShape& shape, const std::byte* memory, int64_t rows) {
  Carver carver(writable(memory));
  return carve_parts(shape, rows, carver);
}
int64_t share_parts_bytes(const ExpertShape& shape, int64_t rows) {
  Carver carver(nullptr);
  carve_parts(shape, rows, carver);
  return carver.used();
}
int64_t share_workspace_bytes(const ExpertShape& shape, int32_t ranks, int64_t rows_max) {
  Carver carver(nullptr);
  carve(shape, ranks, rows_max, carver);
  return carver.used();
}

void share_pack(Stream stream, const ExpertShape& shape, Rows<const Bf16> x, const InputTiles& own,
                const int32_t* experts, const float* weights, std::byte* input) {
  const ShareInput to = share_input(shape, input, x.rows);
  const int64_t choices = x.rows * shape.top_k;
  if (own.codes == nullptr) quantise_rows(stream, x, to.places, to.codes, to.scale);
  launch_kernel(copy_choices_kernel, {blocks_of(choices, kThreads), kThreads}, stream, experts,
                weights, choices, to);
}

void share_shared(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles, int32_t ranks,
                  const std::byte* input, const InputTiles& own, int64_t rows, int64_t rows_max,
                  uint8_t* workspace) {
  const Workspace work = workspace_at(shape, ranks, rows_max, workspace);
  const ShareInput from = own_input(shape, input, own, rows);
  QuantisedRows inner8 = work.shared_inner8;
  inner8.places = from.places;
  dense_product(stream, ResultForm::kSwiGlu,
                shared_up_arguments(shape, tiles, {from.codes, from.scale, from.places}, rows,
                                    work.shared_inner));
  quantise_rows(stream, Rows<const Bf16>(work.shared_inner, rows, shape.inner), inner8.places,
                inner8.x8, inner8.scale);
  dense_product(stream, ResultForm::kBf16,
                shared_down_arguments(shape, tiles, inner8, rows, work.shared_out));
}

void share_inner(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles, int32_t first,
                 const RankInputs& inputs, int64_t rows_max, uint8_t* workspace) {
  const Workspace work = workspace_at(shape, inputs.count, rows_max, workspace);
  Choices from{};
  int64_t most = 0;
  for (int32_t r = 0; r < inputs.count; ++r) {
    const ShareInput input = share_input(shape, inputs.of[r], inputs.rows[r]);
    const int64_t choices = inputs.rows[r] * shape.top_k;
    from.experts[r] = input.experts;
    from.weights[r] = input.weights;
    from.begin[r + 1] = from.begin[r] + choices;
    most = std::max(most, choices);
  }
  const int64_t choices = from.begin[inputs.count];
  const dim3 grid(blocks_of(most, kThreads), static_cast<uint32_t>(inputs.count));
  launch_kernel(gather_choices_kernel, {grid, kThreads}, stream, from, first, work.local,
                work.weights);
  const int32_t tokens = block_tokens(shape, inputs.count, choices);
  QuantisedRows x8 = work.x8;
  x8.places = plan_places(choices, shape.experts);
  plan_experts(stream, work.local, work.weights, choices, shape.experts, tokens, work.all);
  for (int32_t r = 0; r < inputs.count; ++r) {
    const int64_t rows = inputs.rows[r];
    if (rows == 0) continue;
    const ShareInput input =
        own_input(shape, inputs.of[r], r == inputs.self ? inputs.own : InputTiles{}, rows);
    spread_rows(stream, {input.codes, input.scale, input.places}, rows, shape.top_k,
                work.all.place + from.begin[r], x8, static_cast<int32_t>(shape.gate_up().chunks()));
  }
  expert_product(stream, ResultForm::kSwiGlu, tokens,
                 expert_up_arguments(shape, tiles, work.all, x8, work.inner));
  if (choices > few_choices(shape)) return;
  QuantisedRows inner8 = work.inner8;
  inner8.places = x8.places;
  quantise_places(stream, Rows<const Bf16>(work.inner, x8.places, shape.inner), work.all.place,
                  choices, inner8, {}, {});
  expert_product(stream, ResultForm::kBf16, tokens,
                 expert_down_arguments(shape, tiles, work.all, inner8, work.few_out));
}

void share_results(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles,
                   const RankInputs& inputs, int32_t r, int64_t rows_max, uint8_t* workspace,
                   std::byte* parts) {
  const Workspace work = workspace_at(shape, inputs.count, rows_max, workspace);
  const ShareParts to = share_parts(shape, parts, inputs.rows[r]);
  const int64_t choices = inputs.rows[r] * shape.top_k;
  const int64_t first = inputs.before(r) * shape.top_k;
  const int32_t tokens = block_tokens(shape, inputs.count, choices);
  ExpertPlan plan = work.one;
  plan.place = to.place;
  plan.totals = to.totals;
  // A plan carries factors along with the choices; here each is the place of its inner values.
  plan_experts(stream, work.local + first, reinterpret_cast<const float*>(work.all.place + first),
               choices, shape.experts, tokens, plan);
  const auto* source = reinterpret_cast<const int32_t*>(plan.row_weight);
  if (inputs.all() * shape.top_k <= few_choices(shape)) {
    launch_kernel(move_results_kernel, {choices, kThreads}, stream,
                  reinterpret_cast<const uint4*>(work.few_out), work.all.place + first, to.place,
                  static_cast<int32_t>(shape.hidden / 8), reinterpret_cast<uint4*>(to.rows));
    return;
  }
  QuantisedRows inner8 = work.inner8;
  inner8.places = to.places;
  quantise_sources(stream, Rows<const Bf16>(work.inner, work.x8.places, shape.inner), source,
                   to.totals, inner8);
  expert_product(stream, ResultForm::kBf16, tokens,
                 expert_down_arguments(shape, tiles, plan, inner8, to.rows));
}

void share_combine(Stream stream, const ExpertShape& shape, int32_t ranks, const int32_t* experts,
                   RankParts parts, int64_t rows_max, uint8_t* workspace, Rows<Bf16> y) {
  const Workspace work = workspace_at(shape, ranks, rows_max, workspace);
  const ShareParts layout = share_parts(shape, parts.of[0], y.rows);
  const int64_t rows_at = reinterpret_cast<const std::byte*>(layout.rows) -
                          reinterpret_cast<const std::byte*>(layout.place);
  const dim3 grid(blocks_of(y.cols, kCombineThreads * 8), static_cast<uint32_t>(y.rows));
  launch_kernel(combine_shares_kernel, {grid, kCombineThreads}, stream, experts, shape.experts,
                shape.top_k, parts, rows_at, work.shared_out, y);
}

void share_send_input(Stream stream, const SideStream* lane, const ExpertShape& shape,
                      const std::byte* input, const InputTiles& own, int64_t rows, std::byte* to) {
  const int64_t bytes = share_input_bytes(shape, rows);
  int64_t sent = 0;
  if (own.codes != nullptr) {
    const ShareInput packed = share_input(shape, input, rows);
    CHECK(own.scale - reinterpret_cast<float*>(own.codes) ==
          packed.scale - reinterpret_cast<float*>(packed.codes));
    sent = reinterpret_cast<const std::byte*>(packed.experts) - input;
    send(stream, *lane, own.codes, InputTiles::bytes(rows, shape.hidden), to);
  }
  send(stream, *lane, input + sent, bytes - sent, to + sent);
}

void share_send_parts(Stream stream, const SideStream* lane, const ExpertShape& shape,
                      int32_t ranks, const std::byte* parts, int64_t rows, std::byte* to) {
  const ShareParts from = share_parts(shape, parts, rows);
  const ShareParts other = share_parts(shape, to, rows);
  const int64_t choices = rows * shape.top_k;
  const int64_t even = choices / ranks;
  const int64_t copied = std::min(from.places, plan_places(even + even / 8, shape.experts));
  if (copied < from.places) {
    launch_kernel(send_rest_kernel, {kRestBlocks, kThreads}, stream,
                  reinterpret_cast<const uint4*>(from.rows), from.totals, copied, shape.hidden / 8,
                  reinterpret_cast<uint4*>(other.rows));
  }
  const auto* end = reinterpret_cast<const std::byte*>(from.rows + copied * shape.hidden);
  send(stream, *lane, parts, end - parts, to);
}

void share_raise(Stream stream, const SideStream* lane, RankFlag* own, RankFlag* other) {
  launch_kernel(count_sent_kernel, {1, 1}, stream, own);
  send(stream, *lane, &own->sent, sizeof(own->sent), &other->raised);
}

void share_await(Stream stream, const SideStream* lane, RankFlag* own) {
  // What was sent joins in here: a graph ends with all of its branches, and the copies are over by
  // now.
  join_side(stream, *lane);
  await_flag_kernel<<<1, 1, 0, stream>>>(own);
}

}  // namespace galley::kernels::cuda
