// A reader of golden safetensors files for tests, and the comparisons their
// limits are stated in.
//
// Trusts its input: the files lie in this repository. The engine's reader is
// model/safetensors.h. Remembers which tensors were asked for, so that a test can
// show it left none out.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/tensor.h"

namespace galley::golden {

// A tensor copied out of the file.
struct Tensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;

  int64_t dim(size_t axis) const { return shape.at(axis); }

  template <class T>
  std::vector<T> values() const {
    CHECK(bytes.size() % sizeof(T) == 0);
    std::vector<T> result(bytes.size() / sizeof(T));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
  std::vector<float> f32() const { return values<float>(); }
  std::vector<kernels::Bf16> bf16() const { return values<kernels::Bf16>(); }
};

class File {
 public:
  explicit File(const std::string& path);

  const Tensor& operator[](const std::string& name);
  // Names nobody asked for.
  std::set<std::string> unread() const;

 private:
  std::map<std::string, Tensor> tensors_;
  std::set<std::string> unread_;
};

// Each reports one gtest failure with the worst element, or none.
void expect_bytes(const std::string& what, const std::vector<uint8_t>& actual,
                  const std::vector<uint8_t>& expected);
void expect_relative(const std::string& what, const std::vector<float>& actual,
                     const std::vector<float>& expected, double relative, double absolute = 0.0);
// Equal or one bf16 ulp, at most `share_max` of the elements differing.
void expect_bf16(const std::string& what, const std::vector<kernels::Bf16>& actual,
                 const std::vector<kernels::Bf16>& expected, double share_max = 0.01);

}  // namespace galley::golden
