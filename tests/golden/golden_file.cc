#include "golden_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "kernels/number_formats.h"

namespace galley::golden {
namespace {

// bf16 bits as an integer that grows with the value, both zeros equal.
int32_t order_of(kernels::Bf16 value) {
  const int32_t magnitude = value.bits & 0x7FFF;
  return (value.bits & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace

File::File(const std::string& path) {
  const MappedFile file = MappedFile::open(path).value();
  const auto* bytes = reinterpret_cast<const uint8_t*>(file.bytes().data());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes, sizeof(header_bytes));
  CHECK(header_bytes + 8 <= file.bytes().size());
  const auto header = nlohmann::json::parse(bytes + 8, bytes + 8 + header_bytes);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = 8 + header_bytes + entry["data_offsets"][0].get<uint64_t>();
    const uint64_t end = 8 + header_bytes + entry["data_offsets"][1].get<uint64_t>();
    CHECK(begin <= end && end <= file.bytes().size());
    tensors_[name] = {entry["dtype"], entry["shape"], {bytes + begin, bytes + end}};
    unread_.insert(name);
  }
}

const Tensor& File::operator[](const std::string& name) {
  unread_.erase(name);
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) ADD_FAILURE() << "no tensor " << name;
  CHECK(found != tensors_.end());
  return found->second;
}

std::set<std::string> File::unread() const { return unread_; }

void expect_bytes(const std::string& what, const std::vector<uint8_t>& actual,
                  const std::vector<uint8_t>& expected) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  size_t differing = 0;
  size_t first = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] != expected[i] && differing++ == 0) first = i;
  }
  EXPECT_EQ(differing, 0U) << what << ": first at " << first << ", " << int{actual[first]}
                           << " instead of " << int{expected[first]};
}

void expect_relative(const std::string& what, const std::vector<float>& actual,
                     const std::vector<float>& expected, double relative, double absolute) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double worst = 0.0;  // times the limit
  size_t at = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    const double limit = relative * std::fabs(static_cast<double>(expected[i])) + absolute;
    const double excess =
        std::fabs(static_cast<double>(actual[i]) - static_cast<double>(expected[i])) / limit;
    if (!(excess <= worst)) {  // NaN is the worst
      worst = excess;
      at = i;
    }
  }
  EXPECT_LE(worst, 1.0) << what << ": element " << at << " is " << actual[at] << " instead of "
                        << expected[at];
}

void expect_bf16(const std::string& what, const std::vector<kernels::Bf16>& actual,
                 const std::vector<kernels::Bf16>& expected, double share_max) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  size_t differing = 0;
  int32_t worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const int32_t ulps = std::abs(order_of(actual[i]) - order_of(expected[i]));
    differing += ulps != 0;
    if (ulps > worst) {
      worst = ulps;
      at = i;
    }
  }
  EXPECT_LE(worst, 1) << what << ": element " << at << " is " << kernels::to_f32(actual[at])
                      << " instead of " << kernels::to_f32(expected[at]);
  EXPECT_LE(static_cast<double>(differing), share_max * static_cast<double>(actual.size())) << what;
}

}  // namespace galley::golden
