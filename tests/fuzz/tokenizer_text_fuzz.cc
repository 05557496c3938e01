// Any bytes as text for a real tokenizer: refused when they are not UTF-8, else
// encoding and decoding, whole and streamed, gives the text back.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using galley::model::Markup;
  using galley::model::StreamDecoder;
  using galley::model::Tokenizer;
  static const Tokenizer kTokenizer =
      Tokenizer::open(GALLEY_SOURCE_DIR "/tests/golden/g1-micro-text/checkpoint").value();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Markup markup : {Markup::kActive, Markup::kPlain}) {
    const auto ids = kTokenizer.encode(text, markup);
    CHECK(ids.has_value() == galley::is_utf8(text));
    if (!ids) continue;
    CHECK(kTokenizer.decode(*ids).value() == text);
    StreamDecoder decoder(kTokenizer);
    std::string streamed;
    for (const int32_t id : *ids) streamed += decoder.push(id);
    CHECK(!decoder.holds_bytes());
    CHECK(streamed == text);
  }
  // The same bytes as ids: any of them decode, streamed as whole.
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < size; i += 2) ids.push_back((data[i] | data[i + 1] << 8) % 512);
  StreamDecoder decoder(kTokenizer);
  std::string streamed;
  for (const int32_t id : ids) streamed += decoder.push(id);
  streamed += decoder.finish();
  CHECK(streamed == kTokenizer.decode(ids).value());
  CHECK(galley::is_utf8(streamed));
  return 0;
}
