#include "kernels/cuda/engram_store.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"

namespace galley::kernels::cuda {
namespace {

constexpr int64_t kKeptBytes = int64_t{256} << 20;
constexpr int64_t kKeptCellsMax = 512 * 24;  // 512 rows of the release
constexpr int64_t kGatherRows = 1024;        // that a thread takes at a time
constexpr int kGatherThreadsMax = 8;

int64_t whole_sectors(int64_t bytes) { return (bytes + 31) / 32 * 32; }

// The room of what is brought has one of three sizes, so that a step's graph serves the next.
int64_t brought_room(int64_t cells, int64_t brought) {
  for (const int64_t part : {8, 2}) {
    if (brought * part <= cells) return (cells + part - 1) / part;
  }
  return cells;
}

}  // namespace

EngramStore::EngramStore(Memory& memory, StageArena& arena)
    : memory_(memory), arena_(arena), pool_(std::min(kGatherThreadsMax, usable_cpu_count())) {}

Result<void> EngramStore::keep(const EngramTable& table) {
  if (!table.on_host || table.width % 32 != 0) return {};
  kept_.erase(table.codes);
  const int64_t row_bytes = table.width + table.width / 32;
  KeptRows kept(kKeptBytes / row_bytes);
  const int64_t places = kept.policy.places();
  kept.codes = TRY(MemoryBlock::create(memory_, places * table.width, "Engram's hot rows"));
  kept.scale = TRY(MemoryBlock::create(memory_, places * (table.width / 32), "their scales"));
  kept.cells.reserve(kKeptCellsMax);
  kept.brought.reserve(kKeptCellsMax);
  kept_.emplace(table.codes, std::move(kept));
  return {};
}

bool EngramStore::keeps(const EngramTable& table, Rows<const int64_t> ids) const {
  return ids.rows * ids.cols <= kKeptCellsMax && kept_.contains(table.codes);
}

// A step of 16k rows asks for 390,000 of them, each a miss of every cache: then several threads
// wait for memory instead of one.
void EngramStore::copy_rows(const EngramTable& table, std::span<const int64_t> rows,
                            std::byte* codes, std::byte* scale) {
  const int64_t blocks = (table.width + 31) / 32;
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t row = rows[static_cast<size_t>(at)];
      std::memcpy(codes + at * table.width, table.codes + row * table.width,
                  static_cast<size_t>(table.width));
      std::memcpy(scale + at * blocks, table.scale + row * blocks, static_cast<size_t>(blocks));
    }
  };
  const auto count = std::ssize(rows);
  if (count <= kKeptCellsMax) return copy(0, count);
  pool_.run((count + kGatherRows - 1) / kGatherRows, [&](int64_t part, int /*thread*/) {
    copy(part * kGatherRows, std::min(count, (part + 1) * kGatherRows));
  });
}

EngramStore::Kept EngramStore::bring(const EngramTable& table, Rows<const int64_t> ids) {
  KeptRows& kept = kept_.at(table.codes);
  kept.policy.begin_call();
  kept.cells.clear();
  kept.brought.clear();
  for (int64_t row = 0; row < ids.rows; ++row) {
    for (int64_t column = 0; column < ids.cols; ++column) {
      const int64_t id = ids.row(row)[column];
      const HotRows::Found found = kept.policy.find(id);
      if (found.staged == std::ssize(kept.brought)) kept.brought.push_back(id);
      kept.cells.push_back({found.place, found.staged});
    }
  }
  const auto cells = std::ssize(kept.cells);
  const int64_t blocks = table.width / 32;
  const int64_t room = brought_room(cells, std::ssize(kept.brought));
  const int64_t codes_at = whole_sectors(cells * int64_t{sizeof(EngramCell)});
  const int64_t scale_at = codes_at + whole_sectors(room * table.width);
  const StageArena::Place place = arena_.take(scale_at + room * blocks);
  if (place.host == nullptr) return {};
  std::memcpy(place.host, kept.cells.data(), static_cast<size_t>(cells) * sizeof(EngramCell));
  copy_rows(table, kept.brought, place.host + codes_at, place.host + scale_at);
  auto* on_device = reinterpret_cast<uint8_t*>(place.device);
  return {.kept = {reinterpret_cast<uint8_t*>(kept.codes.data()),
                   reinterpret_cast<uint8_t*>(kept.scale.data())},
          .staged = {on_device + codes_at, on_device + scale_at},
          .cells = reinterpret_cast<const EngramCell*>(on_device)};
}

EngramStore::Gathered EngramStore::gather(const EngramTable& table, Rows<const int64_t> ids) {
  const int64_t cells = ids.rows * ids.cols;
  const int64_t blocks = (table.width + 31) / 32;
  // One place for all, since what is taken must be written before the next is.
  const int64_t codes_at = whole_sectors(cells * int64_t{sizeof(int64_t)});
  const int64_t scale_at = codes_at + whole_sectors(cells * table.width);
  const StageArena::Place place = arena_.take(table.on_host ? scale_at + cells * blocks : codes_at);
  if (place.host == nullptr) return {};
  auto* number = reinterpret_cast<int64_t*>(place.host);
  for (int64_t cell = 0; cell < cells; ++cell) {
    number[cell] = table.on_host ? cell : ids.row(cell / ids.cols)[cell % ids.cols];
  }
  if (table.on_host) {
    // The rows themselves, in order.
    CHECK(ids.stride == ids.cols);
    copy_rows(table, {ids.data, static_cast<size_t>(cells)}, place.host + codes_at,
              place.host + scale_at);
  }
  const auto* on_device = reinterpret_cast<const uint8_t*>(place.device);
  return {
      .codes = table.on_host ? on_device + codes_at : table.codes,
      .scale = table.on_host ? on_device + scale_at : table.scale,
      .ids = Rows<const int64_t>(reinterpret_cast<const int64_t*>(on_device), ids.rows, ids.cols)};
}

}  // namespace galley::kernels::cuda
