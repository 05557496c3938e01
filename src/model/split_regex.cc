#include "model/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace galley::model {
namespace {

constexpr size_t kPatternBytesMax = 4096;

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

Error refused(std::string_view pattern, const std::string& reason) {
  return {ErrorCode::kUnsupported,
          "split pattern \"" + std::string(pattern.substr(0, 200)) + "\": " + reason};
}

// \s means the property White_Space to Oniguruma; to PCRE2 also U+180E.
Result<std::string> translate(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      if (++i == pattern.size()) return refused(pattern, "ends inside an escape");
      const char escaped = pattern[i];
      const bool is_letter =
          (escaped >= 'a' && escaped <= 'z') || (escaped >= 'A' && escaped <= 'Z');
      const bool is_digit = escaped >= '0' && escaped <= '9';
      if (escaped == 's') {
        out += "\\p{White_Space}";
      } else if (escaped == 'S') {
        out += "\\P{White_Space}";
      } else if (is_digit || (is_letter && std::string_view("rntpPdD").find(escaped) ==
                                               std::string_view::npos)) {
        return refused(pattern, std::string("\\") + escaped + " is not supported");
      } else {
        out += c;
        out += escaped;
      }
      continue;
    }
    if (in_class) {
      if (c == '[') return refused(pattern, "a class inside a class is not supported");
      if (c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
        return refused(pattern, "an intersection of classes is not supported");
      }
      if (c == ']') in_class = false;
    } else if (c == '[') {
      in_class = true;
    }
    out += c;
  }
  return out;
}

}  // namespace

struct SplitRegex::Compiled {
  std::unique_ptr<pcre2_code, CodeFree> code;
  bool has_jit = false;
};

SplitRegex::SplitRegex(std::unique_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;
SplitRegex::~SplitRegex() = default;

Result<SplitRegex> SplitRegex::compile(std::string_view pattern) {
  if (pattern.empty() || pattern.size() > kPatternBytesMax) {
    return refused(pattern, "must have 1 to " + std::to_string(kPatternBytesMax) + " bytes");
  }
  const std::string translated = TRY(translate(pattern));
  int number = 0;
  PCRE2_SIZE place = 0;
  // In Ruby's syntax, which the format uses, ^ and $ hold at every line.
  auto compiled = std::make_unique<Compiled>();
  compiled->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &number, &place, nullptr));
  if (compiled->code == nullptr) {
    std::array<PCRE2_UCHAR, 256> text = {};
    pcre2_get_error_message(number, text.data(), text.size());
    return refused(pattern, reinterpret_cast<const char*>(text.data()));
  }
  // Without JIT (a hardened system may forbid it) matching is slower, not wrong.
  compiled->has_jit = pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return SplitRegex(std::move(compiled));
}

Result<void> SplitRegex::split(std::string_view text, std::vector<std::string_view>& pieces,
                               size_t pieces_max) const {
  const std::unique_ptr<pcre2_match_data, MatchDataFree> data(pcre2_match_data_create(1, nullptr));
  const pcre2_code* code = compiled_->code.get();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;  // everything before is in `pieces`
  size_t from = 0;
  bool use_jit = compiled_->has_jit;
  while (from < text.size() && pieces.size() <= pieces_max) {
    int count = use_jit ? pcre2_jit_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                          data.get(), nullptr)
                        : pcre2_match(code, subject, text.size(), from,
                                      PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), nullptr);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
      use_jit = false;  // the interpreter backtracks on the heap
      continue;
    }
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      // Not kExhausted: the same text would fail again.
      return Error{ErrorCode::kInvalid, "text of " + std::to_string(text.size()) +
                                            " bytes is too hard for the tokenizer's split pattern"};
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    const size_t begin = ends[0];
    const size_t end = ends[1];
    if (end <= begin) {  // an empty match cuts nothing: look behind the next character
      from = begin + 1;
      while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    if (begin > done) pieces.push_back(text.substr(done, begin - done));
    pieces.push_back(text.substr(begin, end - begin));
    done = end;
    from = end;
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
  return {};
}

}  // namespace galley::model
