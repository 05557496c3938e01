// Shows that DeepSeek's full vocabulary gives the ids that spec/chat.md lists,
// and its 99,092 Engram classes (spec/model.md 6.1).
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "model/compressed_ids.h"
#include "model/deepseek_test_vocabulary.h"
#include "model/tokenizer.h"

namespace galley::model {
namespace {

struct Vector {
  const char* text;
  std::vector<int32_t> ids;
};

// The table of spec/chat.md 7, "Text -> ids".
const std::vector<Vector>& active_vectors() {
  static const std::vector<Vector> kVectors = {
      {"Hello, world!", {19923, 14, 2058, 3}},
      {"I'm sure it's fine; they're not, and we've all heard it.",
       {43, 4571, 3645, 436, 734, 8209, 29, 851, 4750, 554, 14, 305, 579, 5270, 710, 7431, 436,
        16}},
      {"你好，世界！", {30594, 303, 3427, 1175}},
      {"東京タワーは333mです", {66771, 11767, 37560, 4045, 2841, 11722, 79, 8262}},
      {"안녕하세요 세계", {31404, 11939, 246, 4567, 73527, 76878}},
      {"ｶﾀｶﾅﾊﾝｶｸ",
       {5879, 117, 55241, 225, 5879, 117, 55241, 230, 55241, 235, 55241, 254, 5879, 117, 5879,
        119}},
      {"😀🎉🚀", {28927, 225, 53153, 234, 74287, 225}},
      {"1234567890", {6895, 18009, 25744, 18}},
      {"12 345 6789", {736, 223, 18014, 223, 27183, 27}},
      {"½ Ⅷ ⅓", {23951, 223, 23603, 103, 223, 23603, 244}},
      {"٢٠٢٤", {76647, 82025, 76647, 152, 100}},
      {"v1.2.3-beta.4", {88, 19, 16, 20, 16, 21, 97024, 16, 22}},
      {"a(b)c", {67, 7011, 102330}},
      {"def f(x):\n    return x + 1", {3465, 285, 4042, 3395, 361, 1354, 1527, 940, 223, 19}},
      {"if (a && b) { c = d ?? e; }",
       {394, 343, 67, 6546, 291, 11, 680, 274, 438, 283, 35800, 312, 29, 837}},
      {"https://example.com/path?q=1&r=2#frag",
       {5395, 2272, 30357, 2193, 9391, 901, 33, 83, 31, 19, 8, 84, 31, 20, 5, 72, 3174}},
      {"a  b", {67, 223, 291}},
      {"  leading", {223, 6646}},
      {"trailing   ", {19660, 7400, 361}},
      {"a\r\nb", {67, 204, 201, 68}},
      {"\u3000\u3000", {36759}},
      {"a\u0085b", {67, 129, 230, 68}},
      {"x\u00A0y", {90, 2162, 91}},
      {"a\u200Db", {67, 46088, 68}},
      {".foo bar-baz", {4658, 6379, 4758, 1761, 1521}},
      {"１２３４５", {127167, 25081, 33095, 31953}},
      {"🦀", {3574, 102, 225}},
      {"x\n \n\ny", {90, 201, 1004, 91}},
      {" \n", {539}},
      {"\n\n", {271}},
      {"<｜DSML｜ calls>", {30, 128825, 10699, 32}},
      {"</｜DSML｜ calls>", {1718, 128825, 10699, 32}},
      {"<｜DSML｜ invoke name=\"", {30, 128825, 34756, 2329, 1281}},
      {"</｜DSML｜ invoke>", {1718, 128825, 34756, 32}},
      {"<｜DSML｜ parameter name=\"city\" string=\"true\">Paris</｜DSML｜ parameter>",
       {30, 128825, 10767, 2329, 1281, 37399, 4, 3418, 1281, 11476, 3320, 51119, 1718, 128825,
        10767, 32}},
      {"<tool_result>", {30, 72461, 46148, 32}},
      {"</tool_result>", {1718, 72461, 46148, 32}},
      {"<image>", {30, 10253, 32}},
  };
  return kVectors;
}

const std::vector<Vector>& plain_vectors() {
  static const std::vector<Vector> kVectors = {
      {"<｜User｜>", {30, 28217, 6756, 28217, 32}},
      {"｜DSML｜", {28217, 10525, 7398, 28217}},
      {"</think>", {1718, 37947, 32}},
  };
  return kVectors;
}

// Wire constants of spec/chat.md 3, given there as ids with the SHA-256 of their text.
const std::vector<int32_t> kToolsHead = {
    372,   27193,  271,   3476,   611,   3278,   304,   260,    1341,   294,  6704,   304,   1694,
    3287,  270,    3967,  734,    3417,  16,     2042,  588,    34756,  6704, 513,    4985,  260,
    38322, 128825, 10699, 48902,  5603,  1277,   270,   2502,   979,    30,   128825, 10699, 1018,
    30,    128825, 34756, 2329,   84476, 6792,   5896,  35044,  3816,   30,   128825, 10767, 2329,
    84476, 46630,  4130,  61729,  35044, 4,      3418,  1281,   11476,  94,   19836,  3320,  6,
    46630, 4130,   61729, 56909,  1718,  128825, 10767, 1018,   7835,   1718, 128825, 34756, 1018,
    30,    128825, 34756, 2329,   84476, 6792,   5896,  35044,  20,     3816, 7835,   1718,  128825,
    34756, 1018,   1718,  128825, 10699, 4697,   3524,  8252,   1531,   366,  12038,  412,   344,
    305,   1341,   3608,  4463,   1281,  11476,  4,     37419,  1884,   710,  915,    4815,  343,
    62896, 14,     2631,  2065,   634,   14,     31939, 14,     8435,   754,  2281,   270,   1990,
    295,   26639,  8786,  305,    1341,  3608,   4463,  1281,   19836,  4,    108526, 3575,  6892,
    71144, 344,    22104, 343,    89944, 284,    513,   223,    128821, 754,  440,    74366, 5238,
    782,   5553,   22805, 6352,   223,   128821, 1613,  128822, 119907, 1117, 4105,   10699, 469,
    4087,  4256,   339,   13079,  6922,  14,     5238,  6578,   1561,   223,  128822, 418,   4105,
    10699, 469,    4087,  4256,   339,   795,    17829, 28249,  13178,  8380, 271};
const std::vector<int32_t> kToolsTail = {271,  3476,  74366, 29851, 1605,  270,  3554,
                                         6428, 4105,  2329,  305,   10767, 5815, 8380,
                                         304,  34756, 4105,  10699, 603};

class DeepSeekVocabulary : public testing::Test {
 protected:
  static void SetUpTestSuite() { tokenizer_ = open_deepseek_vocabulary(); }
  static void TearDownTestSuite() { tokenizer_.reset(); }
  void SetUp() override {
    if (tokenizer_ == nullptr) GTEST_SKIP() << "the npm vocabulary is not installed: ./dev setup";
  }

