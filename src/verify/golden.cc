#include "verify/golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "kernels/number_formats.h"

namespace galley::verify {

namespace {

using model::DType;
using nlohmann::json;

constexpr size_t kCasesBytesMax = size_t{64} << 20;

std::string dims_text(const Dims& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    text += (i == 0 ? "" : ", ") + (dims[i] == kAny ? std::string("?") : std::to_string(dims[i]));
  }
  return text + "]";
}

Dims dims_of(const model::TensorView& tensor) {
  return Dims(tensor.shape.dims.begin(), tensor.shape.dims.begin() + tensor.shape.rank);
}

// Elements of type `Stored`, which need not be aligned in the mapping, as `T`.
template <class Stored, class T, class Convert>
std::vector<T> converted(const model::TensorView& tensor, Convert convert) {
  std::vector<T> values(tensor.size_bytes / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, tensor.data + i * sizeof(Stored), sizeof(Stored));
    values[i] = convert(stored);
  }
  return values;
}

Error bad(const std::string& path, const std::string& what) {
  return Error{ErrorCode::kCorrupt, path + ": " + what};
}

Result<std::vector<int32_t>> integer_list(const json& object, const char* key,
                                          const std::string& path, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) {
    return bad(path, where + "." + key + " is missing or not a list");
  }
  std::vector<int32_t> values;
  for (const json& value : *found) {
    if (!value.is_number_integer()) return bad(path, where + "." + key + " holds a non-integer");
    const auto wide = value.get<int64_t>();
    if (wide < -1 || wide > INT32_MAX) return bad(path, where + "." + key + " is out of range");
    values.push_back(static_cast<int32_t>(wide));
  }
  return values;
}

std::string string_or_empty(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Result<GoldenCase> parse_case(const json& entry, const std::string& path, size_t index) {
  const std::string where = fmt::format("cases[{}]", index);
  if (!entry.is_object()) return bad(path, where + " is not an object");
  GoldenCase result;
  result.name = string_or_empty(entry, "name");
  if (result.name.empty()) return bad(path, where + ".name is missing");
  result.tokens = TRY(integer_list(entry, "tokens", path, where));
  if (result.tokens.empty()) return bad(path, where + ".tokens is empty");
  if (const auto length = entry.find("length");
      length != entry.end() && *length != json(result.tokens.size())) {
    return bad(path, where + ".length differs from the number of tokens");
  }
  if (string_or_empty(entry, "kind") == "image") {
    result.token_types = TRY(integer_list(entry, "token_types", path, where));
    if (result.token_types.size() != result.tokens.size()) {
      return bad(path, where + ".token_types differs in length from tokens");
    }
  }
  if (const auto fields = entry.find("fields"); fields != entry.end() && fields->is_array()) {
    for (const json& field : *fields) {
      if (field.is_string()) result.fields.push_back(field.get<std::string>());
    }
  }
  if (const auto drafts = entry.find("dspark"); drafts != entry.end() && drafts->is_array()) {
    result.draft_steps = static_cast<int32_t>(drafts->size());
  }
  return result;
}

}  // namespace

Result<GoldenFile> GoldenFile::open(const std::string& path) {
  return GoldenFile(TRY(model::SafetensorsFile::open(path)));
}

Result<const model::TensorView*> GoldenFile::find(std::string_view name, const Dims& dims,
                                                  std::initializer_list<DType> dtypes) const {
  const model::TensorView* tensor = file_.find(name);
  if (tensor == nullptr) return tensor;
  if (std::find(dtypes.begin(), dtypes.end(), tensor->dtype) == dtypes.end()) {
    return bad(path(), fmt::format("{} has dtype {}, which it cannot have", name,
                                   model::dtype_name(tensor->dtype)));
  }
  const Dims found = dims_of(*tensor);
  bool fits = found.size() == dims.size();
  for (size_t i = 0; fits && i < dims.size(); ++i) fits = dims[i] == kAny || dims[i] == found[i];
  if (!fits) {
    return bad(path(), fmt::format("{} has shape {}, expected {}", name, dims_text(found),
                                   dims_text(dims)));
  }
  return tensor;
}

Result<std::optional<Table<float>>> GoldenFile::floats(std::string_view name,
                                                       const Dims& dims) const {
  const model::TensorView* tensor = TRY(find(name, dims, {DType::kF32, DType::kBf16}));
  if (tensor == nullptr) return std::optional<Table<float>>();
  Table<float> table{dims_of(*tensor), {}};
  if (tensor->dtype == DType::kF32) {
    table.values = converted<float, float>(*tensor, [](float v) { return v; });
  } else {
    table.values = converted<kernels::Bf16, float>(
        *tensor, [](kernels::Bf16 v) { return kernels::to_f32(v); });
  }
  return std::optional<Table<float>>(std::move(table));
}

