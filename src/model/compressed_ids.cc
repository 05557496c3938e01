#include "model/compressed_ids.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/ustring.h>
#include <unicode/utf16.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/utf8.h"
#include "model/safetensors.h"

namespace galley::model {
namespace {

// Stands for a string that is one space while whitespace is stripped.
constexpr char16_t kOneSpace = 0xE000;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::u16string from_utf8(std::string_view text) {
  std::u16string wide(text.size(), u'\0');  // UTF-16 has at most as many units
  int32_t length = 0;
  UErrorCode code = U_ZERO_ERROR;
  u_strFromUTF8(wide.data(), static_cast<int32_t>(wide.size()), &length, text.data(),
                static_cast<int32_t>(text.size()), &code);
  CHECK(U_SUCCESS(code));  // `text` is UTF-8 already
  wide.resize(static_cast<size_t>(length));
  return wide;
}

std::string to_utf8_text(const std::u16string& wide) {
  std::string text(wide.size() * 3, '\0');
  int32_t length = 0;
  UErrorCode code = U_ZERO_ERROR;
  u_strToUTF8(text.data(), static_cast<int32_t>(text.size()), &length, wide.data(),
              static_cast<int32_t>(wide.size()), &code);
  CHECK(U_SUCCESS(code));
  text.resize(static_cast<size_t>(length));
  return text;
}

std::u16string normalised(const std::u16string& wide, const UNormalizer2* form) {
  // No single code point grows more than 18-fold under NFKC or NFD.
  std::u16string out(wide.size() * 18 + 1, u'\0');
  UErrorCode code = U_ZERO_ERROR;
  const int32_t length = unorm2_normalize(form, wide.data(), static_cast<int32_t>(wide.size()),
                                          out.data(), static_cast<int32_t>(out.size()), &code);
  CHECK(U_SUCCESS(code));
  out.resize(static_cast<size_t>(length));
  return out;
}

template <class Visit>
void for_each_code_point(const std::u16string& wide, Visit visit) {
  const auto length = static_cast<int32_t>(wide.size());
  for (int32_t i = 0; i < length;) {
    UChar32 point = 0;
    U16_NEXT(wide.data(), i, length, point);
    visit(point);
  }
}

void append(std::u16string& text, UChar32 point) {
  if (point > 0xFFFF) {
    text += static_cast<char16_t>(U16_LEAD(point));
    text += static_cast<char16_t>(U16_TRAIL(point));
  } else {
    text += static_cast<char16_t>(point);
  }
}

// Without marks, in lower case by code point: words in context (a final sigma) play no part.
std::u16string bare_lower_case(const std::u16string& wide) {
  std::u16string out;
  for_each_code_point(wide, [&](UChar32 point) {
    if ((U_GET_GC_MASK(point) & U_GC_M_MASK) != 0) return;
    if (point == 0x130) {  // the one full mapping that is longer than one code point
      out += u"i\u0307";
    } else {
      append(out, u_tolower(point));
    }
  });
  return out;
}

std::u16string join_spaces(const std::u16string& wide) {
  std::u16string out;
  for (const char16_t unit : wide) {
    const bool is_space = unit == u' ' || unit == u'\t' || unit == u'\r' || unit == u'\n';
    if (!is_space) {
      out += unit;
    } else if (out.empty() || out.back() != u' ') {
      out += u' ';
    }
  }
  return out;
}

// Every Unicode White_Space character is a single UTF-16 unit.
std::u16string stripped(const std::u16string& wide) {
  const auto is_white = [](char16_t unit) { return u_isUWhiteSpace(unit) != 0; };
  const auto begin = std::find_if_not(wide.begin(), wide.end(), is_white);
  const auto end = std::find_if_not(wide.rbegin(), wide.rend(), is_white).base();
  return begin < end ? std::u16string(begin, end) : std::u16string();
}

std::u16string finished(std::u16string text) {
  text = join_spaces(text);
  if (text == u" ") text = kOneSpace;
  text = stripped(text);
  std::replace(text.begin(), text.end(), kOneSpace, u' ');
  return text;
}

// What ids share a class by; `text` is what the token reads as.
std::string class_key(const std::string& text, const UNormalizer2* nfkc, const UNormalizer2* nfd) {
  std::u16string wide = from_utf8(text);
  // Normal forms leave ASCII alone.
  if (!is_ascii(text)) wide = normalised(normalised(wide, nfkc), nfd);
  const std::u16string key = finished(bare_lower_case(wide));
  return key.empty() ? text : to_utf8_text(key);
}

}  // namespace

Result<CompressedIds> compressed_ids(const Tokenizer& tokenizer, int32_t vocab_size,
                                     int32_t expected_class_count) {
  if (tokenizer.vocab_size() > vocab_size) {
    return Error{ErrorCode::kCorrupt,
                 "tokenizer.json has ids up to " + std::to_string(tokenizer.vocab_size() - 1) +
                     ", text_config.vocab_size is " + std::to_string(vocab_size)};
  }
  UErrorCode code = U_ZERO_ERROR;
  const UNormalizer2* nfkc = unorm2_getNFKCInstance(&code);
  const UNormalizer2* nfd = unorm2_getNFDInstance(&code);
  if (U_FAILURE(code)) {
    return Error{ErrorCode::kUnsupported,
                 std::string("ICU has no normal forms here: ") + u_errorName(code)};
  }
  CompressedIds result;
  result.class_of.reserve(static_cast<size_t>(vocab_size));
  NameMap<int32_t> classes;
  for (int32_t id = 0; id < vocab_size; ++id) {
    const std::string text = to_utf8(tokenizer.token_bytes(id));
    const bool is_broken = text.find(kReplacement) != std::string::npos;
    std::string key =
        is_broken ? std::string(tokenizer.token_string(id)) : class_key(text, nfkc, nfd);
    const auto next = static_cast<int32_t>(classes.size());
    result.class_of.push_back(classes.try_emplace(std::move(key), next).first->second);
  }
  result.class_count = static_cast<int32_t>(classes.size());
  if (result.class_count != expected_class_count) {
    return Error{ErrorCode::kCorrupt,
                 "tokenizer.json gives " + std::to_string(result.class_count) +
                     " Engram classes, text_config.engram_compressed_vocab_size is " +
                     std::to_string(expected_class_count)};
  }
  return result;
}

}  // namespace galley::model
