#include "kernels/cuda/engram_store.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"

namespace galley::kernels::cuda {
namespace {

constexpr int64_t kKeptBytes = int64_t{256} << 20;
constexpr int64_t kGatherRows = 1024;  // that a thread takes at a time, at most
constexpr int64_t kGatherRowsMin = 256;
constexpr int64_t kGatherAhead = 8;  // rows asked for before they are copied
constexpr int kGatherThreadsMax = 8;
constexpr int64_t kGatherAlone = 768;  // rows that one thread gathers
constexpr int64_t kFlagBytes = 256;    // a line of its own

int64_t whole_sectors(int64_t bytes) { return (bytes + 31) / 32 * 32; }

}  // namespace

EngramStore::EngramStore(Memory& memory, Stream copies)
    : memory_(memory), copies_(copies), pool_(std::min(kGatherThreadsMax, usable_cpu_count())) {}

void EngramStore::release() {
  for (Place& place : places()) {
    if (std::exchange(place.waits, false)) raise(place);
  }
}

Result<void> EngramStore::reserve(std::span<const EngramTable> tables, int64_t columns,
                                  int64_t rows) {
  for (std::vector<Place>& side : places_) side.clear();
  rows_max_ = rows;
  for (const EngramTable& table : tables) {
    TRY(keep(table, rows * columns));
    // A row of another width has no hot rows, and is always staged.
    if (table.on_host && !kept_.contains(table.codes)) rows_max_ = 0;
  }
  for (const EngramTable& table : tables) {
    for (std::vector<Place>& side : places_) {
      if (rows_max_ > 0) side.push_back(TRY(make_place(table, rows * columns)));
    }
  }
  return {};
}

Result<void> EngramStore::keep(const EngramTable& table, int64_t cells) {
  if (!table.on_host || table.width % 32 != 0) return {};
  kept_.erase(table.codes);
  const int64_t row_bytes = table.width + table.width / 32;
  KeptRows kept(kKeptBytes / row_bytes);
  const int64_t places = kept.policy.places();
  kept.codes = TRY(MemoryBlock::create(memory_, places * table.width, "Engram's hot rows"));
  kept.scale = TRY(MemoryBlock::create(memory_, places * (table.width / 32), "their scales"));
  kept.brought.reserve(static_cast<size_t>(cells));
  kept_.emplace(table.codes, std::move(kept));
  return {};
}

Result<EngramStore::Place> EngramStore::make_place(const EngramTable& table, int64_t cells) {
  const int64_t codes_at = kFlagBytes + whole_sectors(cells * int64_t{sizeof(int64_t)});
  const int64_t scale_at = codes_at + (table.on_host ? whole_sectors(cells * table.width) : 0);
  const int64_t bytes = scale_at + (table.on_host ? cells * (table.width / 32) : 0);
  const auto divide = [&](MemoryBlock room) {
    std::byte* at = room.data();
    return Side{std::move(room), at + kFlagBytes, at + codes_at, at + scale_at};
  };
  Place place;
  place.table = table.codes;
  place.on_host = table.on_host;
  place.cells_max = cells;
  place.host = divide(TRY(MemoryBlock::create_host(memory_, bytes, "Engram rows on their way")));
  place.device = divide(TRY(MemoryBlock::create(memory_, bytes, "Engram rows on their way")));
  place.flag = reinterpret_cast<PostFlag*>(place.device.room.data());
  place.posts = reinterpret_cast<uint64_t*>(place.host.room.data());
  *place.posts = 0;
  const PostFlag nothing;
  memory_.write(place.flag, &nothing, sizeof(nothing));
  return place;
}

void EngramStore::begin_step() {
  side_ = 1 - side_;
  next_ = 0;
}

bool EngramStore::posts(const EngramTable& table, Rows<const int64_t> ids) const {
  const std::vector<Place>& places = places_[side_];
  return next_ < places.size() && places[next_].table == table.codes &&
         ids.rows * ids.cols <= places[next_].cells_max;
}

EngramStore::Posted EngramStore::post(const EngramTable& table, Rows<const int64_t> ids) {
  Place& place = places()[next_++];
  CHECK(!place.waits);
  place.wanted = table;
  place.ids = ids;
  place.waits = true;
  Posted posted;
  posted.flag = place.flag;
  if (!table.on_host) {
    posted.ids = Rows<const int64_t>(reinterpret_cast<const int64_t*>(place.device.cells), ids.rows,
                                     ids.cols);
    return posted;
  }
  const KeptRows& kept = kept_.at(table.codes);
  posted.kept = {reinterpret_cast<uint8_t*>(kept.codes.data()),
                 reinterpret_cast<uint8_t*>(kept.scale.data())};
  posted.staged = {reinterpret_cast<uint8_t*>(place.device.codes),
                   reinterpret_cast<uint8_t*>(place.device.scale)};
  posted.cells = reinterpret_cast<const EngramCell*>(place.device.cells);
  return posted;
}

void EngramStore::fill() {
  for (size_t i = 0; i < next_; ++i) {
    if (places()[i].waits) fill(places()[i]);
  }
}

void EngramStore::fill(Place& place) {
  place.waits = false;
  const Rows<const int64_t>& ids = place.ids;
  static_assert(sizeof(EngramCell) == sizeof(int64_t));
  if (place.on_host) {
    KeptRows& kept = kept_.at(place.table);
    auto* cell = reinterpret_cast<EngramCell*>(place.host.cells);
    kept.policy.begin_call();
    kept.brought.clear();
    for (int64_t row = 0; row < ids.rows; ++row) {
      for (int64_t column = 0; column < ids.cols; ++column) {
        const int64_t id = ids.row(row)[column];
        if (row + 1 < ids.rows) kept.policy.prefetch(ids.row(row + 1)[column]);
        const HotRows::Found found = kept.policy.find(id);
        if (found.staged == std::ssize(kept.brought)) kept.brought.push_back(id);
        *cell++ = {found.place, found.staged};
      }
    }
    const auto brought = std::ssize(kept.brought);
    copy_rows(place.wanted, kept.brought, place.host.codes, place.host.scale);
    send(place.host.codes, place.device.codes, brought * place.wanted.width);
    send(place.host.scale, place.device.scale, brought * (place.wanted.width / 32));
  } else {
    auto* number = reinterpret_cast<int64_t*>(place.host.cells);
    for (int64_t row = 0; row < ids.rows; ++row) {
      std::copy_n(ids.row(row), ids.cols, number + row * ids.cols);
    }
  }
  send(place.host.cells, place.device.cells, ids.rows * ids.cols * int64_t{sizeof(EngramCell)});
  raise(place);
}

void EngramStore::send(const std::byte* host, std::byte* device, int64_t bytes) {
  if (bytes == 0) return;
  cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, copies_);
}

