// Which table rows a position reads: primes, offsets, multipliers and the
// n-gram hash (spec/model.md 6.2-6.4).
//
// A function of token ids alone, so rows are known before a forward starts.
// Refuses to know the tokenizer (it gets the class map) and the tables.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/tensor.h"
#include "model/engram_primes.h"

namespace galley::model {

struct EngramHashShape {
  std::vector<int32_t> layer_ids;
  int32_t ngram_size_max = 4;
  int32_t heads = 8;
  int64_t prime_search_start = 0;
  int32_t classes = 0;
  int32_t pad_class = 0;  // class of the pad token
};

// Ids as a plan holds them. Both `dead` spans are empty or run along with their ids.
struct EngramTokens {
  std::span<const int32_t> tokens = {};
  std::span<const uint8_t> dead = {};
  std::span<const int32_t> look_back = {};
  std::span<const uint8_t> look_back_dead = {};
};

class EngramHash {
 public:
  EngramHash() = default;  // no Engram layers
  // class_of_token [V]: spec 6.1's map; every entry in [0, classes).
  static Result<EngramHash> create(const EngramHashShape& shape,
                                   std::vector<int32_t> class_of_token);

  int32_t layer_count() const { return static_cast<int32_t>(shape_.layer_ids.size()); }
  int32_t columns() const { return (shape_.ngram_size_max - 1) * shape_.heads; }
  int32_t look_back() const { return layer_count() == 0 ? 0 : shape_.ngram_size_max - 1; }
  int64_t table_rows(int32_t index) const;  // sum of a layer's primes

  std::span<const int64_t> primes(int32_t index) const;       // [columns]
  std::span<const int64_t> offsets(int32_t index) const;      // [columns]
  std::span<const int64_t> multipliers(int32_t index) const;  // [ngram_size_max]
  std::span<const int32_t> class_of_token() const { return class_of_token_; }

  // Table rows [end - begin, columns] of Engram layer number `index` for the positions
  // tokens[begin] .. tokens[end - 1]; negative numbers are look-back positions. `look_back`
  // are the ids before tokens[0], oldest first; what lies before them is padding. A dead
  // position (in an image span; empty spans = none) blocks everything at and before it.
  void rows(int32_t index, const EngramTokens& tokens, int64_t begin, int64_t end,
            kernels::Rows<int64_t> out) const;

 private:
  EngramHashShape shape_;
  std::vector<int32_t> class_of_token_;
  std::vector<EngramTable> tables_;              // [layers]
  std::vector<std::vector<uint64_t>> inverses_;  // [layers][columns], 2^64 / prime
  std::vector<int64_t> multipliers_;             // [layers, ngram_size_max]
};

}  // namespace galley::model
