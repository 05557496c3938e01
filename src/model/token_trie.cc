#include "model/token_trie.h"

#include "base/check.h"

namespace galley::model {

void TokenTrie::add(std::string_view text, int32_t id) {
  CHECK(!text.empty());
  can_begin_[static_cast<uint8_t>(text.front())] = true;
  int32_t node = 0;
  for (const char byte : text) {
    const auto fresh = static_cast<int32_t>(ids_.size() + 1);
    const auto [entry, is_new] = next_.try_emplace(edge(node, static_cast<uint8_t>(byte)), fresh);
    if (is_new) ids_.push_back(-1);
    node = entry->second;
  }
  ids_[static_cast<size_t>(node - 1)] = id;
}

TokenTrie::Hit TokenTrie::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!can_begin_[static_cast<uint8_t>(text[begin])]) continue;
    Hit hit;
    int32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto entry = next_.find(edge(node, static_cast<uint8_t>(text[i])));
      if (entry == next_.end()) break;
      node = entry->second;
      const int32_t id = ids_[static_cast<size_t>(node - 1)];
      if (id >= 0) hit = {id, begin, i + 1 - begin};
    }
    if (hit.id >= 0) return hit;
  }
  return {-1, text.size(), 0};
}

}  // namespace galley::model
