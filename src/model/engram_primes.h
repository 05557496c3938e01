// Table sizes of the Engram hash: one prime per layer, n-gram size and head
// (spec/model.md 6.2). Pure arithmetic over four numbers of the config.
#pragma once

#include <cstdint>
#include <vector>

namespace galley::model {

struct EngramTable {
  std::vector<int64_t> primes;   // [(sizes 2..max) x heads], head fastest
  std::vector<int64_t> offsets;  // first row of each column
  int64_t rows = 0;              // their sum
};

// One table per Engram layer. Every search of a (layer, size) starts at
// `search_start` again; no prime is used twice anywhere.
std::vector<EngramTable> engram_tables(int64_t search_start, int32_t layer_count,
                                       int32_t ngram_size_max, int32_t heads);

}  // namespace galley::model
