#include "model/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/utf8.h"
#include "model/tokenizer_data.h"

namespace galley::model {
namespace {

constexpr size_t kFileBytesMax = size_t{64} << 20;

// Splits every piece by one regex after the other. More than `pieces_max` are not looked for:
// they only become more.
Result<std::vector<std::string_view>> split_all(
    const std::vector<SplitRegex>& splits, std::string_view text,
    size_t pieces_max = std::numeric_limits<size_t>::max()) {
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const SplitRegex& split : splits) {
    std::vector<std::string_view> finer;
    finer.reserve(pieces.size() * 2);
    for (const std::string_view piece : pieces) {
      TRY(split.split(piece, finer, pieces_max));
      if (finer.size() > pieces_max) return finer;
    }
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Data> data) : data_(std::move(data)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::parse(std::string_view json) {
  auto data = std::make_unique<Data>();
  TRY(read_tokenizer_json(json, *data));
  return Tokenizer(std::move(data));
}

Result<Tokenizer> Tokenizer::open(const std::string& directory) {
  const std::string path = directory + "/tokenizer.json";
  const std::string json = TRY(read_file(path, kFileBytesMax));
  auto tokenizer = parse(json);
  if (!tokenizer) return with_context(std::move(tokenizer).error(), path);
  return tokenizer;
}

Result<std::vector<std::string_view>> Tokenizer::split(std::string_view text) const {
  if (text.size() > kTextBytesMax) {
    return Error{ErrorCode::kInvalid, "text of " + std::to_string(text.size()) +
                                          " bytes, at most " + std::to_string(kTextBytesMax) +
                                          " are tokenized at once"};
  }
  if (!is_utf8(text)) return Error{ErrorCode::kInvalid, "text is not UTF-8"};
  return split_all(data_->splits, text);
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, Markup markup,
                                               TokenBudget* budget) const {
  std::vector<int32_t> ids;
  const size_t most =
      budget == nullptr
          ? std::numeric_limits<size_t>::max()
          : static_cast<size_t>(std::max<int64_t>(0, budget->tokens_max - budget->seen));
  size_t at_least = 0;  // tokens of the text
  // No token stands for more bytes than the longest; no piece becomes less than one.
  const auto is_over = [&](size_t pieces, size_t bytes) {
    if (budget == nullptr) return false;
    const size_t longest = data_->token_bytes_max;
    at_least = std::max(
        at_least, ids.size() + std::max(pieces, bytes / longest + (bytes % longest > 0 ? 1 : 0)));
    return at_least > most;
  };
  const auto encode_plain = [&](std::string_view part) -> Result<void> {
    if (is_over(0, part.size())) return {};
    const std::vector<std::string_view> pieces = TRY(split_all(data_->splits, part, most));
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (is_over(pieces.size() - i, pieces[i].size())) return {};
      data_->bpe->encode(pieces[i], ids);
    }
    return {};
  };
  if (text.size() > kTextBytesMax || !is_utf8(text)) {
    TRY(split(text));  // says what is wrong
  }
  const auto finish = [&] {
    static_cast<void>(is_over(0, 0));
    if (budget != nullptr) budget->seen += static_cast<int64_t>(at_least);
    return std::move(ids);
  };
  if (markup == Markup::kPlain) {
    TRY(encode_plain(text));
    return finish();
  }
  // The exact added tokens first, then those that a normaliser would see, in what remains.
  const auto scan = [&](const TokenTrie& trie, std::string_view part, const auto& rest) {
    size_t done = 0;
    while (done < part.size()) {
      const TokenTrie::Hit hit = trie.find(part, done);
      const size_t end = hit.id < 0 ? part.size() : hit.begin;
      if (end > done) {
        const Result<void> encoded = rest(part.substr(done, end - done));
        if (!encoded) return encoded;
      }
      if (hit.id >= 0) ids.push_back(hit.id);
      if (is_over(0, 0)) break;
      done = end + hit.length;
    }
    return Result<void>();
  };
  TRY(scan(data_->exact_added, text, [&](std::string_view part) {
    return scan(data_->normalized_added, part, encode_plain);
  }));
  return finish();
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return Error{ErrorCode::kInvalid, "token id " + std::to_string(id) +
                                            " is outside the vocabulary of " +
                                            std::to_string(vocab_size())};
    }
    bytes += token_bytes(id);
  }
  return to_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return data_->tokens[static_cast<size_t>(id)].bytes;
}

std::string_view Tokenizer::token_string(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return data_->tokens[static_cast<size_t>(id)].text;
}

bool Tokenizer::is_added(int32_t id) const {
  return id >= 0 && id < vocab_size() && data_->tokens[static_cast<size_t>(id)].is_added;
}

std::optional<int32_t> Tokenizer::added_id(std::string_view text) const {
  const auto found = data_->added_ids.find(text);
  if (found == data_->added_ids.end()) return std::nullopt;
  return found->second;
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return data_->added; }

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(data_->tokens.size()); }

std::string StreamDecoder::push(int32_t id) {
  held_ += tokenizer_->token_bytes(id);
  std::string text;
  held_.erase(0, append_utf8(held_, true, text));
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = to_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace galley::model
