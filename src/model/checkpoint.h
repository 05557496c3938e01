// A model directory, opened and proven complete: config.json and the tensors
// it implies, mapped and read in place.
//
// open() succeeds only when every tensor the config implies is there once with
// the right shape and an accepted dtype, and nothing else is. Everything after
// that may take names for granted. Immutable and free of locks: any thread may
// read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "kernels/tensor.h"
#include "model/config.h"
#include "model/safetensors.h"

namespace galley::model {

class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::string& directory);

  // Everything wrong with a directory, at most `count_max` lines; empty when it opens.
  static std::vector<Error> problems(const std::string& directory, size_t count_max);

  // Tensors in memory that outlives the checkpoint, named and shaped as the config implies:
  // weights made up by benchmarks and tests. Nothing is proven here.
  static Checkpoint of_memory(Config config, NameMap<TensorView> tensors);

  const std::string& directory() const { return directory_; }
  const Config& config() const { return config_; }

  // Null when there is no such tensor.
  const TensorView* find(std::string_view name) const;
  // A tensor that the inventory promises; any other name is a bug.
  const TensorView& tensor(std::string_view name) const;
  // The matrix STEM.weight with STEM.scale where it is quantised, as stored:
  // fp8 tiles, packed fp4 rows, bf16 or f32 (the dtype of the file decides).
  // "layers.0.attn.wq_a", "layers.3.ffn.experts.7.w2", "head". Not for
  // "engram.embed", whose scales lie one per row and not per tile.
  kernels::WeightView weight(std::string_view stem) const;

  const NameMap<TensorView>& tensors() const { return tensors_; }
  size_t shard_count() const { return shards_.size(); }

 private:
  friend class CheckpointReader;
  Checkpoint() = default;

  std::string directory_;
  Config config_;
  std::vector<MappedFile> shards_;
  NameMap<TensorView> tensors_;
};

}  // namespace galley::model