// Behind what was sent.
void EngramStore::raise(Place& place) {
  ++*place.posts;
  send(reinterpret_cast<const std::byte*>(place.posts),
       reinterpret_cast<std::byte*>(&place.flag->raised), sizeof(uint64_t));
}

// A step of 16k rows asks for 390,000 of them, each a miss of every cache: then several threads
// wait for memory instead of one.
void EngramStore::copy_rows(const EngramTable& table, std::span<const int64_t> rows,
                            std::byte* codes, std::byte* scale) {
  const int64_t blocks = (table.width + 31) / 32;
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      if (at + kGatherAhead < end) {  // every row is a miss of every cache
        const int64_t next = rows[static_cast<size_t>(at + kGatherAhead)];
        for (int64_t byte = 0; byte < table.width; byte += 64) {
          __builtin_prefetch(table.codes + next * table.width + byte);
        }
        __builtin_prefetch(table.scale + next * blocks);
      }
      const int64_t row = rows[static_cast<size_t>(at)];
      std::memcpy(codes + at * table.width, table.codes + row * table.width,
                  static_cast<size_t>(table.width));
      std::memcpy(scale + at * blocks, table.scale + row * blocks, static_cast<size_t>(blocks));
    }
  };
  const auto count = std::ssize(rows);
  if (count <= kGatherAlone) return copy(0, count);
  const int64_t each = std::clamp(count / kGatherThreadsMax, kGatherRowsMin, kGatherRows);
  pool_.run((count + each - 1) / each, [&](int64_t part, int /*thread*/) {
    copy(part * each, std::min(count, (part + 1) * each));
  });
}

EngramStore::Gathered EngramStore::gather(const EngramTable& table, Rows<const int64_t> ids,
                                          StageArena& arena) {
  const int64_t cells = ids.rows * ids.cols;
  const int64_t blocks = (table.width + 31) / 32;
  // One place for all, since what is taken must be written before the next is.
  const int64_t codes_at = whole_sectors(cells * int64_t{sizeof(int64_t)});
  const int64_t scale_at = codes_at + whole_sectors(cells * table.width);
  const StageArena::Place place = arena.take(table.on_host ? scale_at + cells * blocks : codes_at);
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
