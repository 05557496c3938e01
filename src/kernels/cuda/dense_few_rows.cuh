// fp8 products of few rows: all matrices of one input in a launch, and copies that have nothing to
// do with them on further blocks.
//
// Floor: the weights' bytes: 11.5 us behind a launch for 42 MB (wq_b 32,768 x 1,280, wo_b 5,120 x
// 8,192), 3.5 for 6.6 MB (wq_a). A block of one or two warpgroups of 64 slots streams weights and
// the rows' codes into a ring; weights are asked for while an earlier kernel still makes the rows.
//
// 64 strips of slots or more (a strip is 64): one block a strip or two, the sum is whole. 12.0 us
// for wq_b at one row with a strip a block, 10.7 with two, which share the rows: 16.2 and 13.2 at
// 64 rows, where the rows' codes are half of what a multiprocessor reads. 80 strips of wo_b keep 80
// multiprocessors busy, 14.1 us: split four ways it was 11.9, but 30.5 instead of 20.7 at 128 rows,
// and the persistent kernel of many rows lost 20 % to adding parts. Up to 8 rows of so few strips
// are dense_turns.cuh's. Fewer strips (wq_a, wkv): K is cut into groups (dense_sum_groups: 2, 4 or
// 8, fixed by the matrix alone); a block sums one group of a strip, and the blocks of a cluster add
// their groups in order through shared memory. dense_tiles.cuh adds its groups in the same order:
// the same bits. So does dense_split.cuh, which takes bf16 sums of eight groups while it has room.
//
// A block that has the shared memory of a multiprocessor copies by four warps: one that issues the
// four copies of a chunk takes longer than its products. 5,120 x 8,192 then takes 13.4 us instead
// of 15.2 at 16 rows, 15.2 instead of 17.3 at 64; 5,120 x 2,304 5.0 instead of 5.6 at 32. Blocks
// that share one have two such warps: with four, three blocks had no registers (10.1 us instead
// of 7.6 for 512 x 5,120 at 256 rows), and their copies are few. From 33 rows on, or 17 of long
// sums, whole sums are dense_tiles.cuh's: 64 rows by 48 slots are 107 tiles of 5,120 where strips
// of 64 are 80.
//
// Tried, on one H200: products of several chunks under way before the first is promoted, since
// waiting for one at a time is most of a warpgroup's time: 20.8 to 16.9 us for wo_b at 64 rows with
// four chunks, where a block has the shared memory of a multiprocessor; nothing at 8 rows, and
// slower where the ring has as few stages as that, since it then runs dry. At one row eight chunks
// take 14.4 us and sixteen 15.9, four 14.3. 64 rows shared out over two or four warpgroups: 17.4
// and 20.7 us instead of 17.2, since each of them reads all weights. Clusters of two or four blocks
// that share the copies of their rows: 1 to 1.5 us slower at 16 to 128 rows.
#pragma once

#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/ring_place.cuh"

