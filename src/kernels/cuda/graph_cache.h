// Graphs of command lists that came twice: a decode step is then one launch.
//
// A list is captured the second time its key comes, so that the steps of prompts,
// each with a shape of its own, cost nothing here. The least recently used graph
// goes when there are too many. Owned by one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/command_list.h"
#include "kernels/cuda/device.h"

namespace galley::kernels::cuda {

class GraphCache {
 public:
  explicit GraphCache(int32_t graphs_max) : graphs_max_(graphs_max) {}
  ~GraphCache() { clear(); }
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Gives the list to the stream: as a graph if it came before, else command by command.
  Result<void> run(const CommandList& list, Stream stream);

  // Whether run() of a list with this key launches nothing that was never launched before.
  bool knows(const CommandKey& key) const {
    return std::ranges::find(entries_, key, &Entry::key) != entries_.end();
  }

  // When memory that commands name goes away.
  void clear();

  int64_t replay_count() const { return replays_; }

 private:
  struct Entry {
    CommandKey key;
    CUgraphExec_st* graph = nullptr;  // null: came once
    int64_t used = 0;
  };
  Result<void> capture(const CommandList& list, Stream stream, Entry& entry);

  int32_t graphs_max_;
  std::vector<Entry> entries_;
  int64_t clock_ = 0;
  int64_t replays_ = 0;
};

}  // namespace galley::kernels::cuda
