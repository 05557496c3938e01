#include "model/bpe.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <queue>
#include <utility>

namespace galley::model {
namespace {

// Below this a plain scan for the best pair beats a heap.
constexpr size_t kShortPiece = 48;

uint64_t mix(uint64_t value) {  // SplitMix64's finaliser
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

}  // namespace

size_t Bpe::slot(uint64_t pair) const {
  const size_t mask = table_.size() - 1;
  size_t place = mix(pair) & mask;
  while (table_[place].pair != pair && table_[place].pair != kNoPair) place = (place + 1) & mask;
  return place;
}

void Bpe::grow() {
  std::vector<Merge> old(std::max<size_t>(64, 2 * table_.size()));
  std::swap(old, table_);
  for (const Merge& merge : old) {
    if (merge.pair != kNoPair) table_[slot(merge.pair)] = merge;
  }
}

void Bpe::reserve(size_t merge_count) {
  while (table_.size() < 2 * merge_count) grow();
}

bool Bpe::add_merge(int32_t left, int32_t right, int32_t merged) {
  if (table_.size() < 2 * (merge_count_ + 1)) grow();
  Merge& merge = table_[slot(pair_of(left, right))];
  if (merge.pair != kNoPair) return false;
  merge = {pair_of(left, right), static_cast<int32_t>(merge_count_), merged};
  ++merge_count_;
  return true;
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  if (table_.empty()) return nullptr;
  const Merge& merge = table_[slot(pair_of(left, right))];
  return merge.pair == kNoPair ? nullptr : &merge;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() <= kShortPiece) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShortPiece> symbols;
  std::array<const Merge*, kShortPiece> merges;  // of symbol i with its right neighbour
  size_t count = piece.size();
  if (count == 0) return;
  for (size_t i = 0; i < count; ++i) symbols[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = find(symbols[i], symbols[i + 1]);
  merges[count - 1] = nullptr;
  while (count > 1) {
    size_t best = count;
    int32_t best_rank = std::numeric_limits<int32_t>::max();
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i] != nullptr && merges[i]->rank < best_rank) {
        best = i;
        best_rank = merges[i]->rank;
      }
    }
    if (best == count) break;
    symbols[best] = merges[best]->merged;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    --count;
    if (best > 0) merges[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(count));
}

void Bpe::encode_long(std::string_view piece, std::vector<int32_t>& ids) const {
  // A doubly linked list of symbols; a merged-away symbol has id -1.
  struct Symbol {
    int32_t id;
    int32_t before;
    int32_t after;
  };
  struct Candidate {
    int32_t rank;
    int32_t left;  // index of its left symbol
    int32_t left_id;
    int32_t right_id;  // what it was computed for: stale when the symbols changed since
    bool operator<(const Candidate& other) const {  // std::priority_queue keeps the largest
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  const auto count = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)] = {
        byte_ids_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])], i - 1,
        i + 1 < count ? i + 1 : -1};
  }
  std::vector<Candidate> storage;
  storage.reserve(piece.size());
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(storage));
  const auto push = [&](int32_t left) {
    if (left < 0 || symbols[static_cast<size_t>(left)].after < 0) return;
    const int32_t left_id = symbols[static_cast<size_t>(left)].id;
    const int32_t right_id =
        symbols[static_cast<size_t>(symbols[static_cast<size_t>(left)].after)].id;
    const Merge* merge = find(left_id, right_id);
    if (merge != nullptr) queue.push({merge->rank, left, left_id, right_id});
  };
  for (int32_t i = 0; i < count; ++i) push(i);
  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(candidate.left)];
    if (left.id != candidate.left_id || left.after < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.after)];
    if (right.id != candidate.right_id) continue;
    left.id = find(left.id, right.id)->merged;
    right.id = -1;
    left.after = right.after;
    if (left.after >= 0) symbols[static_cast<size_t>(left.after)].before = candidate.left;
    push(left.before);
    push(candidate.left);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].after) {
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace galley::model
