#include "model/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>

namespace galley::model {
namespace {

// The format's own reader accepts headers up to this length.
constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kIndexBytesMax = 200'000'000;
constexpr size_t kDepthMax = 8;
constexpr size_t kNameBytesMax = 1024;

struct DTypeRow {
  std::string_view name;
  int64_t bytes;
};

// Indexed by DType.
constexpr std::array<DTypeRow, 16> kDTypes = {{{"BOOL", 1},
                                               {"U8", 1},
                                               {"I8", 1},
                                               {"F8_E4M3", 1},
                                               {"F8_E5M2", 1},
                                               {"F8_E8M0", 1},
                                               {"I16", 2},
                                               {"U16", 2},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I32", 4},
                                               {"U32", 4},
                                               {"F32", 4},
                                               {"I64", 8},
                                               {"U64", 8},
                                               {"F64", 8}}};

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

// A name from a file, fit for one line of an error message.
std::string in_quotes(std::string_view name) {
  std::string text = "\"";
  for (const char c : name.substr(0, 120)) {
    text += (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) ? '?' : c;
  }
  if (name.size() > 120) text += "...";
  return text + "\"";
}

Error json_error(simdjson::error_code code) {
  if (code == simdjson::UTF8_ERROR) return corrupt("header is not UTF-8");
  return corrupt(std::string("header is not valid JSON: ") + simdjson::error_message(code));
}

// A simdjson value, or return its error.
#define TRY_JSON(target, expression)                                  \
  do {                                                                \
    const simdjson::error_code json_code = (expression).get(target);  \
    if (json_code != simdjson::SUCCESS) return json_error(json_code); \
  } while (false)

Result<uint64_t> element_count(const std::string& name, const Shape& shape) {
  uint64_t elements = 1;
  for (int32_t axis = 0; axis < shape.rank; ++axis) {
    // 2^56 elements of 8 bytes still fit in 64 bits.
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(shape[axis]), &elements) ||
        elements > (uint64_t{1} << 56)) {
      return corrupt("tensor " + in_quotes(name) + ": shape " + shape.text() + " overflows");
    }
  }
  return elements;
}

Result<Shape> read_shape(const std::string& name, simdjson::dom::element value) {
  simdjson::dom::array dims;
  if (value.get(dims) != simdjson::SUCCESS) {
    return corrupt("tensor " + in_quotes(name) + ": shape is not an array");
  }
  Shape shape;
  for (const simdjson::dom::element dim : dims) {
    if (shape.rank == Shape::kRankMax) {
      return corrupt("tensor " + in_quotes(name) + ": more than 8 dimensions");
    }
    int64_t length = 0;
    if (dim.get(length) != simdjson::SUCCESS || length < 0) {
      return corrupt("tensor " + in_quotes(name) + ": shape holds something other than sizes");
    }
    shape.dims[static_cast<size_t>(shape.rank++)] = length;
  }
  return shape;
}

Result<TensorEntry> read_entry(std::string name, simdjson::dom::element value, uint64_t data_begin,
                               uint64_t data_bytes) {
  simdjson::dom::object fields;
  if (value.get(fields) != simdjson::SUCCESS) {
    return corrupt("tensor " + in_quotes(name) + ": its entry is not an object");
  }
  TensorEntry entry;
  entry.name = std::move(name);
  std::string_view dtype;
  simdjson::dom::element shape;
  simdjson::dom::array offsets;
  if (fields["dtype"].get(dtype) != simdjson::SUCCESS ||
      fields["shape"].get(shape) != simdjson::SUCCESS ||
      fields["data_offsets"].get(offsets) != simdjson::SUCCESS) {
    return corrupt("tensor " + in_quotes(entry.name) + ": needs dtype, shape and data_offsets");
  }
  const std::optional<DType> known = dtype_from_name(dtype);
  if (!known.has_value()) {
    return corrupt("tensor " + in_quotes(entry.name) + ": unknown dtype " + in_quotes(dtype));
  }
  entry.dtype = *known;
  entry.shape = TRY(read_shape(entry.name, shape));
  uint64_t begin = 0;
  uint64_t end = 0;
  if (offsets.size() != 2 || offsets.at(0).get(begin) != simdjson::SUCCESS ||
      offsets.at(1).get(end) != simdjson::SUCCESS || begin > end) {
    return corrupt("tensor " + in_quotes(entry.name) +
                   ": data_offsets are not two ascending sizes");
  }
  if (end > data_bytes) {
    return corrupt("tensor " + in_quotes(entry.name) + ": ends at byte " +
                   std::to_string(data_begin + std::min(end, UINT64_MAX - data_begin)) +
                   " of a file of " + std::to_string(data_begin + data_bytes) +
                   " (truncated, or offsets out of range)");
  }
  const uint64_t bytes =
      TRY(element_count(entry.name, entry.shape)) * static_cast<uint64_t>(dtype_bytes(entry.dtype));
  if (bytes != end - begin) {
    return corrupt("tensor " + in_quotes(entry.name) + ": " + std::string(dtype) + " " +
                   entry.shape.text() + " takes " + std::to_string(bytes) +
                   " bytes, its offsets span " + std::to_string(end - begin));
  }
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return entry;
}

