// Shows that text and ids agree with the goldens' tokenizers, that streaming
// equals decoding, that long pieces stay cheap, and that what the loader does
// not support is refused by name.
#include "model/tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "base/file.h"
#include "model/bpe.h"

namespace galley::model {
namespace {

using nlohmann::json;

std::string golden(const std::string& path) {
  return std::string(GALLEY_SOURCE_DIR) + "/tests/golden/" + path;
}

const std::string& golden_json() {
  static const std::string text =
      *read_file(golden("g1-micro-text/checkpoint/tokenizer.json"), 1 << 24);
  return text;
}

Tokenizer golden_tokenizer() { return *Tokenizer::parse(golden_json()); }

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  text += decoder.finish();
  EXPECT_FALSE(decoder.holds_bytes());
  return text;
}

TEST(Tokenizer, AgreesWithTheGoldens) {
  const json units = json::parse(*read_file(golden("units/units.json"), 1 << 24));
  for (const auto& [key, model] :
       {std::pair("tokenizer.g1", "g1-micro-text"), std::pair("tokenizer.g2", "g2-micro-full")}) {
    const auto tokenizer = Tokenizer::open(golden(std::string(model) + "/checkpoint"));
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    EXPECT_EQ(tokenizer->vocab_size(), 512);
    ASSERT_GE(units[key].size(), 18U);
    for (const json& vector : units[key]) {
      const std::string text = vector["text"];
      const std::vector<int32_t> ids = vector["ids"];
      EXPECT_EQ(*tokenizer->encode(text, Markup::kActive), ids) << text;
      EXPECT_EQ(*tokenizer->decode(ids), vector["decoded"].get<std::string>());
      EXPECT_EQ(streamed(*tokenizer, ids), vector["decoded"].get<std::string>());
    }
  }
}

TEST(Tokenizer, MarkupIsAChoice) {
  const Tokenizer tokenizer = golden_tokenizer();
  const std::string text = "a<｜User｜>";
  EXPECT_EQ(tokenizer.encode(text, Markup::kActive)->back(), 506);
  const std::vector<int32_t> plain = *tokenizer.encode(text, Markup::kPlain);
  for (const int32_t id : plain) EXPECT_FALSE(tokenizer.is_added(id));
  EXPECT_EQ(*tokenizer.decode(plain), text);
  EXPECT_EQ(*tokenizer.added_id("</think>"), 509);
  EXPECT_FALSE(tokenizer.added_id("<nothing>").has_value());
  EXPECT_EQ(tokenizer.added_tokens().size(), 9U);
  EXPECT_EQ(tokenizer.added_tokens().front().text, "<｜begin▁of▁sentence｜>");
}

TEST(Tokenizer, RoundTripsAnyText) {
  const Tokenizer tokenizer = golden_tokenizer();
  std::mt19937 random(7);
  const std::vector<std::string> parts = {
      "a", "B",  " ",       "  ", "\n",     "\r\n",   "\t", "7",   "é",      "中",   "テ", "🙂",
      "<", "｜", "<think>", "́",   "\u200D", "\u3000", "!",  "the", "\u0085", "\x01", "ǅ"};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    const size_t count = random() % 40;
    for (size_t i = 0; i < count; ++i) text += parts[random() % parts.size()];
    for (const Markup markup : {Markup::kActive, Markup::kPlain}) {
      const auto ids = tokenizer.encode(text, markup);
      ASSERT_TRUE(ids);
      EXPECT_EQ(*tokenizer.decode(*ids), text);
      EXPECT_EQ(streamed(tokenizer, *ids), text);
    }
    std::string joined;
    const auto pieces = tokenizer.split(text);
    ASSERT_TRUE(pieces);
    for (const std::string_view piece : *pieces) joined += piece;
    EXPECT_EQ(joined, text);
  }
}

TEST(Tokenizer, StreamingEqualsDecodingForAnyIds) {
  const Tokenizer tokenizer = golden_tokenizer();
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> ids(random() % 30);
    // Mostly single bytes: broken code points in all forms.
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % (round % 2 == 0 ? 512 : 260));
    EXPECT_EQ(streamed(tokenizer, ids), *tokenizer.decode(ids));
  }
}

