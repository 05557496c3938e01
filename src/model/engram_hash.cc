#include "model/engram_hash.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "model/pcg64.h"

namespace galley::model {
namespace {

// Longer n-grams than any release has; bounds the look-back kept on the stack.
constexpr int32_t kNgramSizeMax = 16;

// value % prime, for 0 <= value < 2^63, with inverse = 2^64 / prime: a device waits for the ids of
// a step's tokens, which divisions took 45 us of for 256 rows.
int64_t remainder(int64_t value, int64_t prime, uint64_t inverse) {
  const auto quotient = static_cast<int64_t>(
      static_cast<unsigned __int128>(static_cast<uint64_t>(value)) * inverse >> 64);
  const int64_t rest = value - quotient * prime;  // the quotient is one too small at most
  return rest < prime ? rest : rest - prime;
}

// Odd, and small enough that a product with any class id stays below 2^63 (6.3).
std::vector<int64_t> draw_multipliers(int32_t layer_id, int32_t count, int32_t classes) {
  const int64_t bound = std::max<int64_t>(1, std::numeric_limits<int64_t>::max() / classes / 2);
  Pcg64 random(uint64_t{10007} * static_cast<uint64_t>(layer_id));
  std::vector<int64_t> multipliers(static_cast<size_t>(count));
  for (int64_t& multiplier : multipliers) {
    multiplier = 2 * static_cast<int64_t>(random.below(static_cast<uint64_t>(bound))) + 1;
  }
  return multipliers;
}

}  // namespace

Result<EngramHash> EngramHash::create(const EngramHashShape& shape,
                                      std::vector<int32_t> class_of_token) {
  EngramHash hash;
  if (shape.layer_ids.empty()) return hash;
  if (shape.ngram_size_max < 2 || shape.ngram_size_max > kNgramSizeMax) {
    return Error{ErrorCode::kUnsupported, "Engram n-grams of " +
                                              std::to_string(shape.ngram_size_max) +
                                              " tokens; 2 to 16 are supported"};
  }
  // Fewer classes than 2^30 keep the bounded draw in its 64-bit form.
  if (shape.classes < 1 || shape.classes >= 1 << 30) {
    return Error{ErrorCode::kUnsupported,
                 "Engram with " + std::to_string(shape.classes) + " token classes"};
  }
  if (shape.pad_class < 0 || shape.pad_class >= shape.classes) {
    return Error{ErrorCode::kInvalid, "Engram's pad token has class " +
                                          std::to_string(shape.pad_class) + " of " +
                                          std::to_string(shape.classes)};
  }
  for (const int32_t id : class_of_token) {
    if (id < 0 || id >= shape.classes) {
      return Error{ErrorCode::kInvalid, "the token class map holds class " + std::to_string(id) +
                                            " of " + std::to_string(shape.classes)};
    }
  }
  hash.shape_ = shape;
  hash.class_of_token_ = std::move(class_of_token);
  hash.tables_ = engram_tables(shape.prime_search_start, hash.layer_count(), shape.ngram_size_max,
                               shape.heads);
  for (const EngramTable& table : hash.tables_) {
    std::vector<uint64_t>& inverses = hash.inverses_.emplace_back();
    for (const int64_t prime : table.primes) {
      inverses.push_back(static_cast<uint64_t>((static_cast<unsigned __int128>(1) << 64) /
                                               static_cast<uint64_t>(prime)));
    }
  }
  for (const int32_t layer_id : shape.layer_ids) {
    const std::vector<int64_t> drawn =
        draw_multipliers(layer_id, shape.ngram_size_max, shape.classes);
    hash.multipliers_.insert(hash.multipliers_.end(), drawn.begin(), drawn.end());
  }
  return hash;
}

int64_t EngramHash::table_rows(int32_t index) const {
  return tables_[static_cast<size_t>(index)].rows;
}

std::span<const int64_t> EngramHash::primes(int32_t index) const {
  return tables_[static_cast<size_t>(index)].primes;
}

std::span<const int64_t> EngramHash::offsets(int32_t index) const {
  return tables_[static_cast<size_t>(index)].offsets;
}

std::span<const int64_t> EngramHash::multipliers(int32_t index) const {
  const auto size = static_cast<size_t>(shape_.ngram_size_max);
  return std::span(multipliers_).subspan(static_cast<size_t>(index) * size, size);
}

void EngramHash::rows(int32_t index, const EngramTokens& tokens, int64_t begin, int64_t end,
                      kernels::Rows<int64_t> out) const {
  const auto look_back_count = static_cast<int64_t>(tokens.look_back.size());
  CHECK(begin >= -look_back_count && end <= static_cast<int64_t>(tokens.tokens.size()));
  const std::span<const int64_t> multiplier = multipliers(index);
  const int64_t* prime = primes(index).data();
  const int64_t* offset = offsets(index).data();
  const uint64_t* inverse = inverses_[static_cast<size_t>(index)].data();

  std::array<int64_t, kNgramSizeMax> term = {};  // tau_i mu_i
  for (int64_t position = begin; position < end; ++position) {
    bool blocked = false;
    for (int32_t i = 0; i < shape_.ngram_size_max; ++i) {
      const int64_t at = position - i;
      blocked = blocked || at < -look_back_count;
      int32_t id = 0;
      if (!blocked && at >= 0) {
        blocked = !tokens.dead.empty() && tokens.dead[static_cast<size_t>(at)] != 0;
        id = tokens.tokens[static_cast<size_t>(at)];
      } else if (!blocked) {
        const auto back = static_cast<size_t>(at + look_back_count);
        blocked = !tokens.look_back_dead.empty() && tokens.look_back_dead[back] != 0;
        id = tokens.look_back[back];
      }
      const int32_t tau = blocked ? shape_.pad_class : class_of_token_[static_cast<size_t>(id)];
      term[static_cast<size_t>(i)] = tau * multiplier[static_cast<size_t>(i)];
    }
    int64_t* row = out.row(position - begin);
    int64_t mixed = term[0];
    int32_t column = 0;
    for (int32_t size = 2; size <= shape_.ngram_size_max; ++size) {
      mixed ^= term[static_cast<size_t>(size - 1)];
      for (int32_t head = 0; head < shape_.heads; ++head, ++column) {
        row[column] = remainder(mixed, prime[column], inverse[column]) + offset[column];
      }
    }
  }
}

}  // namespace galley::model
