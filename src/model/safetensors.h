// The safetensors container: a length, a JSON header, the tensors' bytes.
//
// The header parser is a plain function over bytes. Files are mapped and
// nothing is copied: a TensorView points into the mapping of its file. Knows
// nothing of which tensors a model has (model/checkpoint.h does).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace galley::model {

// Element types by their names in the header.
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,  // in this model: two packed E2M1 codes
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

std::string_view dtype_name(DType dtype);  // "F8_E4M3"
std::optional<DType> dtype_from_name(std::string_view name);
int64_t dtype_bytes(DType dtype);  // of one element

// Dimensions of a tensor, outermost first.
struct Shape {
  static constexpr int32_t kRankMax = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  int32_t rank = 0;
  std::array<int64_t, kRankMax> dims = {};

  int64_t operator[](int32_t axis) const { return dims[static_cast<size_t>(axis)]; }
  int64_t elements() const;  // never overflows for a parsed or expected shape
  std::string text() const;  // "[24, 512]"
  bool operator==(const Shape& other) const = default;
};

// A tensor inside a mapped file.
struct TensorView {
  DType dtype = DType::kU8;
  Shape shape;
  const std::byte* data = nullptr;  // aligned to the element size when it comes from a Checkpoint
  size_t size_bytes = 0;

  std::span<const std::byte> bytes() const { return {data, size_bytes}; }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
};

// One header entry; offsets count from the start of the file.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// What is in a file, in the order of its bytes. Proven: unique names, valid
// UTF-8, sizes that match shape and dtype, no overlap, no gap, and an end that
// is the file's end. Allocates in proportion to the header, at most 100 MB long.
Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file);

// Lets maps keyed by std::string be searched with a string_view.
struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
};
template <class T>
using NameMap = std::unordered_map<std::string, T, NameHash, std::equal_to<>>;

// The index of a sharded checkpoint: tensor name and the shard that holds it,
// in the index's order, plain file names only.
Result<std::vector<std::pair<std::string, std::string>>> parse_safetensors_index(
    std::string_view json);

// A whole mapped file.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const TensorView* find(std::string_view name) const;
  Result<TensorView> tensor(std::string_view name) const;  // the error names file and tensor
  const NameMap<TensorView>& tensors() const { return tensors_; }
  const std::string& path() const { return file_.path(); }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  NameMap<TensorView> tensors_;
};

}  // namespace galley::model
