// Random numbers as a function of (key, counter): no state, any order.
//
// A request's draws depend on its seed and the position drawn for, never on who
// else shares the step. Source: Philox4x32-10, Salmon et al. 2011 ("Parallel
// random numbers: as easy as 1, 2, 3").
#pragma once

#include <array>
#include <cstdint>

namespace galley {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits: draw number `index` of stream `stream` under `seed`.
constexpr double random_unit(uint64_t seed, uint64_t index, uint64_t stream = 0) {
  const PhiloxBlock block =
      philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
              static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{block[0]} << 32) | block[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace galley
