// The forms of the fp8 product, and which of them a number of rows gets: few rows
// (dense_few_rows.cuh) or many (dense_tiles.cuh).
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/dense_few_rows.cuh"
#include "kernels/cuda/dense_split.cuh"
#include "kernels/cuda/dense_tiles.cuh"
#include "kernels/cuda/dense_turns.h"
#include "kernels/cuda/launch_product.cuh"

namespace galley::kernels::cuda {
namespace {

// Above these rows tiles are faster: 128 rows of 5,120 x 8,192 take 27 us here and 20.5 there.
constexpr int32_t kFewRowsMax = 64;
// Tiles of up to 64 rows, on one H200: 5,120 x 8,192 takes 13.8 us, by few rows 15.0 to 15.5 (17.3
// while one thread issued all copies); 4,608 x 5,120 9.3 and 9.6 to 9.9 (11.1); 32,768 x 1,280 12.6
// and 13.3. At 32 rows only long sums gain: 13.6 and 14.4; 9.1 and 8.8 for 40 chunks.
constexpr TileCut kFewTile{.rows = 64, .slots = 48, .batch = 4, .teams = 1, .stages = 14};
constexpr int32_t kLongSum = 48;  // chunks
constexpr TileCut kFewWideTile{.rows = 64, .slots = 128, .batch = 2};
// From so many strips on, blocks of two find enough of them for the whole device.
constexpr int32_t kManyStrips = 256;

int32_t strips_of(const DenseSet& set) {
  int32_t slots = 0;
  for (int32_t i = 0; i < set.count; ++i) slots += set.parts[i].slots;
  return slots / kStripSlots;
}

template <class Form>
void launch_few_rows(Stream stream, const DenseSet& set) {
  const auto kernel = dense_few_rows_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
  static_cast<void>(limits);
  const int32_t token_blocks = (set.common.rows + Form::kTokens - 1) / Form::kTokens;
  const int32_t blocks = strips_of(set) / Form::kStrips * token_blocks * Form::kGroups;
  const auto more =
      static_cast<int32_t>((set.copy_count + Form::kGroups - 1) / Form::kGroups * Form::kGroups);
  if (blocks + more == 0) return;
  launch_kernel(
      kernel,
      {blocks + more, Form::kThreads, static_cast<size_t>(Form::kSharedBytes), Form::kGroups},
      stream, set, blocks);
}

// Whether the copy engine can store all results: everything is a multiple of 16 bytes.
bool takes_boxes(const DenseSet& set) {
  return set.common.row_weight == nullptr &&
         std::all_of(set.parts, set.parts + set.count, [](const DensePart& part) {
           return part.outputs % 8 == 0 && part.y_stride % 8 == 0 &&
                  reinterpret_cast<uintptr_t>(part.y) % 16 == 0;
         });
}

template <class Form>
void launch_tiles(Stream stream, TileSet& set, int64_t copy_count = 0) {
  const auto kernel = dense_tiles_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, Form::kCluster);
  // The threads that copy are less than a tile ahead.
  CHECK(set.common.chunks > Form::kStages);
  if constexpr (Form::kBoxes) {
    for (int32_t i = 0; i < set.count; ++i) {
      const DensePart& part = set.parts[i];
      set.maps[i] = matrix_map(part.y, set.common.rows, part.outputs, part.y_stride * 2, 2, 64,
                               Form::kBoxColumns);
    }
  }
  const int32_t clusters = TileItems<Form>(set).count();
  set.product_blocks = std::min(limits.blocks, clusters * Form::kCluster);
  const int32_t blocks = set.product_blocks + static_cast<int32_t>(copy_count);
  CHECK(copy_count == 0 || Form::kCluster == 1);
  if (blocks == 0) return;
  launch_kernel(kernel,
                {blocks, Form::kThreads, static_cast<size_t>(Form::kSharedBytes),
                 static_cast<uint32_t>(Form::kCluster)},
                stream, set);
}

// A form and what its tiles take where all multiprocessors have one, in ns; `first` is what the
// first of them takes longer.
struct TileChoice {
  TileCut cut;
  int32_t chunk;
  int32_t tile;
  int32_t first = 0;
};

// What the slowest multiprocessor takes.
template <TileChoice kChoice>
int64_t tile_cost(const TileSet& set) {
  constexpr int32_t kMultiprocessors = 132;
  using Form = TileForm<kChoice.cut, ResultForm::kF32, false, false>;
  if (set.common.chunks <= kChoice.cut.stages) return INT64_MAX;
  constexpr int32_t kClusters = kMultiprocessors / Form::kCluster;
  const int64_t rounds = (TileItems<Form>(set).count() + kClusters - 1) / kClusters;
  return rounds * (int64_t{set.common.chunks} * kChoice.chunk + kChoice.tile) + kChoice.first;
}

template <ResultForm kResult, bool kGrouped, TileChoice... kChoices>
void launch_cheapest(Stream stream, TileSet& set) {
  const int64_t costs[] = {tile_cost<kChoices>(set)...};
  const auto cheapest = std::min_element(std::begin(costs), std::end(costs)) - std::begin(costs);
  ptrdiff_t at = 0;
  const auto launch_if = [&]<TileChoice kChoice>() {
    if (at++ == cheapest) launch_tiles<TileForm<kChoice.cut, kResult, kGrouped, true>>(stream, set);
  };
  (launch_if.template operator()<kChoices>(), ...);
}

// Of 21 forms, on one H200, 128 to 16,384 rows of the released shapes: with these the one that
// costs least takes 0.6 % longer than the best one, on average. Of 65 to 128 rows tiles of 48 slots
// without clusters: 5,120 x 8,192 16.3 us instead of 19.2, 4,608 x 5,120 11.0 and 12.3, 5,120 x
// 2,304 6.7 and 7.5; with 7 stages 19.2, 12.2 and 7.2. Eight chunks in straight code: 15.5 instead
// of 16.3, 10.4 and 10.9, 6.5 and 6.6; of 80 slots at 256 rows 22.8 and 23.1, 14.4 and 14.7.
// Clusters that share the slots' copies are slower wherever tiles are large, most so when the card
// is hot: 5,120 x 2,304 at 16,384 rows over and over 357 us with them and 335 without, 5,120 x
// 8,192 at 4,096 307 and 290, 5,120 x 2,304 at 512 13.2 and 12.7.
template <ResultForm kResult>
void launch_whole_tiles(Stream stream, TileSet& set) {
  launch_cheapest<kResult, false,  //
                  TileChoice{{.rows = 64, .slots = 96, .batch = 3, .run = 8}, 220, 500},
                  TileChoice{{.rows = 64, .slots = 160, .along = 2, .batch = 3}, 320, 1000},
                  TileChoice{
                      {.rows = 128, .slots = 48, .batch = 2, .stages = 9, .run = 8}, 200, 300},
                  TileChoice{{.rows = 128, .slots = 80, .batch = 3, .run = 8}, 300, 1000},
                  TileChoice{{.rows = 128, .slots = 128}, 400, 650},
                  TileChoice{{.rows = 128, .slots = 160}, 465, 1400},
                  TileChoice{{.rows = 128, .slots = 256, .parts = 2}, 750, 1100, 1500}>(stream,
                                                                                        set);
}
// Of sums in parts, whose five chunks are in straight code: with 1,280 and 512 outputs of 5,120
// together 9.9 us instead of 10.1 at 256 rows, 13.1 instead of 14.3 at 512, 16.1 instead of 17.4
// at 768. Clusters are 5 to 12 % slower up to 768 rows, and no faster at 4,096.
template <ResultForm kResult>
void launch_split_tiles(Stream stream, TileSet& set) {
  launch_cheapest<
      kResult, true,  //
      TileChoice{{.rows = 64, .slots = 32, .batch = 5, .teams = 1, .stages = 14}, 135, 800},
      TileChoice{{.rows = 64, .slots = 48, .batch = 5, .teams = 1, .stages = 14}, 150, 800},
      TileChoice{
          {.rows = 64, .slots = 64, .batch = 4, .teams = 1, .stages = 12, .run = 5}, 160, 850},
      TileChoice{{.rows = 64, .slots = 96, .batch = 3, .run = 5}, 195, 1000},
      TileChoice{{.rows = 128, .slots = 48, .batch = 3, .stages = 9, .run = 5}, 200, 900},
      TileChoice{{.rows = 128, .slots = 64, .batch = 2, .run = 5}, 235, 900},
      TileChoice{{.rows = 128, .slots = 96}, 320, 1000},
      TileChoice{{.rows = 128, .slots = 128}, 390, 1000},
      TileChoice{{.rows = 128, .slots = 160}, 550, 1000}>(stream, set);
}

TileSet tile_set(const DenseSet& set) {
  TileSet tiles{};
  tiles.common = set.common;
  tiles.common.groups = dense_sum_groups(set.parts[0].slots, set.common.chunks);
  std::copy_n(set.parts, set.count, tiles.parts);
  tiles.count = set.count;
  tiles.copies = set.copies;
  return tiles;
}

// Many rows.
template <bool kGrouped, ResultForm kResult>
void launch_many_rows(Stream stream, const DenseSet& set) {
  constexpr TileCut kAnyCut{.rows = 128, .slots = 128};
  TileSet tiles = tile_set(set);
  if constexpr (kResult != ResultForm::kF32) {
    if (takes_boxes(set)) {
      if constexpr (kGrouped) {
        launch_split_tiles<kResult>(stream, tiles);
      } else {
        launch_whole_tiles<kResult>(stream, tiles);
      }
      return;
    }
  }
  launch_tiles<TileForm<kAnyCut, kResult, kGrouped, false>>(stream, tiles);
}

// Up to 64 rows by tiles, where there are enough of them for it. Copies go along on what
// multiprocessors are left, so not where all of them multiply.
template <ResultForm kResult>
bool launch_few_tiles(Stream stream, const DenseSet& set) {
  if constexpr (kResult != ResultForm::kF32) {
    const int32_t rows = set.common.rows;
    const int32_t chunks = set.common.chunks;
    if (rows > kFewRowsMax || !takes_boxes(set)) return false;
    TileSet tiles = tile_set(set);
    if (strips_of(set) >= kManyStrips) {
      if (rows <= 8 || chunks <= kFewWideTile.stages || set.copy_count > 0) return false;
      launch_tiles<TileForm<kFewWideTile, kResult, false, true>>(stream, tiles);
      return true;
    }
    if (rows <= (chunks > kLongSum ? 16 : 32) || chunks <= kFewTile.stages) return false;
    launch_tiles<TileForm<kFewTile, kResult, false, true>>(stream, tiles, set.copy_count);
    return true;
  }
  return false;
}

// Sums of one part: 64 strips or more. As few blocks as multiprocessors take all of the shared
// memory, since one's copies in flight are then what its bandwidth comes from.
template <ResultForm kResult>
void launch_whole(Stream stream, const DenseSet& set) {
  const int32_t rows = set.common.rows;
  if (takes_turns(set)) return dense_turns(stream, set);
  if (launch_few_tiles<kResult>(stream, set)) return;
  if (strips_of(set) >= kManyStrips) {
    if (rows <= 8) return launch_few_rows<FewRowsForm<8, 1, 2, 111, kResult, 4>>(stream, set);
    if (rows <= 32) return launch_few_rows<FewRowsForm<32, 1, 1, 111, kResult, 4>>(stream, set);
    if (rows <= 64) return launch_few_rows<FewRowsForm<64, 1, 2, 111, kResult, 1>>(stream, set);
  } else {
    if (rows <= 8) return launch_few_rows<FewRowsForm<8, 1, 1, 220, kResult, 4>>(stream, set);
    if (rows <= 32) return launch_few_rows<FewRowsForm<32, 1, 1, 220, kResult, 4>>(stream, set);
    if (rows <= 64) return launch_few_rows<FewRowsForm<64, 1, 1, 220, kResult, 4>>(stream, set);
  }
  launch_many_rows<false, kResult>(stream, set);
}

// Tiles whose blocks share the parts of the sums; false where not all of them run at once.
template <class Form>
bool launch_parts(Stream stream, const DenseSet& set) {
  const auto kernel = dense_split_kernel<Form>;
  static const int32_t clusters_max = [&] {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Form::kSharedBytes);
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = LaunchLimits::configuration(
        nullptr, Form::kSplit, Form::kThreads, Form::kSharedBytes, Form::kSplit, &attribute);
    int32_t clusters = 0;
    cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    return clusters;
  }();
  TileSet tiles = tile_set(set);
  const int32_t clusters = TileItems<Form>(tiles).count();
  if (clusters > clusters_max) return false;
  tiles.product_blocks = clusters * Form::kSplit;
  const auto copies = static_cast<int32_t>(set.copy_count);
  const int32_t more = (copies + Form::kSplit - 1) / Form::kSplit * Form::kSplit;
  if (tiles.product_blocks + more == 0) return true;
  launch_kernel(kernel,
                {tiles.product_blocks + more, Form::kThreads,
                 static_cast<size_t>(Form::kSharedBytes), Form::kSplit},
                stream, tiles, copies);
  return true;
}

