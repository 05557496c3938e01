#include "model/footprint.h"

#include <algorithm>

#include "kernels/tensor.h"

namespace galley::model {
namespace {

void count_tensors(const Config& config, Footprint& size) {
  std::array<DTypeSize, 16> dtypes = {};
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    const DType dtype = released_dtype(tensor.storage);
    const int64_t elements = tensor.shape.elements();
    const int64_t bytes = elements * dtype_bytes(dtype);
    PartSize& part = size.parts[static_cast<size_t>(tensor.part)];
    part.bytes += bytes;
    if (tensor.storage == Storage::kPackedFp4) part.parameters += 2 * elements;
    if (tensor.storage != Storage::kPackedFp4 && tensor.storage != Storage::kScale) {
      part.parameters += elements;
    }
    DTypeSize& kind = dtypes[static_cast<size_t>(dtype)];
    kind.dtype = dtype;
    kind.tensors += 1;
    kind.bytes += bytes;
    size.tensors += 1;
  }
  for (const DTypeSize& kind : dtypes) {
    if (kind.tensors > 0) size.dtypes.push_back(kind);
  }
  for (const PartSize& part : size.parts) {
    size.parameters += part.parameters;
    size.bytes += part.bytes;
  }
}

void count_cache(const Config& config, Footprint& size) {
  const int64_t entry = kernels::global_record_bytes(config.head_dim) +
                        kernels::index_record_bytes(config.index_head_dim);
  for (const int32_t layer : config.kv_sources) {
    const int64_t ratio = config.roles[static_cast<size_t>(layer)].ratio;
    // Rounded up, so that a sum of odd shares is never too small.
    size.kv_bytes_per_token += (entry + ratio - 1) / ratio;
    // A pending group keeps (a, b) in f32 for all members but the last.
    size.kv_bytes_per_sequence += (ratio - 1) * 2 * config.head_dim * 4;
  }
  size.kv_bytes_per_sequence +=
      int64_t{config.layers} * config.window * kernels::window_record_bytes(config.head_dim);
}

}  // namespace

Footprint footprint(const Config& config) {
  Footprint size;
  count_tensors(config, size);
  count_cache(config, size);
  size.expert_bytes = size.part(Part::kRoutedExperts).bytes;
  size.table_bytes = size.part(Part::kEngramTables).bytes;
  size.draft_bytes = size.part(Part::kDspark).bytes;
  size.vision_bytes = size.part(Part::kVision).bytes;
  size.always_bytes =
      size.bytes - size.expert_bytes - size.table_bytes - size.draft_bytes - size.vision_bytes;
  int64_t active = 0;
  for (const Part part :
       {Part::kHead, Part::kNorms, Part::kAttention, Part::kIndexer, Part::kRouter,
        Part::kSharedExperts, Part::kHyperConnections, Part::kEngramProjections}) {
    active += size.part(part).parameters;
  }
  active +=
      size.part(Part::kRoutedExperts).parameters / config.routed_experts * config.experts_per_token;
  size.active_parameters = active;
  return size;
}

Fit fit(const Config& config, const Footprint& size, int64_t memory_bytes) {
  const auto context = [&](int64_t weight_bytes) -> int64_t {
    const int64_t left = memory_bytes - weight_bytes - size.kv_bytes_per_sequence;
    if (left < 0) return 0;
    if (size.kv_bytes_per_token == 0) return config.positions_max;
    return std::min(config.positions_max, left / size.kv_bytes_per_token);
  };
  Fit result;
  result.context_paged = context(size.always_bytes);
  result.context_resident = context(size.always_bytes + size.expert_bytes);
  result.always = result.context_paged > 0;
  result.weights = result.context_resident > 0;
  result.tables = context(size.always_bytes + size.expert_bytes + size.table_bytes) > 0;
  return result;
}

}  // namespace galley::model
