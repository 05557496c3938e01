#include "model/model.h"

#include <utility>

#include "model/compressed_ids.h"
#include "model/tokenizer.h"

namespace galley::model {

Model::Model(Checkpoint checkpoint, ModelWeights weights, EngramHash engram_hash)
    : checkpoint_(std::move(checkpoint)),
      weights_(std::move(weights)),
      engram_hash_(std::move(engram_hash)) {}

Result<std::unique_ptr<Model>> Model::open(const std::string& directory) {
  Checkpoint checkpoint = TRY(Checkpoint::open(directory));
  const Config& config = checkpoint.config();
  if (config.engram.layer_ids.empty()) return create(std::move(checkpoint), {});
  const Tokenizer tokenizer = TRY(Tokenizer::open(directory));
  CompressedIds ids =
      TRY(compressed_ids(tokenizer, config.vocab_size, config.engram.compressed_vocab_size));
  return create(std::move(checkpoint), std::move(ids.class_of));
}

Result<std::unique_ptr<Model>> Model::create(Checkpoint checkpoint,
                                             std::vector<int32_t> compressed_ids) {
  const Config& config = checkpoint.config();
  EngramHash hash;
  if (!config.engram.layer_ids.empty()) {
    if (compressed_ids.size() != static_cast<size_t>(config.vocab_size)) {
      return Error{ErrorCode::kInvalid,
                   "the token class map has " + std::to_string(compressed_ids.size()) +
                       " entries, the vocabulary " + std::to_string(config.vocab_size)};
    }
    const int32_t pad = compressed_ids[static_cast<size_t>(config.engram.pad_token_id)];
    hash = TRY(EngramHash::create({.layer_ids = config.engram.layer_ids,
                                   .ngram_size_max = config.engram.ngram_size_max,
                                   .heads = config.engram.heads,
                                   .prime_search_start = config.engram.prime_search_start,
                                   .classes = config.engram.compressed_vocab_size,
                                   .pad_class = pad},
                                  std::move(compressed_ids)));
    for (int32_t i = 0; i < hash.layer_count(); ++i) {
      const int64_t stored = config.engram.table_rows[static_cast<size_t>(i)];
      if (hash.table_rows(i) > stored) {
        return Error{ErrorCode::kInvalid,
                     "text_config.engram_num_embeddings: the hash of Engram layer " +
                         std::to_string(config.engram.layer_ids[static_cast<size_t>(i)]) +
                         " reaches " + std::to_string(hash.table_rows(i)) +
                         " rows, the table has " + std::to_string(stored)};
      }
    }
  }
  ModelWeights weights = TRY(ModelWeights::bind(checkpoint));
  return std::unique_ptr<Model>(
      new Model(std::move(checkpoint), std::move(weights), std::move(hash)));
}

}  // namespace galley::model
