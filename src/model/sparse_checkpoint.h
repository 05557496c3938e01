// Writes checkpoints whose tensors are holes in their files: a model of any
// size takes almost no disk. For tests and for trying a machine's limits.
//
// A plan may be changed before it is written, also into something wrong:
// nothing here checks that names, types and sizes agree.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/safetensors.h"

namespace galley::model {

struct PlannedTensor {
  std::string name;
  std::string dtype;
  Shape shape;
  int64_t size_bytes = 0;
};

// `tensors` laid out one after the other, padded so that data begins at a multiple of 8.
std::string safetensors_header(const std::vector<PlannedTensor>& tensors);

struct CheckpointPlan {
  std::string config_json;
  std::map<std::string, std::vector<PlannedTensor>> shards;  // by file name
  std::string index_json;                                    // empty = no index

  // Every tensor that the config implies, over `shard_count` shards of similar size.
  static Result<CheckpointPlan> of_config(std::string config_json, int32_t shard_count);

  PlannedTensor* find(std::string_view name);
  void erase(std::string_view name);
  void rebuild_index();

  // Into an existing directory.
  Result<void> write(const std::string& directory) const;
};

}  // namespace galley::model
