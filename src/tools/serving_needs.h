// What `galley serve` takes beside the weights, and whether that fits.
//
// Arithmetic over the config and the settings; allocates nothing that is touched,
// so that it answers for machines and models that are not there. Buffers that
// grow with use are counted at their stated bounds.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "model/config.h"
#include "model/footprint.h"
#include "tools/loaded_model.h"

namespace galley::tools {

struct ServingNeeds {
  int32_t sequences = 0;
  int64_t context = 0;  // tokens of one sequence

  // Where the kernels compute: the host, or a card.
  int64_t page_bytes = 0;  // KV pages of all sequences
  int64_t slot_bytes = 0;  // windows and pending groups of running ones
  int64_t workspace_bytes = 0;

  // On the host always.
  int64_t snapshot_bytes = 0;    // --snapshot-memory in whole blocks
  int64_t connection_bytes = 0;  // buffers of --max-connections, each at its bound
  int64_t body_bytes = 0;        // bodies on their way, and the values of the one that is read
  int64_t file_bytes = 0;        // /v1/files and /v1/batches

  int64_t kernel_bytes() const { return page_bytes + slot_bytes + workspace_bytes; }
  int64_t host_bytes() const { return snapshot_bytes + connection_bytes + body_bytes + file_bytes; }
};

// kInvalid when the settings do not go together, as `serve` would say.
Result<ServingNeeds> serving_needs(const model::Config& config, const EngineSettings& settings,
                                   int32_t connections_max);

// The most sequences, of those in `needs`, whose pages and slots fit into `bytes` beside
// everything else of `needs` that is counted in `other_bytes`.
int32_t sequences_that_fit(const ServingNeeds& needs, int64_t bytes, int64_t other_bytes);

// Weights as they lie on a card: all of the text's, without Engram tables that are large.
int64_t card_weight_bytes(const model::Footprint& size);

}  // namespace galley::tools
