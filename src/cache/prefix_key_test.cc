// Keys are SHA-256 over framed bytes: the same input always gives the published
// digest, and nothing that differs (namespace, order, framing, one token) shares one.
#include "cache/prefix_key.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace galley::cache {
namespace {

std::string hex(const PrefixKey& key) {
  std::string text;
  for (const uint8_t byte : key.bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

TEST(PrefixKey, IsSha256OfTheFramedParts) {
  PrefixHasher hasher;
  const std::string_view parts[] = {"abc"};
  // printf '\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0abc' | sha256sum
  EXPECT_EQ(hex(hasher.root(parts)),
            "f3264e782da0229faf1ce594150d008c42c3a301c4647adfc9032269716cd860");
  // printf '%32s' '' | tr ' ' '\0' ; then 2 as u64, then 1 and 2 as i32 | sha256sum
  const std::vector<int32_t> tokens = {1, 2};
  EXPECT_EQ(hex(hasher.next(PrefixKey{}, tokens)),
            "5872245401eda0cd229db353b3cb0a94649b69aae91e05bd956648fedb93fd4b");
}

TEST(PrefixKey, TellsApartWhateverDiffers) {
  PrefixHasher hasher;
  std::set<std::string> seen;
  const std::string_view split[] = {"ab", "c"};
  const std::string_view other[] = {"a", "bc"};
  const std::string_view more[] = {"ab", "c", ""};
  const PrefixKey root = hasher.root(split);
  seen.insert(hex(root));
  seen.insert(hex(hasher.root(other)));
  seen.insert(hex(hasher.root(more)));
  for (const std::vector<int32_t>& tokens :
       {std::vector<int32_t>{1, 2, 3}, {1, 2, 4}, {2, 1, 3}, {1, 2}, {}}) {
    seen.insert(hex(hasher.next(root, tokens)));
  }
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<uint8_t> image(32, 7);
  seen.insert(hex(hasher.next(root, tokens, image)));
  seen.insert(hex(hasher.next(hasher.root(other), tokens)));
  EXPECT_EQ(seen.size(), 10U);
  EXPECT_EQ(hasher.next(root, tokens), hasher.next(root, tokens));
}

}  // namespace
}  // namespace galley::cache