Result<std::optional<Table<kernels::Bf16>>> GoldenFile::bf16(std::string_view name,
                                                             const Dims& dims) const {
  const model::TensorView* tensor = TRY(find(name, dims, {DType::kBf16}));
  if (tensor == nullptr) return std::optional<Table<kernels::Bf16>>();
  return std::optional<Table<kernels::Bf16>>(
      {dims_of(*tensor),
       converted<kernels::Bf16, kernels::Bf16>(*tensor, [](kernels::Bf16 v) { return v; })});
}

Result<std::optional<Table<int64_t>>> GoldenFile::integers(std::string_view name,
                                                           const Dims& dims) const {
  const model::TensorView* tensor =
      TRY(find(name, dims, {DType::kU8, DType::kI8, DType::kI16, DType::kI32, DType::kI64}));
  if (tensor == nullptr) return std::optional<Table<int64_t>>();
  Table<int64_t> table{dims_of(*tensor), {}};
  const auto widen = [](auto v) { return static_cast<int64_t>(v); };
  switch (tensor->dtype) {
    case DType::kU8:
      table.values = converted<uint8_t, int64_t>(*tensor, widen);
      break;
    case DType::kI8:
      table.values = converted<int8_t, int64_t>(*tensor, widen);
      break;
    case DType::kI16:
      table.values = converted<int16_t, int64_t>(*tensor, widen);
      break;
    case DType::kI32:
      table.values = converted<int32_t, int64_t>(*tensor, widen);
      break;
    default:
      table.values = converted<int64_t, int64_t>(*tensor, widen);
      break;
  }
  return std::optional<Table<int64_t>>(std::move(table));
}

Result<std::optional<Table<uint8_t>>> GoldenFile::bytes(std::string_view name,
                                                        const Dims& dims) const {
  const model::TensorView* tensor =
      TRY(find(name, dims, {DType::kU8, DType::kI8, DType::kF8E4M3, DType::kF8E8M0}));
  if (tensor == nullptr) return std::optional<Table<uint8_t>>();
  return std::optional<Table<uint8_t>>(
      {dims_of(*tensor), converted<uint8_t, uint8_t>(*tensor, [](uint8_t v) { return v; })});
}

const GoldenCase* Golden::text_case(int64_t length) const {
  for (const GoldenCase& one : cases) {
    if (!one.is_image() && static_cast<int64_t>(one.tokens.size()) == length) return &one;
  }
  return nullptr;
}

bool is_golden_model(const std::string& directory) {
  return is_directory(directory + "/checkpoint") || is_directory(directory + "/expected");
}

bool is_golden_units(const std::string& directory) {
  return exists(directory + "/units.safetensors");
}

Result<Golden> open_golden(const std::string& directory) {
  for (const char* part : {"/checkpoint", "/expected"}) {
    if (!is_directory(directory + part)) {
      return Error{ErrorCode::kNotFound, directory + part + ": no such directory"};
    }
  }
  const std::string path = directory + "/expected/cases.json";
  const std::string text = TRY(read_file(path, kCasesBytesMax));
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object()) return bad(path, "not a JSON object");
  const auto list = root.find("cases");
  if (list == root.end() || !list->is_array() || list->empty()) {
    return bad(path, "cases is missing or empty");
  }
  std::vector<GoldenCase> cases;
  for (size_t i = 0; i < list->size(); ++i) {
    cases.push_back(TRY(parse_case((*list)[i], path, i)));
  }
  std::vector<int64_t> trace_lengths;
  if (root.contains("trace_cases")) {
    for (const int32_t length : TRY(integer_list(root, "trace_cases", path, "top level"))) {
      trace_lengths.push_back(length);
    }
  }
  GoldenFile expected = TRY(GoldenFile::open(directory + "/expected/expected.safetensors"));
  std::optional<GoldenFile> trace;
  if (!trace_lengths.empty()) {
    trace = TRY(GoldenFile::open(directory + "/expected/trace.safetensors"));
  }
  // "." and "x/" have no last component of their own.
  std::error_code ignored;
  const auto absolute = std::filesystem::weakly_canonical(directory, ignored);
  return Golden{directory,        absolute.filename().string(), string_or_empty(root, "model"),
                std::move(cases), std::move(trace_lengths),     std::move(expected),
                std::move(trace)};
}

}  // namespace galley::verify
