// A model ready to run on a CPU: the checkpoint, its weights bound per layer,
// and the Engram hash derived from its tokenizer.
//
// Immutable after open(); any number of steps may share it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/engram_hash.h"
#include "model/weights.h"

namespace galley::model {

class Model {
 public:
  // Opens the directory, builds the class map from its tokenizer.json and binds.
  static Result<std::unique_ptr<Model>> open(const std::string& directory);
  // With a class map [V] that is already known.
  static Result<std::unique_ptr<Model>> create(Checkpoint checkpoint,
                                               std::vector<int32_t> compressed_ids);

  const Config& config() const { return checkpoint_.config(); }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const ModelWeights& weights() const { return weights_; }
  // Without Engram layers: has no columns.
  const EngramHash& engram_hash() const { return engram_hash_; }

 private:
  Model(Checkpoint checkpoint, ModelWeights weights, EngramHash engram_hash);

  Checkpoint checkpoint_;
  ModelWeights weights_;
  EngramHash engram_hash_;
};

}  // namespace galley::model