// The forms in the order of what they take where there is room for all of their clusters.
template <ResultForm kResult>
bool launch_eight_parts(Stream stream, const DenseSet& set) {
  constexpr TileCut kSmall{
      .rows = 64, .slots = 64, .batch = 2, .teams = 1, .stages = 5, .run = 5, .blocks = 2};
  constexpr int32_t kSmallTiles = 16;  // more are slower than half as many of 128 slots
  constexpr TileCut kWide{.rows = 64, .slots = 128, .batch = 2, .teams = 1, .stages = 5, .run = 5};
  constexpr TileCut kTall{.rows = 128, .slots = 96, .batch = 2, .stages = 5, .run = 5};
  constexpr TileCut kTwoParts{.rows = 64, .slots = 128, .batch = 2, .run = 5};
  const int32_t rows = set.common.rows;
  if (strips_of(set) * ((rows + 63) / 64) <= kSmallTiles) {
    return launch_parts<SplitForm<kSmall, kResult, 8>>(stream, set);
  }
  if (rows <= kWide.rows) return launch_parts<SplitForm<kWide, kResult, 8>>(stream, set);
  return launch_parts<SplitForm<kTall, kResult, 8>>(stream, set) ||
         launch_parts<SplitForm<kTwoParts, kResult, 4>>(stream, set);
}

