// Every byte of every piece arrives, whatever the sizes of pieces and chunks; pinned memory stays
// within its bound; progress counts bytes and can stop it.
#include "model/weight_upload.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/pretended_device.h"

namespace galley::model {
namespace {

struct Pieces {
  // Of the sizes given, with gaps of 64 bytes on the device except behind every third.
  explicit Pieces(const std::vector<int64_t>& sizes) {
    int64_t to_bytes = 0;
    std::vector<int64_t> begin;
    for (size_t i = 0; i < sizes.size(); ++i) {
      begin.push_back(to_bytes);
      to_bytes += sizes[i] + (i % 3 == 0 ? 0 : 64);
      total += sizes[i];
    }
    from.resize(static_cast<size_t>(total));
    to.resize(static_cast<size_t>(to_bytes));
    std::mt19937 random(7);
    for (std::byte& byte : from) byte = static_cast<std::byte>(random());
    int64_t at = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      list.push_back({from.data() + at, to.data() + begin[i], sizes[i]});
      at += sizes[i];
    }
  }
  bool arrived() const {
    for (const UploadPiece& piece : list) {
      if (std::memcmp(piece.from, piece.to, static_cast<size_t>(piece.bytes)) != 0) return false;
    }
    return true;
  }

  int64_t total = 0;
  std::vector<std::byte> from;
  std::vector<std::byte> to;
  std::vector<UploadPiece> list;
};

TEST(WeightUpload, EveryByteArrives) {
  const std::vector<int64_t> sizes = {1, 4096, 0, 77, 10'000, 3, 4096, 4096, 1, 65'537, 31, 0};
  for (const int64_t chunk_bytes : {13, 4096, 5000, 1 << 20}) {
    for (const int32_t chunks : {1, 2, 5}) {
      Pieces pieces(sizes);
      kernels::PretendedDevice device(0);
      const auto done = upload(device, pieces.list,
                               {.chunk_bytes = chunk_bytes, .chunks = chunks, .readers = 3}, {});
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_TRUE(pieces.arrived()) << chunk_bytes << " x " << chunks;
      EXPECT_LE(device.pinned_peak(), chunk_bytes * chunks);
    }
  }
}

TEST(WeightUpload, NeighboursTravelTogether) {
  Pieces pieces({256, 256, 256});  // a gap behind the second
  kernels::PretendedDevice device(0);
  ASSERT_TRUE(upload(device, pieces.list, {}, {}));
  EXPECT_EQ(device.transfers(), 2);
  EXPECT_TRUE(pieces.arrived());
}

TEST(WeightUpload, NothingIsNoUpload) {
  kernels::PretendedDevice device(0);
  EXPECT_TRUE(upload(device, {}, {}, [](int64_t, int64_t) { return false; }));
  EXPECT_EQ(device.pinned_peak(), 0);
}

TEST(WeightUpload, ProgressCountsAndStops) {
  Pieces pieces({1000, 1000, 1000});
  kernels::PretendedDevice device(0);
  const UploadSizes sizes = {.chunk_bytes = 500, .chunks = 2, .readers = 2};
  std::vector<int64_t> seen;
  ASSERT_TRUE(upload(device, pieces.list, sizes, [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 3000);
    seen.push_back(done);
    return true;
  }));
  EXPECT_EQ(seen, (std::vector<int64_t>{500, 1000, 1500, 2000, 2500, 3000}));

  kernels::PretendedDevice other(0);
  const auto stopped = upload(other, pieces.list, sizes,
                              [](int64_t done, int64_t /*total*/) { return done < 1000; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(other.transfers(), 2);
}

}  // namespace
}  // namespace galley::model
