// Model::open: the only part of a model that needs its tokenizer.
#include <utility>

#include "model/compressed_ids.h"
#include "model/model.h"
#include "model/tokenizer.h"

namespace galley::model {

Result<std::unique_ptr<Model>> Model::open(const std::string& directory) {
  Checkpoint checkpoint = TRY(Checkpoint::open(directory));
  const Config& config = checkpoint.config();
  if (config.engram.layer_ids.empty()) return create(std::move(checkpoint), {});
  const Tokenizer tokenizer = TRY(Tokenizer::open(directory));
  CompressedIds ids =
      TRY(compressed_ids(tokenizer, config.vocab_size, config.engram.compressed_vocab_size));
  return create(std::move(checkpoint), std::move(ids.class_of));
}

}  // namespace galley::model
