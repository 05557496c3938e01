#include "model/sparse_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "model/config.h"
#include "model/inventory.h"

namespace galley::model {
namespace {

std::string shard_name(int32_t number, int32_t count) {
  const auto digits = [](int32_t value) {
    std::string text = std::to_string(value);
    return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
  };
  return "model-" + digits(number) + "-of-" + digits(count) + ".safetensors";
}

Result<void> write_holes(const std::string& path, const std::string& head, int64_t data_bytes) {
  TRY(write_file_atomic(path, head));
  const int64_t size = static_cast<int64_t>(head.size()) + data_bytes;
  if (::truncate(path.c_str(), size) != 0) {
    return Error{ErrorCode::kIo, "cannot extend " + path + " to " + std::to_string(size) +
                                     " bytes: " + std::strerror(errno)};
  }
  return {};
}

}  // namespace

std::string safetensors_header(const std::vector<PlannedTensor>& tensors) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  int64_t offset = 0;
  for (const PlannedTensor& tensor : tensors) {
    json += ",\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
            "\",\"shape\":" + tensor.shape.text() + ",\"data_offsets\":[" + std::to_string(offset) +
            "," + std::to_string(offset + tensor.size_bytes) + "]}";
    offset += tensor.size_bytes;
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');
  const uint64_t length = json.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &length, 8);  // little-endian, as this machine
  return header + json;
}

Result<CheckpointPlan> CheckpointPlan::of_config(std::string config_json, int32_t shard_count) {
  const Config config = TRY(parse_config(config_json));
  const std::vector<ExpectedTensor> expected = expected_tensors(config);
  // As in the release, each Engram layer has a shard of its own at the end, if there are enough.
  const auto engram_layers = static_cast<int32_t>(config.engram.layer_ids.size());
  const bool apart = engram_layers > 0 && shard_count > engram_layers;
  const int32_t shared_count = apart ? shard_count - engram_layers : shard_count;
  const auto is_apart = [&](const ExpectedTensor& tensor) {
    return apart && (tensor.part == Part::kEngramTables || tensor.part == Part::kEngramProjections);
  };
  const auto size_of = [](const ExpectedTensor& tensor) {
    return tensor.shape.elements() * dtype_bytes(released_dtype(tensor.storage));
  };
  int64_t shared_bytes = 0;
  for (const ExpectedTensor& tensor : expected) {
    if (!is_apart(tensor)) shared_bytes += size_of(tensor);
  }
  CheckpointPlan plan;
  plan.config_json = std::move(config_json);
  int64_t placed_bytes = 0;
  for (const ExpectedTensor& tensor : expected) {
    const int64_t bytes = size_of(tensor);
    auto shard = static_cast<int32_t>(placed_bytes / (shared_bytes / shared_count + 1));
    if (is_apart(tensor)) {
      const auto id = std::find_if(
          config.engram.layer_ids.begin(), config.engram.layer_ids.end(), [&](int32_t layer) {
            return tensor.name.starts_with("layers." + std::to_string(layer) + ".");
          });
      shard = shared_count + static_cast<int32_t>(id - config.engram.layer_ids.begin());
    } else {
      placed_bytes += bytes;
    }
    plan.shards[shard_name(shard + 1, shard_count)].push_back(
        {tensor.name, std::string(dtype_name(released_dtype(tensor.storage))), tensor.shape,
         bytes});
  }
  for (auto& [name, tensors] : plan.shards) {
    // Wide elements first, so that every tensor is aligned to its own.
    std::stable_sort(
        tensors.begin(), tensors.end(), [](const PlannedTensor& a, const PlannedTensor& b) {
          return dtype_bytes(*dtype_from_name(a.dtype)) > dtype_bytes(*dtype_from_name(b.dtype));
        });
  }
  plan.rebuild_index();
  return plan;
}

PlannedTensor* CheckpointPlan::find(std::string_view name) {
  for (auto& [file, tensors] : shards) {
    for (PlannedTensor& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
  }
  return nullptr;
}

void CheckpointPlan::erase(std::string_view name) {
  for (auto& [file, tensors] : shards) {
    std::erase_if(tensors, [&](const PlannedTensor& tensor) { return tensor.name == name; });
  }
}

void CheckpointPlan::rebuild_index() {
  int64_t total_bytes = 0;
  std::string map;
  for (const auto& [file, tensors] : shards) {
    for (const PlannedTensor& tensor : tensors) {
      total_bytes += tensor.size_bytes;
      if (!map.empty()) map += ",\n";
      map += "\"" + tensor.name + "\": \"" + file + "\"";
    }
  }
  index_json = "{\"metadata\": {\"total_size\": " + std::to_string(total_bytes) +
               "}, \"weight_map\": {\n" + map + "\n}}\n";
}

Result<void> CheckpointPlan::write(const std::string& directory) const {
  TRY(write_file_atomic(directory + "/config.json", config_json));
  for (const auto& [file, tensors] : shards) {
    int64_t data_bytes = 0;
    for (const PlannedTensor& tensor : tensors) data_bytes += tensor.size_bytes;
    TRY(write_holes(directory + "/" + file, safetensors_header(tensors), data_bytes));
  }
  if (!index_json.empty()) {
    TRY(write_file_atomic(directory + "/model.safetensors.index.json", index_json));
  }
  return {};
}

}  // namespace galley::model
