// Finds the longest of many strings that begins at a place of a text: the scan
// for added tokens.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace galley::model {

class TokenTrie {
 public:
  struct Hit {
    int32_t id = -1;  // -1 = none
    size_t begin = 0;
    size_t length = 0;
  };

  TokenTrie() { can_begin_.fill(false); }

  // A string that is not empty; the last id of equal strings stays.
  void add(std::string_view text, int32_t id);
  // The first place at or after `from` where one begins, and the longest there.
  Hit find(std::string_view text, size_t from) const;
  bool empty() const { return ids_.empty(); }

 private:
  static uint64_t edge(int32_t node, uint8_t byte) {
    return static_cast<uint64_t>(static_cast<uint32_t>(node)) << 8 | byte;
  }

  std::array<bool, 256> can_begin_;
  std::unordered_map<uint64_t, int32_t> next_;  // (node, byte) -> node; node 0 is the root
  std::vector<int32_t> ids_;                    // [node - 1], -1 = no string ends here
};

}  // namespace galley::model
