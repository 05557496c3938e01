// JSON as Python writes it: expectations are the output of json.dumps(value, ensure_ascii=False).
#include "serve/python_json.h"

#include <gtest/gtest.h>

namespace galley::serve {
namespace {

std::string rewritten(std::string_view json) {
  JsonLimits limits;
  limits.keep_order = true;
  return python_json(JsonDocument::parse(json, limits).value().root());
}

TEST(PythonJson, SpacesAndOrder) {
  EXPECT_EQ(rewritten(R"({"b":[1,-2,{}],"a":{"y":null,"x":[true,false,[]]}})"),
            R"({"b": [1, -2, {}], "a": {"y": null, "x": [true, false, []]}})");
}

TEST(PythonJson, Numbers) {
  EXPECT_EQ(rewritten("[1.0, 1e-5, 0.0001, 1e15, 1e16, 123456789.125, 1e100, -0.0, 0.1, 5e-324]"),
            "[1.0, 1e-05, 0.0001, 1000000000000000.0, 1e+16, 123456789.125, 1e+100, -0.0, 0.1, "
            "5e-324]");
  EXPECT_EQ(rewritten("[18446744073709551615, -9223372036854775808]"),
            "[18446744073709551615, -9223372036854775808]");
}

TEST(PythonJson, Strings) {
  EXPECT_EQ(rewritten(R"(["\u00e9\u4e2d\/", "\"\\\b\f\n\r\t\u0001\u007f"])"),
            "[\"é中/\", \"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\x7f\"]");
}

}  // namespace
}  // namespace galley::serve
