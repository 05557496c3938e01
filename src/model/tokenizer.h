// Text to token ids and back: the byte-level BPE of a tokenizer.json
// (spec/chat.md 1).
//
// Reads the subset that DeepSeek's tokenizers use (added tokens, isolating
// regex splits, ByteLevel, BPE) and refuses the rest by name. Immutable after
// loading; encode and decode are const and may run on any thread. Knows nothing
// of roles or templates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::model {

struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;
};

// Whether strings like <｜User｜> inside the text become their control tokens.
// kPlain is for text of others, so that nobody smuggles one in.
enum class Markup : uint8_t { kActive, kPlain };

// How many tokens a text may become before nobody wants them any more. Over it, what is there of
// the ids is of no use: `seen` says how many there would be at least.
struct TokenBudget {
  int64_t tokens_max = 0;
  int64_t seen = 0;

  bool over() const { return seen > tokens_max; }
};

class Tokenizer {
 public:
  // The text of tokenizer.json. Errors name the field; the caller adds the path.
  static Result<Tokenizer> parse(std::string_view json);
  // DIRECTORY/tokenizer.json.
  static Result<Tokenizer> open(const std::string& directory);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Nothing is added: the caller writes BOS itself. The text must be UTF-8
  // (kInvalid otherwise) and at most `kTextBytesMax` long. With a budget it counts, and stops as
  // soon as the text is known to exceed it: from its length alone when that is enough.
  static constexpr size_t kTextBytesMax = size_t{64} << 20;
  Result<std::vector<int32_t>> encode(std::string_view text, Markup markup,
                                      TokenBudget* budget = nullptr) const;

  // The text's pieces before BPE, as views into `text`; for tests and `galley tokenize`.
  Result<std::vector<std::string_view>> split(std::string_view text) const;

  // Added tokens as their text, bytes that are no UTF-8 as U+FFFD. Ids outside the vocabulary are
  // kInvalid; ids inside it that no token has (a padded embedding) decode to nothing.
  Result<std::string> decode(std::span<const int32_t> ids) const;

  // The bytes one id stands for: raw for base tokens (perhaps a part of a code point), the text of
  // an added token; empty for an id that no token has.
  std::string_view token_bytes(int32_t id) const;

  // As tokenizer.json spells it ("Ġthe"); empty for an id that no token has.
  std::string_view token_string(int32_t id) const;

  bool is_added(int32_t id) const;
  std::optional<int32_t> added_id(std::string_view text) const;
  const std::vector<AddedToken>& added_tokens() const;

  int32_t vocab_size() const;  // largest id + 1

  struct Data;  // model/tokenizer_data.h

 private:
  explicit Tokenizer(std::unique_ptr<const Data> data);

  std::unique_ptr<const Data> data_;
};

// Decodes one id at a time, holding back bytes until their code point is
// complete. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // The text that became final with this id, perhaps none.
  std::string push(int32_t id);
  // What is held back: U+FFFD for an unfinished code point, else nothing. Then empty again.
  std::string finish();
  bool holds_bytes() const { return !held_.empty(); }

 private:
  const Tokenizer* tokenizer_;
  std::string held_;  // at most 3 bytes
};

}  // namespace galley::model