// Sums of several parts, a block of a cluster each.
template <int kGroups, ResultForm kResult>
void launch_split(Stream stream, const DenseSet& set) {
  const int32_t rows = set.common.rows;
  if constexpr (kGroups == kSplitParts && kResult == ResultForm::kBf16) {
    if (launch_eight_parts<kResult>(stream, set)) return;
  }
  if (rows <= 8) return launch_few_rows<FewRowsForm<8, kGroups, 1, 74, kResult, 4>>(stream, set);
  if (rows <= 32) return launch_few_rows<FewRowsForm<32, kGroups, 1, 74, kResult, 4>>(stream, set);
  if (rows <= kFewRowsMax) {
    return launch_few_rows<FewRowsForm<64, kGroups, 1, 74, kResult, 1>>(stream, set);
  }
  launch_many_rows<true, kResult>(stream, set);
}

template <ResultForm kResult>
void launch(Stream stream, int32_t groups, const DenseSet& set) {
  switch (groups) {
    case 1:
      return launch_whole<kResult>(stream, set);
    case 2:
      return launch_split<2, kResult>(stream, set);
    case 4:
      return launch_split<4, kResult>(stream, set);
    default:
      return launch_split<8, kResult>(stream, set);
  }
}

}  // namespace

int32_t dense_sum_groups(int64_t slots, int64_t chunks) {
  const int64_t strips = slots / kStripSlots;
  if (strips >= 64) return 1;
  int32_t groups = 1;
  while (groups < 8 && strips * groups < 128 && chunks >= groups * 4) groups *= 2;
  return groups;
}

