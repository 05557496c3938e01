// What a device must hold is said before anything is taken, in one line that names what would fit.
#include "model/device_room.h"

#include <gtest/gtest.h>

#include <string>

namespace galley::model {
namespace {

constexpr int64_t kGb = 1'000'000'000;
constexpr int64_t kDriver = int64_t{256} << 20;

DeviceNeeds needs() {
  DeviceNeeds made;
  made.weights = 100 * kGb;
  made.page = 100'000;
  made.slot = 5'000'000;
  made.workspace = 3 * kGb;
  made.counts = {.page_count = 80'000, .slot_count = 32};
  made.page_tokens = 128;
  return made;
}

std::string refusal(int64_t free_bytes) {
  const auto checked = check_device_room(needs(), free_bytes);
  if (checked) return "";
  EXPECT_EQ(checked.error().code, ErrorCode::kExhausted);
  return checked.error().message;
}

TEST(DeviceRoom, SaysWhatWouldFit) {
  const int64_t all = 100 * kGb + 8 * kGb + 160'000'000 + 3 * kGb;
  EXPECT_EQ(needs().total(), all);
  EXPECT_EQ(refusal(all + kDriver), "");
  // Ten thousand pages less.
  const std::string context = refusal(all + kDriver - kGb);
  EXPECT_NE(
      context.find("weights 100.00 GB, 80000 pages 8.00 GB, 32 slots 0.16 GB, workspace 3.00"),
      std::string::npos)
      << context;
  EXPECT_NE(context.find("a shorter context fits: 8960000 tokens of all sequences together "
                         "instead of 10240000"),
            std::string::npos)
      << context;
  EXPECT_NE(refusal(102 * kGb).find("fewer sequences or fewer rows"), std::string::npos);
  EXPECT_NE(refusal(80 * kGb).find("the weights alone are too large"), std::string::npos);
  EXPECT_EQ(refusal(80 * kGb).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace galley::model