TEST(Tokenizer, ErrorsAreValues) {
  const Tokenizer tokenizer = golden_tokenizer();
  EXPECT_EQ(tokenizer.encode("a\xFF", Markup::kActive).error().message, "text is not UTF-8");
  EXPECT_EQ(tokenizer.split("\xC3").error().message, "text is not UTF-8");
  const std::string long_text(Tokenizer::kTextBytesMax + 1, 'a');
  EXPECT_FALSE(tokenizer.encode(long_text, Markup::kPlain));
  const std::vector<int32_t> outside = {512};
  EXPECT_EQ(tokenizer.decode(outside).error().message,
            "token id 512 is outside the vocabulary of 512");
  const std::vector<int32_t> negative = {-1};
  EXPECT_FALSE(tokenizer.decode(negative));
  EXPECT_EQ(tokenizer.token_bytes(512), "");
}

// Of this thread alone: what else the machine does must not count.
double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of(const std::function<void()>& work) {
  const double start = cpu_seconds();
  work();
  return cpu_seconds() - start;
}

// Four times the text may take eight times as long, but not sixteen: a
// quadratic merge would. A loaded machine gets three tries.
TEST(Tokenizer, LongPiecesAreNotQuadratic) {
  const Tokenizer tokenizer = golden_tokenizer();
  for (const char* unit : {"a", "th", " ", "!", "\n", "中", "1", "\u200D"}) {
    std::string small;
    while (small.size() < (1 << 18)) small += unit;
    const std::string large = small + small + small + small;
    double ratio = 1e9;
    for (int attempt = 0; attempt < 3 && ratio > 8.0; ++attempt) {
      const double one = seconds_of([&] { ASSERT_TRUE(tokenizer.encode(small, Markup::kActive)); });
      const double four =
          seconds_of([&] { ASSERT_TRUE(tokenizer.encode(large, Markup::kActive)); });
      ratio = four / one;
    }
    EXPECT_LT(ratio, 8.0) << "of \"" << unit << "\"";
  }
}

// Within its budget a text has its ids and they are counted; beyond, `seen` is more than the budget
// and no more than the text has.
TEST(Tokenizer, StopsWhenTheBudgetIsSpent) {
  const Tokenizer tokenizer = golden_tokenizer();
  for (const char* unit : {"a", "once upon ", "1", "!\n", "中", "<｜User｜>"}) {
    std::string text;
    while (text.size() < 2000) text += unit;
    for (const Markup markup : {Markup::kActive, Markup::kPlain}) {
      const std::vector<int32_t> all = *tokenizer.encode(text, markup);
      const auto count = static_cast<int64_t>(all.size());
      for (const int64_t most : {int64_t{0}, int64_t{1}, count / 2, count - 1}) {
        TokenBudget budget{.tokens_max = 7 + most, .seen = 7};
        ASSERT_TRUE(tokenizer.encode(text, markup, &budget));
        EXPECT_TRUE(budget.over()) << unit << " " << most;
        EXPECT_LE(budget.seen, 7 + count) << unit << " " << most;
      }
      TokenBudget enough{.tokens_max = 7 + count, .seen = 7};
      EXPECT_EQ(*tokenizer.encode(text, markup, &enough), all);
      EXPECT_EQ(enough.seen, 7 + count);
      EXPECT_FALSE(enough.over());
    }
  }
}

// The two ways of merging give the same ids: pieces on both sides of the limit
// between them, against the rule applied literally.
TEST(Bpe, FollowsTheRuleAtEveryLength) {
  std::array<int32_t, 256> bytes;
  for (int32_t i = 0; i < 256; ++i) bytes[static_cast<size_t>(i)] = i;
  Bpe bpe(bytes);
  std::vector<std::array<int32_t, 3>> merges;
  std::mt19937 random(5);
  int32_t next = 256;
  while (merges.size() < 60) {
    const auto pick = [&] {
      const auto n = static_cast<int32_t>(random() % (3 + static_cast<uint32_t>(next - 256)));
      return n < 3 ? 'a' + n : 256 + n - 3;
    };
    const int32_t left = pick();
    const int32_t right = pick();
    if (!bpe.add_merge(left, right, next)) continue;
    merges.push_back({left, right, next++});
  }
  const auto literal = [&](const std::string& text) {
    std::vector<int32_t> ids(text.begin(), text.end());
    for (bool merged = true; merged;) {
      merged = false;
      for (const auto& [left, right, id] : merges) {
        for (size_t i = 0; i + 1 < ids.size() && !merged; ++i) {
          if (ids[i] != left || ids[i + 1] != right) continue;
          ids[i] = id;
          ids.erase(ids.begin() + static_cast<ptrdiff_t>(i) + 1);
          merged = true;
        }
        if (merged) break;
      }
    }
    return ids;
  };
  for (size_t length = 0; length < 120; ++length) {
    for (int round = 0; round < 5; ++round) {
      std::string text;
      for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 3);
      std::vector<int32_t> ids;
      bpe.encode(text, ids);
      EXPECT_EQ(ids, literal(text)) << text;
    }
  }
}

