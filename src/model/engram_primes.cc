#include "model/engram_primes.h"

#include <cstddef>
#include <unordered_set>

namespace galley::model {
namespace {

bool is_prime(int64_t n) {
  if (n < 2) return false;
  if (n % 2 == 0) return n == 2;
  for (int64_t divisor = 3; divisor * divisor <= n; divisor += 2) {
    if (n % divisor == 0) return false;
  }
  return true;
}

}  // namespace

std::vector<EngramTable> engram_tables(int64_t search_start, int32_t layer_count,
                                       int32_t ngram_size_max, int32_t heads) {
  std::unordered_set<int64_t> used;
  std::vector<EngramTable> tables(static_cast<size_t>(layer_count));
  for (EngramTable& table : tables) {
    for (int32_t size = 2; size <= ngram_size_max; ++size) {
      int64_t candidate = search_start - 1;
      for (int32_t head = 0; head < heads; ++head) {
        do {
          ++candidate;
        } while (used.contains(candidate) || !is_prime(candidate));
        used.insert(candidate);
        table.primes.push_back(candidate);
        table.offsets.push_back(table.rows);
        table.rows += candidate;
      }
    }
  }
  return tables;
}

}  // namespace galley::model
