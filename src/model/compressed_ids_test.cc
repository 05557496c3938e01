// Shows that the Engram classes agree with the goldens' maps, and that the
// config's class count is enforced.
#include "model/compressed_ids.h"

#include <gtest/gtest.h>

#include <string>

#include "model/safetensors.h"

namespace galley::model {
namespace {

std::string golden(const std::string& path) {
  return std::string(GALLEY_SOURCE_DIR) + "/tests/golden/" + path;
}

class GoldenClasses : public testing::TestWithParam<const char*> {};

TEST_P(GoldenClasses, Agree) {
  const std::string model = GetParam();
  const auto expected = SafetensorsFile::open(golden(model + "/expected/expected.safetensors"));
  ASSERT_TRUE(expected) << expected.error().message;
  const TensorView map = *expected->tensor("compressed_ids");
  ASSERT_EQ(map.dtype, DType::kI32);
  const auto tokenizer = Tokenizer::open(golden(model + "/checkpoint"));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto ids = compressed_ids(*tokenizer, 512, 387);
  ASSERT_TRUE(ids) << ids.error().message;
  ASSERT_EQ(map.shape.elements(), 512);
  for (size_t id = 0; id < 512; ++id) {
    EXPECT_EQ(ids->class_of[id], map.as<int32_t>()[id])
        << id << tokenizer->token_string(static_cast<int32_t>(id));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenClasses, testing::Values("g1-micro-text", "g2-micro-full"));

TEST(CompressedIds, RefusesAnotherCount) {
  const auto tokenizer = Tokenizer::open(golden("g1-micro-text/checkpoint"));
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(compressed_ids(*tokenizer, 512, 388).error().message,
            "tokenizer.json gives 387 Engram classes, text_config.engram_compressed_vocab_size "
            "is 388");
  EXPECT_EQ(compressed_ids(*tokenizer, 511, 387).error().message,
            "tokenizer.json has ids up to 511, text_config.vocab_size is 511");
}

TEST(CompressedIds, IdsThatNoTokenHasShareTheEmptyClass) {
  const auto tokenizer = Tokenizer::open(golden("g1-micro-text/checkpoint"));
  const auto ids = compressed_ids(*tokenizer, 520, 388);
  ASSERT_TRUE(ids) << ids.error().message;
  EXPECT_EQ(ids->class_of[512], 387);
  EXPECT_EQ(ids->class_of[519], 387);
}

}  // namespace
}  // namespace galley::model
