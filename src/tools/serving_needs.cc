#include "tools/serving_needs.h"

#include <algorithm>

#include "model/kv_layout.h"
#include "model/placed_weights.h"
#include "model/step_workspace.h"
#include "net/server.h"
#include "serve/api_request_fields.h"
#include "server/batch_desk.h"

namespace galley::tools {
namespace {

// Buffers are reserved and given back untouched.
Result<int64_t> workspace_bytes(const model::Config& config, const model::KvLayout& layout,
                                const model::StepOptions& step) {
  model::BufferSource source(kernels::host_memory());
  const model::StepWorkspace workspace(config, layout, step, source, source);
  TRY(source.status());
  return workspace.bytes();
}

}  // namespace

Result<ServingNeeds> serving_needs(const model::Config& config, const EngineSettings& settings,
                                   int32_t connections_max) {
  const engine::GeneratorOptions options = TRY(engine_options(config, settings));
  const model::KvOptions kv = engine::kv_options(config, options);
  const model::KvLayout layout = TRY(model::KvLayout::create(config, kv));
  ServingNeeds needs;
  needs.sequences = options.sequences_max;
  needs.context = options.positions_max;
  needs.page_bytes = options.page_count * layout.page_stride;
  needs.slot_bytes = options.sequences_max * layout.slot_bytes;
  needs.workspace_bytes = TRY(workspace_bytes(config, layout, engine::step_options(kv, options)));
  needs.snapshot_bytes = options.snapshot_blocks * options.block_bytes;
  const net::ServerOptions server;
  const size_t one_connection =
      server.stream_bytes_max + server.pipelined_bytes_max + server.parser.head_bytes_max;
  needs.connection_bytes = connections_max * static_cast<int64_t>(one_connection);
  needs.body_bytes = static_cast<int64_t>(server.bodies_bytes_max + serve::kBodyTreeBytesMax);
  needs.file_bytes = static_cast<int64_t>(server::BatchLimits().bytes_max);
  return needs;
}

int32_t sequences_that_fit(const ServingNeeds& needs, int64_t bytes, int64_t other_bytes) {
  const int64_t one = (needs.page_bytes + needs.slot_bytes) / std::max(1, needs.sequences);
  const int64_t left = bytes - other_bytes;
  if (left < 0) return 0;
  if (one == 0) return needs.sequences;
  return static_cast<int32_t>(std::min<int64_t>(needs.sequences, left / one));
}

int64_t card_weight_bytes(const model::Footprint& size) {
  const bool tables = size.table_bytes <= model::kPlacedTableBytesMax;
  return size.always_bytes + size.expert_bytes + (tables ? size.table_bytes : 0);
}

}  // namespace galley::tools