namespace galley::kernels::cuda {

// `kStrips` warpgroups of 64 slots; kRoomKb of shared memory says how many blocks fit.
template <int kTokensIn, int kGroupsIn, int kStripsIn, int kRoomKb, ResultForm kResultIn,
          int kBatchIn = 4>
struct FewRowsForm {
  static constexpr int kTokens = kTokensIn;
  static constexpr int kGroups = kGroupsIn;
  static constexpr int kStrips = kStripsIn;
  static constexpr ResultForm kResult = kResultIn;
  // Blocks that share a multiprocessor have few registers for more.
  static constexpr int kCopyWarps = kRoomKb > 113 ? 4 : 2;
  static constexpr int kThreads = kStrips * 128 + kCopyWarps * 32;
  static constexpr int kCodesAt = kTokens * kChunk;
  static constexpr int kTailAt = kCodesAt + kStrips * kFp8Codes;
  static constexpr int kScalesAt = kTailAt + kStrips * kFp8Scales;
  static constexpr int kStageBytes = (kScalesAt + kTokens * 4 + 1023) / 1024 * 1024;
  static constexpr int kSumBytes = kGroups > 1 ? kTokens* kStrips* kStripSlots * 4 : 0;
  static constexpr int kRoom = kRoomKb * 1024 - 2048 - kSumBytes;
  static constexpr int kStages = kRoom / kStageBytes < 16 ? kRoom / kStageBytes : 16;
  static constexpr int kSharedBytes = kStages * kStageBytes + kSumBytes + 2048;
  // Chunks whose products are under way together.
  static constexpr int kBatch = kBatchIn < kStages ? kBatchIn : kStages;
  static_assert(kStages >= 2);
};

__device__ __forceinline__ float4 read_remote(uint32_t address, uint32_t rank) {
  float4 value;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}\n"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

// What a cluster works on: kStrips strips of one part, and a block of rows.
struct DenseItem {
  ProductArguments args;
  int32_t strip;  // the first one
  TokenBlock block;
};

template <class Form>
__device__ __forceinline__ DenseItem dense_item(const DenseSet& set, int32_t item) {
  int32_t tiles = 0;
  for (int32_t i = 0; i < set.count; ++i) tiles += set.parts[i].slots;
  tiles /= kStripSlots * Form::kStrips;
  int32_t tile = item % tiles;
  const DensePart* part = set.parts;
  for (int32_t i = 1; i < set.count; ++i) {
    const int32_t before = part->slots / (kStripSlots * Form::kStrips);
    if (tile < before) break;
    tile -= before;
    ++part;
  }
  DenseItem found{set.common, tile * Form::kStrips,
                  block_at(set.common, item / tiles, Form::kTokens)};
  found.args.weights = part->weights;
  found.args.slots = part->slots;
  found.args.outputs = part->outputs;
  found.args.y = part->y;
  found.args.y_stride = part->y_stride;
  return found;
}

// Four sums of two tokens (scale) and two slots (weight). Slots that are neighbouring rows of one
// matrix have one scale. Bits that both are part of.
template <ResultForm kResult>
__device__ __forceinline__ uint32_t promote_fp8(const float* partial, float2 scale, float2 weight,
                                                float* sum) {
  const float2 first = {scale.x * weight.x, scale.y * weight.x};
  float2 second = first;
  if constexpr (kResult == ResultForm::kSwiGlu) {
    second = {scale.x * weight.y, scale.y * weight.y};
  }
  sum[0] = fmaf(partial[0], first.x, sum[0]);
  sum[1] = fmaf(partial[1], first.y, sum[1]);
  sum[2] = fmaf(partial[2], second.x, sum[2]);
  sum[3] = fmaf(partial[3], second.y, sum[3]);
  return __float_as_uint(first.x) | __float_as_uint(first.y);
}

struct FewRowsRing {
  uint32_t ring;
  uint32_t full;
  uint32_t empty;
};

// A piece of every chunk.
struct FewRowsPiece {
  const uint8_t* from;
  int64_t step;
  uint32_t to;  // in a stage
  uint32_t bytes;
};

template <class Form, int kPieces>
__device__ __forceinline__ void copy_pieces(FewRowsPiece (&pieces)[kPieces], uint32_t expected,
                                            int32_t begin, int32_t end, const FewRowsRing& view) {
  RingPlace place;
#pragma unroll
  for (FewRowsPiece& piece : pieces) piece.from += begin * piece.step;
#pragma unroll 1
  for (int32_t chunk = begin; chunk < end; ++chunk) {
    const uint32_t barrier = view.full + place.barrier;
    barrier_wait(view.empty + place.barrier, place.parity ^ 1);
    if (elected()) {
      if (expected > 0) barrier_expect(barrier, expected);
#pragma unroll
      for (const FewRowsPiece& piece : pieces) {
        if (piece.bytes > 0) {
          bulk_load(view.ring + place.bytes + piece.to, piece.from, piece.bytes, barrier);
        }
      }
    }
#pragma unroll
    for (FewRowsPiece& piece : pieces) piece.from += piece.step;
    place.template advance<Form>();
  }
}

// Of the warps that copy, the first brings weights, the next one rows; where there are four, two
// more bring the scales of both, since one that issues all of a chunk's copies takes longer than
// its products. Weights are constant: the ring is filled with them while an earlier kernel makes x.
template <class Form>
__device__ __forceinline__ void copy_few_rows(const DenseItem& item, int32_t begin, int32_t end,
                                              const FewRowsRing& view, int32_t copier) {
  constexpr bool kPair = Form::kStrips == 2;  // one piece, its scales behind
  const ProductArguments& args = item.args;
  const uint32_t rows = (item.block.rows + 7) & ~7;
  const uint8_t* weights =
      args.weights + static_cast<int64_t>(item.strip / 4) * args.chunks * fp8_chunk_bytes();
  const FewRowsPiece codes = {weights + fp8_codes_at(item.strip % 4), fp8_chunk_bytes(),
                              Form::kCodesAt,
                              Form::kStrips * kFp8Codes + (kPair ? 2 * kFp8Scales : 0)};
  const FewRowsPiece tail = {weights + fp8_scales_at(item.strip % 4), fp8_chunk_bytes(),
                             Form::kTailAt, kPair ? 0 : kFp8Scales};
  const FewRowsPiece row_codes = {args.x + static_cast<int64_t>(item.block.row) * kChunk,
                                  args.x_rows * kChunk, 0, rows * kChunk};
  const FewRowsPiece row_scales = {reinterpret_cast<const uint8_t*>(args.x_scale + item.block.row),
                                   args.x_rows * 4, Form::kScalesAt, rows * 4};
  constexpr uint32_t kWeightBytes = Form::kStrips * (kFp8Codes + kFp8Scales);
  const uint32_t row_bytes = rows * (kChunk + 4);
  if (copier % 2 == 1) await_earlier();
  if constexpr (Form::kCopyWarps == 2) {
    FewRowsPiece pieces[2] = {copier == 0 ? codes : row_codes, copier == 0 ? tail : row_scales};
    copy_pieces<Form>(pieces, copier == 0 ? kWeightBytes : row_bytes, begin, end, view);
  } else {
    // Who copies nothing must not wait either: nobody waits for it, and the ring may go round
    // twice.
    if (kPair && copier == 2) return;
    FewRowsPiece pieces[1] = {copier == 0   ? codes
                              : copier == 1 ? row_codes
                              : copier == 2 ? tail
                                            : row_scales};
    copy_pieces<Form>(pieces,
                      copier == 0   ? kWeightBytes
                      : copier == 1 ? row_bytes
                                    : 0,
                      begin, end, view);
  }
}

// What a warpgroup of the block sums up.
template <class Form>
struct FewRowsView {
  const uint8_t* ring;
  uint32_t ring_address;
  uint32_t full;
  uint32_t empty;
  int32_t strip;
  RingPlace place;

