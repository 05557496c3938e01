#include "kernels/cuda/graph_cache.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace galley::kernels::cuda {

Result<void> GraphCache::run(const CommandList& list, Stream stream) {
  ++clock_;
  auto found = std::ranges::find(entries_, list.key(), &Entry::key);
  if (found == entries_.end()) {
    const bool takes_over = oldest_free(list) != nullptr;
    if (std::ssize(entries_) == graphs_max_) {
      const auto oldest = std::ranges::min_element(entries_, {}, &Entry::used);
      if (oldest->graph != nullptr) cudaGraphExecDestroy(oldest->graph);
      entries_.erase(oldest);
    }
    entries_.push_back({.key = list.key(), .form = list.form(), .used = clock_});
    if (!takes_over) {
      list.run(stream);
      return {};
    }
    found = std::prev(entries_.end());
  }
  found->used = clock_;
  if (found->graph == nullptr) TRY(capture(list, stream, *found));
  cudaGraphLaunch(found->graph, stream);
  ++replays_;
  return {};
}

GraphCache::Entry* GraphCache::oldest_free(const CommandList& list) {
  Entry* oldest = nullptr;
  for (Entry& one : entries_) {
    if (is_free(one, list) && (oldest == nullptr || one.used < oldest->used)) oldest = &one;
  }
  return oldest;
}

Result<void> GraphCache::capture(const CommandList& list, Stream stream, Entry& entry) {
  TRY(check_launch("launching what came before a graph"));
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  list.run(stream);
  cudaStreamEndCapture(stream, &graph);
  TRY(check_launch("capturing a step"));
  if (Entry* other = oldest_free(list)) {
    entry.graph = std::exchange(other->graph, nullptr);
    cudaGraphExecUpdateResultInfo result = {};
    if (cudaGraphExecUpdate(entry.graph, graph, &result) != cudaSuccess) {
      cudaGetLastError();  // the same calls, but not the same launches
      cudaGraphExecDestroy(std::exchange(entry.graph, nullptr));
    }
  }
  if (entry.graph == nullptr) cudaGraphInstantiate(&entry.graph, graph, 0);
  cudaGraphDestroy(graph);
  return check_launch("making a graph of a step");
}

void GraphCache::clear() {
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
}

}  // namespace galley::kernels::cuda
