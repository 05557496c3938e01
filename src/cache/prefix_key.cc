#include "cache/prefix_key.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace galley::cache {

struct PrefixHasher::Context {
  Context() : digest(EVP_MD_CTX_new()) { CHECK(digest != nullptr); }
  ~Context() { EVP_MD_CTX_free(digest); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void begin() const { CHECK(EVP_DigestInit_ex(digest, EVP_sha256(), nullptr) == 1); }
  void add(const void* bytes, size_t count) const {
    CHECK(EVP_DigestUpdate(digest, bytes, count) == 1);
  }
  void add_size(uint64_t size) const { add(&size, sizeof(size)); }
  PrefixKey end() const {
    PrefixKey key;
    CHECK(EVP_DigestFinal_ex(digest, key.bytes.data(), nullptr) == 1);
    return key;
  }

  EVP_MD_CTX* digest;
};

PrefixHasher::PrefixHasher() : context_(std::make_unique<Context>()) {}
PrefixHasher::~PrefixHasher() = default;

PrefixKey PrefixHasher::root(std::span<const std::string_view> parts) {
  context_->begin();
  context_->add_size(parts.size());
  for (const std::string_view part : parts) {
    context_->add_size(part.size());
    context_->add(part.data(), part.size());
  }
  return context_->end();
}

PrefixKey PrefixHasher::next(const PrefixKey& parent, std::span<const int32_t> tokens,
                             std::span<const uint8_t> image_digests) {
  context_->begin();
  context_->add(parent.bytes.data(), parent.bytes.size());
  context_->add_size(tokens.size());
  context_->add(tokens.data(), tokens.size_bytes());
  if (!image_digests.empty()) context_->add(image_digests.data(), image_digests.size());
  return context_->end();
}

}  // namespace galley::cache