// In byte order: each begins where the one before ends, the last at the file's end.
Result<void> check_layout(const std::vector<TensorEntry>& entries, uint64_t data_begin,
                          uint64_t file_bytes) {
  uint64_t covered = data_begin;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& entry : entries) {
    if (entry.begin < covered) {
      return corrupt("tensors " + in_quotes(before->name) + " and " + in_quotes(entry.name) +
                     " overlap");
    }
    if (entry.begin > covered) {
      return corrupt("tensor " + in_quotes(entry.name) + " leaves a gap of " +
                     std::to_string(entry.begin - covered) + " bytes before it");
    }
    covered = entry.end;
    before = &entry;
  }
  if (covered != file_bytes) {
    return corrupt(std::to_string(file_bytes - covered) + " bytes after the last tensor");
  }
  return {};
}

Result<void> check_unique(std::vector<TensorEntry>& entries) {
  std::sort(entries.begin(), entries.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].name == entries[i - 1].name) {
      return corrupt("tensor " + in_quotes(entries[i].name) + " is named twice");
    }
  }
  return {};
}

}  // namespace

std::string_view dtype_name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

int64_t dtype_bytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

Shape::Shape(std::initializer_list<int64_t> list) : rank(static_cast<int32_t>(list.size())) {
  CHECK(list.size() <= static_cast<size_t>(kRankMax));
  std::copy(list.begin(), list.end(), dims.begin());
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (int32_t axis = 0; axis < rank; ++axis) product *= (*this)[axis];
  return product;
}

std::string Shape::text() const {
  std::string text = "[";
  for (int32_t axis = 0; axis < rank; ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string((*this)[axis]);
  }
  return text + "]";
}

Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file) {
  if (file.size() < 8) {
    return corrupt("only " + std::to_string(file.size()) +
                   " bytes long, no safetensors file (truncated?)");
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);  // little-endian, as this machine
  if (header_bytes > file.size() - 8) {
    return corrupt("header of " + std::to_string(header_bytes) + " bytes in a file of " +
                   std::to_string(file.size()) + " (truncated, or no safetensors file)");
  }
  if (header_bytes > kHeaderBytesMax) {
    return corrupt("header of " + std::to_string(header_bytes) + " bytes, at most " +
                   std::to_string(kHeaderBytesMax) + " are accepted");
  }
  const uint64_t data_begin = 8 + header_bytes;
  simdjson::dom::parser parser(kHeaderBytesMax + 64);
  const simdjson::error_code sized = parser.allocate(header_bytes + 64, kDepthMax);
  if (sized != simdjson::SUCCESS) return json_error(sized);
  simdjson::dom::object header;
  simdjson::dom::element root;
  TRY_JSON(root, parser.parse(reinterpret_cast<const char*>(file.data()) + 8, header_bytes));
  if (root.get(header) != simdjson::SUCCESS) return corrupt("header is not a JSON object");

  std::vector<TensorEntry> entries;
  entries.reserve(header.size());
  for (const simdjson::dom::key_value_pair field : header) {
    if (field.key == "__metadata__") continue;
    if (field.key.empty() || field.key.size() > kNameBytesMax) {
      return corrupt("tensor name of " + std::to_string(field.key.size()) + " bytes");
    }
    entries.push_back(
        TRY(read_entry(std::string(field.key), field.value, data_begin, file.size() - data_begin)));
  }
  TRY(check_unique(entries));
  std::stable_sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  TRY(check_layout(entries, data_begin, file.size()));
  return entries;
}

Result<std::vector<std::pair<std::string, std::string>>> parse_safetensors_index(
    std::string_view json) {
  if (json.size() > kIndexBytesMax) {
    return corrupt(std::to_string(json.size()) + " bytes long, at most " +
                   std::to_string(kIndexBytesMax) + " are accepted");
  }
  simdjson::dom::parser parser(kIndexBytesMax + 64);
  const simdjson::error_code sized = parser.allocate(json.size() + 64, kDepthMax);
  if (sized != simdjson::SUCCESS) return json_error(sized);
  simdjson::dom::element root;
  TRY_JSON(root, parser.parse(json.data(), json.size()));
  simdjson::dom::object map;
  if (root["weight_map"].get(map) != simdjson::SUCCESS) {
    return corrupt("weight_map: missing, or not an object");
  }
  std::vector<std::pair<std::string, std::string>> places;
  places.reserve(map.size());
  for (const simdjson::dom::key_value_pair field : map) {
    std::string_view shard;
    if (field.value.get(shard) != simdjson::SUCCESS) {
      return corrupt("weight_map: " + in_quotes(field.key) + " names no file");
    }
    // A shard lies beside its index: no path may lead elsewhere.
    const bool plain = !shard.empty() && shard.size() < 256 && shard != "." && shard != ".." &&
                       shard.find('/') == std::string_view::npos &&
                       shard.find('\0') == std::string_view::npos;
    if (!plain) return corrupt("weight_map: " + in_quotes(shard) + " is no plain file name");
    places.emplace_back(field.key, shard);
  }
  return places;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile result(TRY(MappedFile::open(path)));
  auto entries = parse_safetensors(result.file_.bytes());
  if (!entries) return with_context(std::move(entries).error(), path);
  for (TensorEntry& entry : *entries) {
    const TensorView view = {.dtype = entry.dtype,
                             .shape = entry.shape,
                             .data = result.file_.bytes().data() + entry.begin,
                             .size_bytes = entry.end - entry.begin};
    result.tensors_.emplace(std::move(entry.name), view);
  }
  return result;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<TensorView> SafetensorsFile::tensor(std::string_view name) const {
  const TensorView* view = find(name);
  if (view == nullptr) {
    return Error{ErrorCode::kNotFound, path() + ": no tensor \"" + std::string(name) + "\""};
  }
  return *view;
}

}  // namespace galley::model
