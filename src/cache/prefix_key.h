// Names of cached prefixes: a SHA-256 chain over whole pages of tokens.
//
// A key stands for a namespace and every token from the start of the sequence to
// the end of its page, so equal keys mean equal prefixes. All 256 bits are
// compared, always: shorter names collide across tenants.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace galley::cache {

struct PrefixKey {
  std::array<uint8_t, 32> bytes = {};
  bool operator==(const PrefixKey&) const = default;
  // Well mixed: where to look first, never a proof of equality.
  uint64_t head() const {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
};

// Reuses one digest context; one thread's.
class PrefixHasher {
 public:
  PrefixHasher();
  ~PrefixHasher();
  PrefixHasher(const PrefixHasher&) = delete;
  PrefixHasher& operator=(const PrefixHasher&) = delete;

  // The key before the first page. Parts are framed, so that no two lists of them are alike.
  PrefixKey root(std::span<const std::string_view> parts);
  // Of the page with these tokens after `parent`; `image_digests` are those of images in it.
  PrefixKey next(const PrefixKey& parent, std::span<const int32_t> tokens,
                 std::span<const uint8_t> image_digests = {});

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace galley::cache
