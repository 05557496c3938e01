// Any bytes as tokenizer.json: an error of one line, or a tokenizer that takes
// text apart and puts it together again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using galley::model::Markup;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = galley::model::Tokenizer::parse(json);
  if (!tokenizer) {
    CHECK(!tokenizer.error().message.empty());
    return 0;
  }
  const std::string text = "a<think>B 12 \n\xE4\xB8\xAD\xF0\x9F\x99\x82  x";
  for (const Markup markup : {Markup::kActive, Markup::kPlain}) {
    const auto ids = tokenizer->encode(text, markup);
    if (!ids) continue;  // a pattern that is too hard is an error too
    for (const int32_t id : *ids) CHECK(id >= 0 && id < tokenizer->vocab_size());
    CHECK(tokenizer->decode(*ids).has_value());
  }
  return 0;
}