  static std::unique_ptr<Tokenizer> tokenizer_;
};

std::unique_ptr<Tokenizer> DeepSeekVocabulary::tokenizer_;

TEST_F(DeepSeekVocabulary, HasTheReleasedSize) {
  EXPECT_EQ(tokenizer_->vocab_size(), 129'280);
  EXPECT_EQ(tokenizer_->added_tokens().size(), 1283U);
  EXPECT_EQ(*tokenizer_->added_id("<｜deepseek_image｜>"), 129'264);
  EXPECT_EQ(*tokenizer_->added_id("｜DSML｜"), 128'825);
}

TEST_F(DeepSeekVocabulary, GivesTheListedIds) {
  for (const Vector& vector : active_vectors()) {
    EXPECT_EQ(*tokenizer_->encode(vector.text, Markup::kActive), vector.ids) << vector.text;
    EXPECT_EQ(*tokenizer_->decode(vector.ids), vector.text);
  }
  for (const Vector& vector : plain_vectors()) {
    EXPECT_EQ(*tokenizer_->encode(vector.text, Markup::kPlain), vector.ids) << vector.text;
  }
}

TEST_F(DeepSeekVocabulary, SplitsAsListed) {
  const std::vector<std::string_view> expected = {"Hello",  ",",  " it",  "'s", " ",
                                                  "123",    "45", "元",   " (", "ok",
                                                  ")!\n\n", "  ", "中文", " .", "foo"};
  EXPECT_EQ(*tokenizer_->split("Hello, it's 12345元 (ok)!\n\n  中文 .foo"), expected);
}

TEST_F(DeepSeekVocabulary, ReadsTheToolConstants) {
  const std::string head = *tokenizer_->decode(kToolsHead);
  EXPECT_EQ(sha256_of(head), "2ae2ff83edf990187ed419c4e2901bb9ea6ce2129eb503ac543b258e7de8231d");
  EXPECT_EQ(*tokenizer_->encode(head, Markup::kActive), kToolsHead);
  const std::string tail = *tokenizer_->decode(kToolsTail);
  EXPECT_EQ(sha256_of(tail), "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7");
}

TEST_F(DeepSeekVocabulary, HasTheReleasedClasses) {
  const auto ids = compressed_ids(*tokenizer_, 129'280, 99'092);
  ASSERT_TRUE(ids) << ids.error().message;
  std::string bytes(ids->class_of.size() * 4, '\0');
  for (size_t i = 0; i < ids->class_of.size(); ++i) {
    for (size_t byte = 0; byte < 4; ++byte) {
      bytes[4 * i + byte] = static_cast<char>(ids->class_of[i] >> (8 * byte));
    }
  }
  EXPECT_EQ(sha256_of(bytes), "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481");
}

}  // namespace
}  // namespace galley::model