  // The next kCount chunks: products of all of them are under way before the first is promoted,
  // since waiting for one at a time takes three times as long as multiplying.
  template <int kCount>
  __device__ __forceinline__ void add_chunks(float (&sum)[Form::kTokens / 2]) {
    float partial[kCount][Form::kTokens / 2];
    RingPlace ahead = place;
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      const uint64_t b = swizzled_descriptor(warp_uniform(ring_address + ahead.bytes));
      barrier_wait(full + ahead.barrier, ahead.parity);
      wgmma_fence();
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        Wgmma<Form::kTokens, false>::run(
            partial[i], advance_descriptor(b, Form::kCodesAt + strip * kFp8Codes + 32 * j),
            advance_descriptor(b, 32 * j), j > 0);
      }
      wgmma_commit();
      ahead.template advance<Form>();
    }
    promote_from<0, kCount>(partial, sum);
  }

 private:
  template <int kFirst, int kCount>
  __device__ __forceinline__ void promote_from(float (&partial)[kCount][Form::kTokens / 2],
                                               float (&sum)[Form::kTokens / 2]) {
    const int32_t lane = threadIdx.x & 31;
    const uint8_t* stage = ring + place.bytes;
    const float2 weight = reinterpret_cast<const float2*>(stage + Form::kTailAt)[threadIdx.x >> 5];
    const auto* scales = reinterpret_cast<const float2*>(stage + Form::kScalesAt) + (lane & 3);
    wgmma_wait<kCount - 1 - kFirst>();
    uint32_t loaded = 0;
#pragma unroll
    for (int32_t j = 0; j < Form::kTokens / 8; ++j) {
      loaded |=
          promote_fp8<Form::kResult>(partial[kFirst] + 4 * j, scales[4 * j], weight, sum + 4 * j);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(behind_loads(empty + place.barrier, loaded));
    place.template advance<Form>();
    if constexpr (kFirst + 1 < kCount) promote_from<kFirst + 1, kCount>(partial, sum);
  }
};

