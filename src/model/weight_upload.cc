#include "model/weight_upload.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"

namespace galley::model {
namespace {

// The pieces as one stream of bytes, cut into chunks of one size.
class ChunkedPieces {
 public:
  ChunkedPieces(std::span<const UploadPiece> pieces, int64_t chunk_bytes)
      : pieces_(pieces), chunk_bytes_(chunk_bytes) {
    begin_.reserve(pieces.size() + 1);
    begin_.push_back(0);
    for (const UploadPiece& piece : pieces) begin_.push_back(begin_.back() + piece.bytes);
  }

  int64_t bytes() const { return begin_.back(); }
  int64_t count() const { return (bytes() + chunk_bytes_ - 1) / chunk_bytes_; }
  int64_t end(int64_t chunk) const { return std::min(bytes(), (chunk + 1) * chunk_bytes_); }

  // visit(number of the piece, offset in it, offset in the chunk, bytes), in order.
  template <class Visit>
  void each_part(int64_t chunk, const Visit& visit) const {
    const int64_t first = chunk * chunk_bytes_;
    auto next = std::upper_bound(begin_.begin(), begin_.end(), first) - 1;
    for (int64_t at = first; at < end(chunk); ++next) {
      const auto piece = static_cast<size_t>(next - begin_.begin());
      const int64_t offset = at - *next;
      const int64_t bytes = std::min(pieces_[piece].bytes - offset, end(chunk) - at);
      if (bytes > 0) visit(piece, offset, at - first, bytes);
      at += bytes;
    }
  }

 private:
  std::span<const UploadPiece> pieces_;
  int64_t chunk_bytes_;
  std::vector<int64_t> begin_;  // of each piece in the stream, and the end
};

// Which chunks are read and which are written: chunk i lies in place i mod `places`, so it is read
// only once chunk i - places was written.
class ChunkTurns {
 public:
  ChunkTurns(int64_t chunks, int32_t places)
      : chunks_(chunks), places_(places), read_(static_cast<size_t>(places), -1) {}

  // The next chunk to read, once its place is free; -1: nothing is left to do.
  int64_t take() {
    std::unique_lock lock(mutex_);
    const int64_t chunk = taken_++;
    changed_.wait(lock, [&] { return stopped_ || chunk < written_ + places_; });
    return stopped_ || chunk >= chunks_ ? -1 : chunk;
  }
  void set_read(int64_t chunk) {
    const std::scoped_lock lock(mutex_);
    read_[static_cast<size_t>(chunk % places_)] = chunk;
    changed_.notify_all();
  }
  void wait_read(int64_t chunk) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return read_[static_cast<size_t>(chunk % places_)] == chunk; });
  }
  void set_written(int64_t chunk) {
    const std::scoped_lock lock(mutex_);
    written_ = chunk + 1;
    changed_.notify_all();
  }
  void stop() {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  const int64_t chunks_;
  const int64_t places_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> read_;  // [places] the chunk that lies there whole
  int64_t taken_ = 0;
  int64_t written_ = 0;
  bool stopped_ = false;
};

// Neighbours on both sides become one transfer.
Result<void> write_chunk(kernels::Memory& memory, std::span<const UploadPiece> pieces,
                         const ChunkedPieces& stream, int64_t chunk, const std::byte* from,
                         const AfterPiece& after) {
  std::byte* to = nullptr;
  int64_t begin = 0;
  int64_t bytes = 0;
  const auto write = [&] {
    if (bytes > 0) memory.write(to, from + begin, bytes);
    bytes = 0;
  };
  Result<void> done;
  stream.each_part(chunk, [&](size_t number, int64_t offset, int64_t at, int64_t count) {
    const UploadPiece& piece = pieces[number];
    if (!done) return;
    if (bytes == 0 || to + bytes != piece.to + offset) {
      write();
      to = piece.to + offset;
      begin = at;
    }
    bytes += count;
    if (!piece.then || offset + count < piece.bytes) return;
    write();
    done = after(number);
  });
  if (done) write();
  return done;
}

}  // namespace

Result<void> upload(kernels::Memory& memory, std::span<const UploadPiece> pieces,
                    const UploadSizes& sizes, const UploadProgress& progress,
                    const AfterPiece& after) {
  CHECK(sizes.chunk_bytes > 0 && sizes.chunks > 0 && sizes.readers > 0);
  const ChunkedPieces stream(pieces, sizes.chunk_bytes);
  const auto places = static_cast<int32_t>(std::min<int64_t>(sizes.chunks, stream.count()));
  if (places == 0) return {};
  const kernels::MemoryBlock ring = TRY(kernels::MemoryBlock::create_host(
      memory, places * sizes.chunk_bytes, "weights on their way to the device"));
  const auto place = [&](int64_t chunk) {
    return ring.data() + chunk % places * sizes.chunk_bytes;
  };
  ChunkTurns turns(stream.count(), places);
  std::vector<std::jthread> readers;  // joined before the ring goes
  for (int32_t i = 0; i < std::min(sizes.readers, places); ++i) {
    readers.emplace_back([&] {
      for (int64_t chunk = turns.take(); chunk >= 0; chunk = turns.take()) {
        stream.each_part(chunk, [&](size_t number, int64_t offset, int64_t at, int64_t count) {
          const auto* from = static_cast<const std::byte*>(pieces[number].from);
          std::memcpy(place(chunk) + at, from + offset, static_cast<size_t>(count));
        });
        turns.set_read(chunk);
      }
    });
  }
  Result<void> done;
  for (int64_t chunk = 0; chunk < stream.count() && done; ++chunk) {
    turns.wait_read(chunk);
    done = write_chunk(memory, pieces, stream, chunk, place(chunk), after);
    turns.set_written(chunk);
    if (done && progress && !progress(stream.end(chunk), stream.bytes())) {
      done = Error{ErrorCode::kCancelled, "interrupted while weights were uploaded"};
    }
  }
  turns.stop();
  return done;
}

}  // namespace galley::model
