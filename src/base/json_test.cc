// Shows that bad JSON is one error and never a crash, that limits hold, and
// that a field's error names its dotted path.
#include "base/json.h"

#include <gtest/gtest.h>

#include <string>

namespace galley {
namespace {

std::string parse_error(std::string_view text, const JsonLimits& limits = {}) {
  const auto document = JsonDocument::parse(text, limits);
  return document ? "" : document.error().message;
}

TEST(Json, ReadsTypedFields) {
  const auto document = JsonDocument::parse(
      R"({"a": {"b": [1, -2, 9223372036854775807]}, "f": 1e-20, "t": true, "s": "\u00e9"})");
  ASSERT_TRUE(document);
  const JsonValue root = document->root();
  const JsonValue list = *(*root.at("a")).at("b");
  EXPECT_EQ(list.path(), "a.b");
  EXPECT_EQ(*list.as_integers(-2, INT64_MAX), (std::vector<int64_t>{1, -2, INT64_MAX}));
  EXPECT_EQ(*(*root.at("f")).as_number(), 1e-20);
  EXPECT_TRUE(*(*root.at("t")).as_bool());
  EXPECT_EQ(*(*root.at("s")).as_string(), "\xC3\xA9");
  EXPECT_FALSE(root.find("absent").has_value());
}

TEST(Json, ManySmallValuesAreRefusedBeforeTheyAreMade) {
  JsonLimits limits;
  limits.tree_bytes_max = size_t{1} << 20;
  std::string numbers = "[0";
  for (int i = 0; i < 100'000; ++i) numbers += ",0";
  std::string arrays = "[[]";
  for (int i = 0; i < 100'000; ++i) arrays += ",[]";
  std::string keys = R"({"k":0)";
  for (int i = 0; i < 10'000; ++i) keys += ",\"k" + std::to_string(i) + "\":0";
  for (const std::string& text : {numbers + "]", arrays + "]", keys + "}"}) {
    EXPECT_NE(parse_error(text, limits).find("too many values"), std::string::npos);
    EXPECT_EQ(parse_error(text), "");
  }
  // What stands in strings is no mark.
  EXPECT_EQ(parse_error("[\"" + std::string(500'000, ',') + "\\\"{\"]", limits), "");
}

TEST(Json, ErrorsNameThePath) {
  const auto document =
      JsonDocument::parse(R"({"a": {"b": [1, "x"], "c": 1.5, "u": 18446744073709551615}})");
  ASSERT_TRUE(document);
  const JsonValue a = *document->root().at("a");
  EXPECT_EQ(a.at("z").error().message, "a.z: missing");
  EXPECT_EQ((*a.at("b")).as_integers(0, 9).error().message,
            "a.b[1]: must be an integer, is a string");
  EXPECT_EQ((*a.at("c")).as_integer().error().message, "a.c: must be an integer, is a number");
  EXPECT_EQ((*a.at("u")).as_integer().error().message.substr(0, 18), "a.u: must lie in -");
  EXPECT_EQ((*a.at("c")).at("d").error().message, "a.c: is a number, not an object");
}

TEST(Json, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":}", "nul", "{} x", "\"\\ud800\"", "[1e999]"}) {
    EXPECT_NE(parse_error(text), "") << text;
  }
  EXPECT_EQ(parse_error("{\"a\": \"\xFF\"}"), "not valid JSON at byte 8: not UTF-8");
}

TEST(Json, HoldsItsLimits) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(parse_error(deep), "JSON nested deeper than 64 levels");
  EXPECT_EQ(parse_error("[\"]]]]\\\"[[[[[\"]", {.depth_max = 1}), "");
  EXPECT_NE(parse_error("[1, 2]", {.bytes_max = 3}), "");
}

TEST(Json, FindsRepeatedKeysWhereAsked) {
  const char* text = R"({"a": {"x": 1}, "b": {"x": 1, "x": 2}})";
  EXPECT_EQ(parse_error(text), "");
  EXPECT_EQ(parse_error(text, {.unique_keys = true}), "the key \"x\" appears twice in one object");
  const std::string name = "a\\n" + std::string(1000, 'b');
  EXPECT_EQ(parse_error("{\"" + name + "\":1,\"" + name + "\":2}", {.unique_keys = true}),
            "the key \"" + name.substr(0, 65) + "...\" appears twice in one object");
}

TEST(Json, KeepsTheOrderOfKeys) {
  JsonLimits limits;
  limits.keep_order = true;
  const char* text = R"({"z": [{"b": {"y": 1, "x": 2}, "a": {}}, {"d": 0, "c": {"f": 1, "e": 2}}],
                        "a": {"k": {}, "j": 1}})";
  const auto document = JsonDocument::parse(text, limits);
  ASSERT_TRUE(document);
  using Keys = std::vector<std::string>;
  const JsonValue root = document->root();
  EXPECT_EQ(root.keys(), (Keys{"z", "a"}));
  const JsonValue list = *root.at("z");
  EXPECT_EQ(list.item(0).keys(), (Keys{"b", "a"}));
  EXPECT_EQ((*list.item(0).at("b")).keys(), (Keys{"y", "x"}));
  EXPECT_EQ((*list.item(0).at("a")).keys(), (Keys{}));
  EXPECT_EQ((*list.item(1).at("c")).keys(), (Keys{"f", "e"}));
  EXPECT_EQ((*root.at("a")).keys(), (Keys{"k", "j"}));
  EXPECT_EQ(JsonDocument::parse(text)->root().keys(), (Keys{"a", "z"}));
  EXPECT_NE(parse_error(R"({"a": 1, "a": 2})", limits), "");
}

}  // namespace
}  // namespace galley