template <class Form>
__global__ void __launch_bounds__(Form::kThreads)
    dense_few_rows_kernel(const __grid_constant__ DenseSet set, int32_t product_blocks) {
  constexpr int kTokens = Form::kTokens;
  extern __shared__ uint8_t shared_memory[];
  const uint32_t begin = shared_address(shared_memory);
  uint8_t* ring = shared_memory + (((begin + 1023) & ~1023U) - begin);
  uint8_t* sums = ring + Form::kStages * Form::kStageBytes;
  const uint32_t full = shared_address(sums) + Form::kSumBytes;
  const uint32_t empty = full + Form::kStages * 8;
  const uint32_t ring_address = shared_address(ring);
  const int32_t warp = threadIdx.x >> 5;
  const int32_t lane = threadIdx.x & 31;

  if (static_cast<int32_t>(blockIdx.x) >= product_blocks) {  // the last clusters
    await_earlier();
    const int64_t copy = static_cast<int64_t>(blockIdx.x) - product_blocks;
    if (copy < set.copy_count) copy_row<Form::kThreads>(set.copies[copy]);
    return;
  }
  const int32_t group = blockIdx.x % Form::kGroups;  // also the rank in the cluster
  const DenseItem item = dense_item<Form>(set, blockIdx.x / Form::kGroups);
  const ProductArguments& args = item.args;
  const TokenBlock& block = item.block;
  const int32_t chunk_begin = args.chunks * group / Form::kGroups;
  const int32_t chunk_end = args.chunks * (group + 1) / Form::kGroups;

  if (threadIdx.x == 0) {
    make_ring<Form>(full, empty, 2, 4 * Form::kStrips);  // weights and rows
    barrier_init_fence();
  }
  __syncthreads();

  if (warp >= 4 * Form::kStrips) {
    const FewRowsRing view{ring_address, full, empty};
    copy_few_rows<Form>(item, chunk_begin, chunk_end, view,
                        static_cast<int32_t>(warp_uniform(warp - 4 * Form::kStrips)));
    __syncwarp();
    await_earlier();
  } else {
    await_earlier();
    const int32_t strip = static_cast<int32_t>(warp_uniform(warp / 4));
    float sum[kTokens / 2];
#pragma unroll
    for (int32_t i = 0; i < kTokens / 2; ++i) sum[i] = 0.0F;
    FewRowsView<Form> view{ring, ring_address, full, empty, strip, {}};
    int32_t chunk = chunk_begin;
    for (; chunk + Form::kBatch <= chunk_end; chunk += Form::kBatch) {
      view.template add_chunks<Form::kBatch>(sum);
    }
    for (; chunk < chunk_end; ++chunk) view.template add_chunks<1>(sum);
    if constexpr (Form::kGroups == 1) {
      store_strip<Form::kResult, kTokens>(args, block, (item.strip + strip) * kStripSlots, 0,
                                          {1.0F, 1.0F}, sum);
      return;
    }
    // [token][slot pair]: slots g and g + 8 of a warp side by side, as outputs or pairs are.
    auto* out = reinterpret_cast<float*>(sums) + warp * 16 + 2 * (lane >> 2);
#pragma unroll
    for (int32_t j = 0; j < kTokens / 8; ++j) {
      const int32_t token = 8 * j + 2 * (lane & 3);
      *reinterpret_cast<float2*>(out + token * kStripSlots * Form::kStrips) = {sum[4 * j],
                                                                               sum[4 * j + 2]};
      *reinterpret_cast<float2*>(out + (token + 1) * kStripSlots * Form::kStrips) = {
          sum[4 * j + 1], sum[4 * j + 3]};
    }
  }
  if constexpr (Form::kGroups > 1) {
    constexpr int32_t kQuads = Form::kStrips * kStripSlots / 4;  // of a row
    cluster_sync();
    for (int32_t at = group * Form::kThreads + threadIdx.x; at < block.rows * kQuads;
         at += Form::kGroups * Form::kThreads) {
      float4 part[Form::kGroups];
#pragma unroll
      for (int32_t other = 0; other < Form::kGroups; ++other) {
        part[other] = read_remote(shared_address(sums) + at * 16, other);
      }
      float4 total = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
      for (int32_t other = 0; other < Form::kGroups; ++other) {
        total.x += part[other].x;
        total.y += part[other].y;
        total.z += part[other].z;
        total.w += part[other].w;
      }
      store_quad<Form::kResult>(args, block.row + at / kQuads,
                                item.strip * kStripSlots + at % kQuads * 4, total);
    }
    cluster_sync();  // nobody leaves while others read
  }
}

}  // namespace galley::kernels::cuda
