// Tiles of a plan's blocks, taken in the order of the plan by whichever block of threads has room
// for its next one: long ones first, so that the last to end is not much later than the others.
//
// One thread of each block draws and tells the others in shared memory. Which block computes a tile
// changes no bit of it.
#pragma once

#include <cstdint>

#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/sm90_memory.cuh"

namespace galley::kernels::cuda {

struct DrawnTile {
  TokenBlock block;
  int32_t tile;  // of slots
};

// Numbers of `total` items, one after another, by every block of threads.
class ItemDraw {
 public:
  explicit __device__ __forceinline__ ItemDraw(int32_t total)
      : grid_(static_cast<int32_t>(gridDim.x)),
        total_(total),
        at_(static_cast<int32_t>(blockIdx.x)) {}

  // False when nothing is left; it is then not called again.
  __device__ __forceinline__ bool next(const ProductArguments& args, int32_t& item) {
    item = at_;
    if (item >= total_ && item != static_cast<int32_t>(blockIdx.x)) return false;
    // Every block of threads draws until it gets nothing, and who draws last leaves a zero for the
    // next launch.
    const int32_t drawn = atomicAdd(&args.totals->drawn, 1);
    if (drawn == max(total_, grid_) - 1) args.totals->drawn = 0;
    at_ = grid_ + drawn;
    return item < total_;
  }

 private:
  int32_t grid_;
  int32_t total_;
  int32_t at_;
};

// Items of which the last round's go in up to kPieces pieces where they would keep few blocks busy.
struct LastPieces {
  int32_t whole;   // items that stay whole
  int32_t pieces;  // of each of the others
  int32_t total;

  static __device__ __forceinline__ LastPieces of(int32_t items, int32_t most) {
    const auto grid = static_cast<int32_t>(gridDim.x);
    const int32_t rest = items % grid;
    int32_t pieces = most;
    while (rest * pieces > grid) pieces /= 2;
    return {items - rest, pieces, items - rest + rest * pieces};
  }
  // The item that is, or has, number `at`; and which piece of how many that is.
  __device__ __forceinline__ int32_t item(int32_t at) const {
    return at < whole ? at : whole + (at - whole) / pieces;
  }
  __device__ __forceinline__ int32_t piece(int32_t at) const { return (at - whole) % pieces; }
};

// Leaves a block piece `number` of so many rows; false if that has none.
__device__ __forceinline__ bool take_rows(TokenBlock& block, int32_t number, int32_t each) {
  const int32_t first = number * each;
  block.row += first;
  block.rows = min(block.rows - first, each);
  return block.rows > 0;
}

// Pieces of a tile are multiples of kPieceRows.
template <int kPieceRows>
class TileDraw {
 public:
  // `tiles` of slots for each of the plan's blocks.
  __device__ __forceinline__ TileDraw(int32_t tiles, int32_t blocks)
      : tiles_(tiles), parts_(LastPieces::of(tiles * blocks, 8)), draw_(parts_.total) {}

  // False when nothing is left; it is then not called again.
  __device__ __forceinline__ bool next(const ProductArguments& args, DrawnTile& to) {
    for (int32_t at; draw_.next(args, at);) {
      const int32_t item = parts_.item(at);
      to.block = block_at(args, item / tiles_, 0);
      to.tile = item % tiles_;
      if (at < parts_.whole || parts_.pieces == 1) return true;
      const int32_t unit = kPieceRows * parts_.pieces;
      const int32_t each = (to.block.rows + unit - 1) / unit * kPieceRows;
      if (take_rows(to.block, parts_.piece(at), each)) return true;
    }
    return false;
  }

 private:
  int32_t tiles_;
  LastPieces parts_;
  ItemDraw draw_;
};

// What is told about the tiles that are on their way, 16 bytes each: more of them than rings have
// stages. Rows 0 stands for the end.
constexpr uint32_t kToldTiles = 16;
constexpr uint32_t kToldBytes = kToldTiles * 16;

__device__ __forceinline__ void tell_tile(uint32_t told, uint32_t turn, const DrawnTile& tile) {
  store_shared(
      told + turn * 16 % kToldBytes,
      uint4{static_cast<uint32_t>(tile.block.expert), static_cast<uint32_t>(tile.block.row),
            static_cast<uint32_t>(tile.block.rows), static_cast<uint32_t>(tile.tile)});
}
__device__ __forceinline__ DrawnTile told_tile(uint32_t told, uint32_t turn) {
  const uint4 raw = load_shared_16(told + turn * 16 % kToldBytes);
  return {
      {static_cast<int32_t>(raw.x), static_cast<int32_t>(raw.y), static_cast<int32_t>(raw.z), 0},
      static_cast<int32_t>(raw.w)};
}

}  // namespace galley::kernels::cuda
