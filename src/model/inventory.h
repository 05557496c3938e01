// Every tensor that a config implies: name, shape, accepted types, and which
// part of the model it belongs to (spec/model.md 2, spec/dspark.md 2,
// spec/vision.md 4). Pure; the checkpoint is measured against it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"

namespace galley::model {

enum class Part : uint8_t {
  kEmbedding,
  kHead,
  kNorms,
  kAttention,
  kIndexer,  // compressors, index keys and index queries
  kRouter,
  kSharedExperts,
  kRoutedExperts,
  kHyperConnections,
  kEngramTables,
  kEngramProjections,
  kDspark,
  kVision,
};
constexpr int32_t kPartCount = 13;
std::string_view part_name(Part part);

// How a tensor is stored, and what else is accepted.
enum class Storage : uint8_t {
  kBf16,
  kF32,
  kBf16OrF32,  // norms, Engram gates and what else releases differ in (spec/model.md 10)
  kFp8,        // F8_E4M3 values
  kPackedFp4,  // I8, two E2M1 codes a byte
  kScale,      // F8_E8M0
};
bool accepts(Storage storage, DType dtype);
// As the release stores each kind; a checkpoint may widen a few small ones.
DType released_dtype(Storage storage);
std::string_view storage_name(Storage storage);  // "F8_E4M3", "BF16 or F32"

struct ExpectedTensor {
  std::string name;
  Shape shape;
  Storage storage = Storage::kBf16;
  Part part = Part::kNorms;
};

std::vector<ExpectedTensor> expected_tensors(const Config& config);

}  // namespace galley::model
