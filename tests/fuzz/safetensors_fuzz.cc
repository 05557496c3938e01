// Any bytes as a safetensors file, and as the JSON of an index: an error, or
// entries that lie inside the file without overlapping.
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using galley::model::TensorEntry;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto entries = galley::model::parse_safetensors(bytes);
  if (entries) {
    uint64_t covered = entries->empty() ? size : entries->front().begin;
    std::set<std::string> names;
    for (const TensorEntry& entry : *entries) {
      CHECK(entry.begin == covered && entry.end >= entry.begin);
      CHECK(names.insert(entry.name).second);
      CHECK(
          static_cast<uint64_t>(entry.shape.elements() * galley::model::dtype_bytes(entry.dtype)) ==
          entry.end - entry.begin);
      covered = entry.end;
    }
    CHECK(covered == size);
  } else {
    CHECK(entries.error().message.find('\n') == std::string::npos);
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto places = galley::model::parse_safetensors_index(text);
  if (places) {
    for (const auto& [name, shard] : *places) {
      CHECK(!shard.empty() && shard.find('/') == std::string::npos);
    }
  }
  return 0;
}
