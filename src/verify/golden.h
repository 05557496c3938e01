// A golden model directory as its README describes it: checkpoint/ beside
// expected/, opened and its case list parsed.
//
// Tensors are handed out as copied vectors, checked for dtype and shape: a
// tensor that is missing is an absent optional, one of the wrong dtype or shape
// is an error that names file and tensor. Knows nothing of how they are judged.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/tensor.h"
#include "model/safetensors.h"

namespace galley::verify {

struct GoldenCase {
  std::string name;  // prefix of its tensors
  std::vector<int32_t> tokens;
  std::vector<int32_t> token_types;  // image case: -1 text, 0..3 inside a span; empty for text
  std::vector<std::string> fields;   // which tensors cases.json promises
  int32_t draft_steps = 0;
  bool is_image() const { return !token_types.empty(); }
};

// What a tensor's shape must be; kAny leaves a dimension free.
inline constexpr int64_t kAny = -1;
using Dims = std::vector<int64_t>;

// A tensor widened to one type; rows x cols is its first dimension by the rest.
template <class T>
struct Table {
  Dims dims;
  std::vector<T> values;

  int64_t rows() const { return dims.empty() ? 1 : dims.front(); }
  int64_t cols() const { return rows() == 0 ? 0 : static_cast<int64_t>(values.size()) / rows(); }
  const T* row(int64_t index) const { return values.data() + index * cols(); }
  kernels::Rows<const T> view() const { return {values.data(), rows(), cols()}; }
};

// One safetensors file of expected values. Absent tensors are std::nullopt.
class GoldenFile {
 public:
  static Result<GoldenFile> open(const std::string& path);

  bool has(std::string_view name) const { return file_.find(name) != nullptr; }
  // F32, BF16: widened to f32.
  Result<std::optional<Table<float>>> floats(std::string_view name, const Dims& dims) const;
  // BF16 as stored.
  Result<std::optional<Table<kernels::Bf16>>> bf16(std::string_view name, const Dims& dims) const;
  // U8, I16, I32, I64: widened to int64.
  Result<std::optional<Table<int64_t>>> integers(std::string_view name, const Dims& dims) const;
  // U8, I8, F8: the stored bytes.
  Result<std::optional<Table<uint8_t>>> bytes(std::string_view name, const Dims& dims) const;
  const std::string& path() const { return file_.path(); }
  const model::NameMap<model::TensorView>& tensors() const { return file_.tensors(); }

 private:
  explicit GoldenFile(model::SafetensorsFile file) : file_(std::move(file)) {}
  // Null when absent; an error unless the dtype is one of `dtypes` and the shape fits.
  Result<const model::TensorView*> find(std::string_view name, const Dims& dims,
                                        std::initializer_list<model::DType> dtypes) const;

  model::SafetensorsFile file_;
};

struct Golden {
  std::string directory;
  std::string name;   // the directory's own name
  std::string model;  // as cases.json calls it
  std::vector<GoldenCase> cases;
  std::vector<int64_t> trace_lengths;
  GoldenFile expected;
  std::optional<GoldenFile> trace;

  std::string checkpoint() const { return directory + "/checkpoint"; }
  // The text case of `length` tokens, or null.
  const GoldenCase* text_case(int64_t length) const;
};

// Whether `directory` has the two folders of a golden model.
bool is_golden_model(const std::string& directory);
// Whether it holds units.safetensors.
bool is_golden_units(const std::string& directory);

Result<Golden> open_golden(const std::string& directory);

}  // namespace galley::verify