std::string error_of(const std::function<void(json&)>& change) {
  json file = json::parse(golden_json());
  change(file);
  const auto tokenizer = Tokenizer::parse(file.dump());
  return tokenizer ? "" : tokenizer.error().message;
}

TEST(TokenizerJson, RefusesUnsupportedFeaturesByName) {
  EXPECT_EQ(error_of([](json&) {}), "");
  const std::vector<std::pair<std::string, json>> changes = {
      {"/truncation", {{"max_length", 3}}},
      {"/padding", json::object({{"strategy", "Fixed"}})},
      {"/normalizer", {{"type", "NFC"}}},
      {"/normalizer/normalizers", {{{"type", "NFC"}}}},
      {"/pre_tokenizer", nullptr},
      {"/pre_tokenizer/type", "Whitespace"},
      {"/pre_tokenizer/pretokenizers/0/type", "Digits"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed"},
      {"/pre_tokenizer/pretokenizers/0/invert", true},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a[b]]"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a&&b]"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a"},
      {"/pre_tokenizer/pretokenizers/3/use_regex", true},
      {"/pre_tokenizer/pretokenizers/3/add_prefix_space", true},
      {"/post_processor/type", "TemplateProcessing"},
      {"/decoder/type", "Metaspace"},
      {"/model/type", "WordPiece"},
      {"/model/dropout", 0.1},
      {"/model/unk_token", "<unk>"},
      {"/model/byte_fallback", true},
      {"/model/ignore_merges", true},
      {"/model/continuing_subword_prefix", "##"},
      {"/added_tokens/3/lstrip", true},
      {"/added_tokens/3/single_word", true},
      {"/added_tokens/3/content", ""},
      {"/added_tokens/3/content", "<think>"},
      {"/added_tokens/3/id", 5},
      {"/added_tokens/3/id", -1},
      {"/added_tokens/0/id", 9},
      {"/model/vocab/!", "x"},
      {"/model/vocab/!", 9'000'000},
      {"/model/vocab/!", 37},
      {"/model/merges/0", "Ã"},
      {"/model/merges/0", "Ã zzz"},
      {"/model/merges/0", "Ã ī"},
      {"/model/merges", 1},
  };
  for (const auto& [pointer, value] : changes) {
    const std::string message =
        error_of([&](json& file) { file[json::json_pointer(pointer)] = value; });
    EXPECT_NE(message, "") << pointer << " = " << value;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    // "/pre_tokenizer/pretokenizers/0/type" is named pre_tokenizer.pretokenizers[0]...
    const std::string top = pointer.substr(1, pointer.find('/', 1) - 1);
    EXPECT_EQ(message.find(top), 0U) << message;
  }
}

TEST(TokenizerJson, RefusesAVocabularyWithoutAByte) {
  EXPECT_EQ(error_of([](json& file) { file["model"]["vocab"].erase("!"); }),
            "model.vocab: has no symbol for byte 33");
}

TEST(TokenizerJson, RefusesRepeatedStrings) {
  std::string text = golden_json();
  text.insert(text.find("\"!\":36"), "\"!\":511,");
  EXPECT_FALSE(Tokenizer::parse(text));
}

TEST(TokenizerJson, RefusesWhatIsNoJson) {
  EXPECT_EQ(Tokenizer::parse("{\"\xFF\":1}").error().message, "not UTF-8");
  const size_t size = golden_json().size();
  for (size_t length = 0; length < size; length += 97) {
    EXPECT_FALSE(Tokenizer::parse(golden_json().substr(0, length)));
  }
  EXPECT_EQ(Tokenizer::open("/nowhere").error().code, ErrorCode::kNotFound);
}

TEST(TokenizerJson, AcceptsMergesAsPairs) {
  json file = json::parse(golden_json());
  for (json& merge : file["model"]["merges"]) {
    const std::string text = merge;
    merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
  }
  const auto tokenizer = Tokenizer::parse(file.dump());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(*tokenizer->encode("Hello, world!", Markup::kActive),
            *golden_tokenizer().encode("Hello, world!", Markup::kActive));
}

}  // namespace
}  // namespace galley::model