bool dense_takes_copies(int64_t rows) { return rows <= kFewRowsMax; }

void dense_products(Stream stream, const DenseSet& set) {
  CHECK(set.copy_count == 0 || dense_takes_copies(set.common.rows));
  DenseSet left = set;
  while (left.count > 0) {
    // Those with as many parts as the first one, together.
    DenseSet now = left;
    now.count = 0;
    const int32_t groups = dense_sum_groups(left.parts[0].slots, left.common.chunks);
    int32_t others = 0;
    for (int32_t i = 0; i < left.count; ++i) {
      const DensePart part = left.parts[i];
      if (dense_sum_groups(part.slots, left.common.chunks) == groups) {
        now.parts[now.count++] = part;
      } else {
        left.parts[others++] = part;
      }
    }
    left.count = others;
    left.copy_count = 0;  // with the first launch
    switch (set.form) {
      case ResultForm::kF32:
        launch<ResultForm::kF32>(stream, groups, now);
        break;
      case ResultForm::kBf16:
        launch<ResultForm::kBf16>(stream, groups, now);
        break;
      case ResultForm::kSwiGlu:
        launch<ResultForm::kSwiGlu>(stream, groups, now);
        break;
    }
  }
}

void dense_product(Stream stream, ResultForm form, ProductArguments args) {
  DenseSet set;
  set.form = form;
  set.common = args;
  set.parts[0] = {args.weights, args.y, args.y_stride, args.slots, args.outputs};
  set.count = 1;
  dense_products(stream, set);
}

}  // namespace galley::kernels::cuda
