// Merges the bytes of one piece into tokens: always the pair of lowest rank,
// the leftmost of equals (spec/chat.md 1). O(n log n) in the piece's length.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace galley::model {

class Bpe {
 public:
  // Ids of the 256 single bytes.
  explicit Bpe(const std::array<int32_t, 256>& byte_ids) : byte_ids_(byte_ids) {}

  void reserve(size_t merge_count);
  // Merges are added in rank order; false when the pair has a rank already.
  bool add_merge(int32_t left, int32_t right, int32_t merged);

  // Appends the ids of `piece`.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    int32_t rank = 0;
    int32_t merged = 0;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  const Merge* find(int32_t left, int32_t right) const;
  size_t slot(uint64_t pair) const;
  void grow();
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Merge> table_;  // open addressing, a power of two, at most half full
  size_t merge_count_ = 0;
};

}  // namespace galley::model
