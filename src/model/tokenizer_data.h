// What a tokenizer.json says, in the form the tokenizer works with. Only for
// tokenizer.cc and tokenizer_json.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/bpe.h"
#include "model/safetensors.h"
#include "model/split_regex.h"
#include "model/token_trie.h"
#include "model/tokenizer.h"

namespace galley::model {

struct Tokenizer::Data {
  struct Token {
    std::string text;   // as the file spells it
    std::string bytes;  // what it decodes to
    bool is_added = false;
  };

  std::vector<Token> tokens;       // by id; both strings empty where no token has the id
  size_t token_bytes_max = 1;      // of the longest token
  int64_t id_max = 0;              // what an id may be in this file
  std::vector<AddedToken> added;   // ascending ids
  NameMap<int32_t> added_ids;      // by text
  TokenTrie exact_added;           // normalized = false: looked for first
  TokenTrie normalized_added;      // the others
  std::vector<SplitRegex> splits;  // one after the other
  std::optional<Bpe> bpe;
};

// Reads the supported subset or says in one line, by field, what is not.
Result<void> read_tokenizer_json(std::string_view json, Tokenizer::Data& data);

}  // namespace galley::model
