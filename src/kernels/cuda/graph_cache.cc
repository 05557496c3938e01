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
    const bool may_take_over = knows(list);
    if (std::ssize(entries_) == graphs_max_) {
      const auto oldest = std::ranges::min_element(entries_, {}, &Entry::used);
      if (oldest->graph != nullptr) cudaGraphExecDestroy(oldest->graph);
      entries_.erase(oldest);
    }
    entries_.push_back({.key = list.key(), .form = list.form(), .used = clock_});
    if (!may_take_over) {
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

GraphCache::Entry* GraphCache::oldest_free(const CommandList& list, const CommandKey& launches) {
  Entry* oldest = nullptr;
  for (Entry& one : entries_) {
    if (!is_free(one, list) || one.launches != launches) continue;
    if (oldest == nullptr || one.used < oldest->used) oldest = &one;
  }
  return oldest;
}

CommandKey GraphCache::launches_of(CUgraph_st* graph) {
  size_t count = 0;
  cudaGraphGetNodes(graph, nullptr, &count);
  nodes_.resize(count);
  cudaGraphGetNodes(graph, nodes_.data(), &count);
  CommandKey launches;
  for (CUgraphNode_st* node : nodes_) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    cudaGraphNodeGetType(node, &type);
    launches.add_value(type);
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaKernelNodeParams kernel = {};
    cudaGraphKernelNodeGetParams(node, &kernel);
    cudaLaunchAttributeValue cluster = {};
    cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributeClusterDimension, &cluster);
    launches.add_all(kernel.func, cluster.clusterDim.x, cluster.clusterDim.y, cluster.clusterDim.z);
  }
  return launches;
}

Result<void> GraphCache::capture(const CommandList& list, Stream stream, Entry& entry) {
  TRY(check_launch("launching what came before a graph"));
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  list.run(stream);
  cudaStreamEndCapture(stream, &graph);
  TRY(check_launch("capturing a step"));
  entry.launches = launches_of(graph);
  TRY(check_launch("reading the launches of a step"));
  if (Entry* other = oldest_free(list, entry.launches)) {
    entry.graph = std::exchange(other->graph, nullptr);
    ++takeovers_;
    cudaGraphExecUpdateResultInfo result = {};
    if (cudaGraphExecUpdate(entry.graph, graph, &result) != cudaSuccess) {
      cudaGetLastError();  // the launches wait for each other in another order
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
