#include "kernels/cuda/graph_cache.h"

#include <cuda_runtime_api.h>

#include <algorithm>

namespace galley::kernels::cuda {

Result<void> GraphCache::run(const CommandList& list, Stream stream) {
  const auto found = std::ranges::find(entries_, list.key(), &Entry::key);
  if (found == entries_.end()) {
    if (std::ssize(entries_) == graphs_max_) {
      const auto oldest = std::ranges::min_element(entries_, {}, &Entry::used);
      if (oldest->graph != nullptr) cudaGraphExecDestroy(oldest->graph);
      entries_.erase(oldest);
    }
    entries_.push_back({.key = list.key(), .used = ++clock_});
    list.run(stream);
    return {};
  }
  found->used = ++clock_;
  if (found->graph == nullptr) TRY(capture(list, stream, *found));
  cudaGraphLaunch(found->graph, stream);
  ++replays_;
  return {};
}

Result<void> GraphCache::capture(const CommandList& list, Stream stream, Entry& entry) {
  TRY(check_launch("launching what came before a graph"));
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  list.run(stream);
  cudaStreamEndCapture(stream, &graph);
  TRY(check_launch("capturing a step"));
  cudaGraphInstantiate(&entry.graph, graph, 0);
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
