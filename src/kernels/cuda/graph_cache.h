// Graphs of command lists that came twice: a decode step is then one launch.
//
// A list is captured the second time its key comes, so that the steps of prompts,
// each with a shape of its own, cost nothing here. A list of the same calls as an
// earlier one, but with other arguments, takes over the graph of one that has not
// come for a while: steps of many sequences have a new key whenever one of them
// ends. For 175 launches that is 0.45 ms of the host, 0.1 of it the update, where
// launches one by one take 0.6 and another graph up to 0.9 more (one H200's host).
// Only where every launch is of the same kernel in clusters of the same size: an
// update leaves a launch its old cluster size without an error (CUDA 13), and the
// blocks then read memory of others that are not there.
// The least recently used graph goes when there are too many. Owned by one thread.
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

  // Whether run() of the list makes whatever it needs before it launches anything: a graph of calls
  // that came before.
  bool knows(const CommandList& list) const {
    return std::ranges::find(entries_, list.key(), &Entry::key) != entries_.end() ||
           std::ranges::any_of(entries_, [&](const Entry& one) { return is_free(one, list); });
  }

  // When memory that commands name goes away.
  void clear();

  int64_t replay_count() const { return replays_; }
  int64_t takeover_count() const { return takeovers_; }

 private:
  struct Entry {
    CommandKey key;
    CommandKey form;
    CommandKey launches = {};         // of the graph
    CUgraphExec_st* graph = nullptr;  // null: came once
    int64_t used = 0;
  };
  // Runs that a graph is left alone for: lists of two arenas come in turns.
  static constexpr int64_t kLeftAlone = 3;

  bool is_free(const Entry& entry, const CommandList& list) const {
    return entry.graph != nullptr && entry.form == list.form() && clock_ - entry.used >= kLeftAlone;
  }
  Entry* oldest_free(const CommandList& list, const CommandKey& launches);
  CommandKey launches_of(CUgraph_st* graph);
  Result<void> capture(const CommandList& list, Stream stream, Entry& entry);

  int32_t graphs_max_;
  std::vector<Entry> entries_;
  std::vector<CUgraphNode_st*> nodes_;  // of the graph being looked at
  int64_t clock_ = 0;
  int64_t takeovers_ = 0;
  int64_t replays_ = 0;
};

}  // namespace galley::kernels::cuda
