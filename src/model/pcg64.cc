#include "model/pcg64.h"

#include <array>
#include <bit>
#include <cstddef>

#include "base/check.h"

namespace galley::model {
namespace {

// NumPy's SeedSequence: four pooled words, hashed in turn.
class SeedPool {
 public:
  explicit SeedPool(uint64_t seed) {
    const std::array<uint32_t, 2> entropy = {static_cast<uint32_t>(seed),
                                             static_cast<uint32_t>(seed >> 32)};
    uint32_t constant = 0x43b0d7e5U;
    for (size_t i = 0; i < pool_.size(); ++i) {
      pool_[i] = absorb(i < entropy.size() ? entropy[i] : 0U, constant);
    }
    for (size_t source = 0; source < pool_.size(); ++source) {
      for (size_t target = 0; target < pool_.size(); ++target) {
        if (source != target) pool_[target] = mix(pool_[target], absorb(pool_[source], constant));
      }
    }
  }

  std::array<uint64_t, 4> words() const {
    std::array<uint64_t, 4> out = {};
    uint32_t constant = 0x8b51f9ddU;
    for (size_t i = 0; i < 8; ++i) {
      uint32_t word = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38dedU;
      word *= constant;
      word ^= word >> 16;
      out[i / 2] |= static_cast<uint64_t>(word) << (i % 2 * 32);
    }
    return out;
  }

 private:
  static uint32_t absorb(uint32_t value, uint32_t& constant) {
    value ^= constant;
    constant *= 0x931e8875U;
    value *= constant;
    return value ^ (value >> 16);
  }
  static uint32_t mix(uint32_t x, uint32_t y) {
    const uint32_t result = 0xca01f9ddU * x - 0x4973f715U * y;
    return result ^ (result >> 16);
  }

  std::array<uint32_t, 4> pool_ = {};
};

}  // namespace

Pcg64::Pcg64(uint64_t seed) {
  const std::array<uint64_t, 4> words = SeedPool(seed).words();
  const Wide initial = (static_cast<Wide>(words[0]) << 64) | words[1];
  const Wide stream = (static_cast<Wide>(words[2]) << 64) | words[3];
  increment_ = (stream << 1) | 1U;
  step();
  state_ += initial;
  step();
}

void Pcg64::step() {
  const Wide multiplier = (static_cast<Wide>(0x2360ED051FC65DA4ULL) << 64) | 0x4385DF649FCCF645ULL;
  state_ = state_ * multiplier + increment_;
}

uint64_t Pcg64::next() {
  step();
  const auto high = static_cast<uint64_t>(state_ >> 64);
  const auto low = static_cast<uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

uint64_t Pcg64::below(uint64_t bound) {
  CHECK(bound > uint64_t{1} << 32);
  const uint64_t reject_below = (0 - bound) % bound;
  Wide product = static_cast<Wide>(next()) * bound;
  while (static_cast<uint64_t>(product) < reject_below) {
    product = static_cast<Wide>(next()) * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

}  // namespace galley::model
