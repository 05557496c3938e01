// Shows that the header parser accepts the format and answers everything else
// with one line: each case changes one thing of a right file.
#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/file.h"

namespace galley::model {
namespace {

std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\0');
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string error_of(const std::string& file) {
  const auto entries = parse_safetensors(bytes_of(file));
  return entries ? "" : entries.error().message;
}

const char* const kTwo = R"({"__metadata__":{"format":"pt"},)"
                         R"("b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                         R"("a":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})";

TEST(Safetensors, ReadsEntriesInByteOrder) {
  const std::string file = file_of(kTwo, 10);
  const auto entries = parse_safetensors(bytes_of(file));
  ASSERT_TRUE(entries) << entries.error().message;
  ASSERT_EQ(entries->size(), 2U);
  EXPECT_EQ((*entries)[0].name, "b");
  EXPECT_EQ((*entries)[0].shape, (Shape{2, 1}));
  EXPECT_EQ((*entries)[0].dtype, DType::kF32);
  EXPECT_EQ((*entries)[1].shape.rank, 0);
  EXPECT_EQ((*entries)[1].end, file.size());
}

TEST(Safetensors, AcceptsNothingAndEmptyTensors) {
  EXPECT_EQ(error_of(file_of("{}", 0)), "");
  EXPECT_EQ(error_of(file_of(R"({"a":{"dtype":"U8","shape":[0,5],"data_offsets":[0,0]}})", 0)), "");
}

TEST(Safetensors, RefusesTruncation) {
  const std::string file = file_of(kTwo, 10);
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_NE(error_of(file.substr(0, length)), "") << length;
  }
  EXPECT_EQ(error_of(file_of(kTwo, 9)).find("tensor \"a\": ends at byte "), 0U);
}

TEST(Safetensors, RefusesAHeaderLongerThanTheFile) {
  std::string file = file_of(kTwo, 10);
  for (const uint64_t length : {uint64_t{1000}, uint64_t{1} << 40, UINT64_MAX}) {
    std::memcpy(file.data(), &length, 8);
    EXPECT_EQ(error_of(file).find("header of " + std::to_string(length) + " bytes in a file of "),
              0U);
  }
}

TEST(Safetensors, RefusesOverlapGapAndTail) {
  const auto two = [](const char* first, const char* second, size_t bytes) {
    return error_of(file_of(std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") +
                                first + R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" +
                                second + "}}",
                            bytes));
  };
  EXPECT_EQ(two("[0,4]", "[4,8]", 8), "");
  EXPECT_EQ(two("[0,4]", "[3,7]", 7), "tensors \"a\" and \"b\" overlap");
  EXPECT_EQ(two("[0,4]", "[0,4]", 4), "tensors \"a\" and \"b\" overlap");
  EXPECT_EQ(two("[0,4]", "[5,9]", 9), "tensor \"b\" leaves a gap of 1 bytes before it");
  EXPECT_EQ(two("[0,4]", "[4,8]", 11), "3 bytes after the last tensor");
  EXPECT_NE(two("[0,4]", "[18446744073709551612,18446744073709551615]", 8), "");
  EXPECT_NE(two("[4,0]", "[4,8]", 8), "");
  EXPECT_NE(two("[0,-4]", "[4,8]", 8), "");
  EXPECT_NE(two("[0,4,8]", "[4,8]", 8), "");
}

TEST(Safetensors, RefusesWhatDoesNotAddUp) {
  const auto one = [](const char* entry) {
    return error_of(file_of(std::string("{\"t\":") + entry + "}", 8));
  };
  EXPECT_EQ(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
            "tensor \"t\": F32 [3] takes 12 bytes, its offsets span 8");
  EXPECT_EQ(one(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})"),
            "tensor \"t\": unknown dtype \"F31\"");
  EXPECT_EQ(one(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
            "tensor \"t\": shape [4294967296, 4294967296] overflows");
  for (const char* entry :
       {R"({"dtype":"U8","shape":[-8],"data_offsets":[0,8]})", R"({"dtype":"U8","shape":[8]})",
        R"({"dtype":"U8","shape":8,"data_offsets":[0,8]})", "[]", "null",
        R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]})",
        R"({"dtype":"U8","shape":[8.0],"data_offsets":[0,8]})"}) {
    const std::string message = one(entry);
    EXPECT_EQ(message.find("tensor \"t\": "), 0U) << entry << message;
  }
}

TEST(Safetensors, RefusesANameTwice) {
  EXPECT_EQ(error_of(file_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                             2)),
            "tensor \"t\" is named twice");
}

TEST(Safetensors, RefusesWhatIsNotUtf8OrJson) {
  EXPECT_EQ(error_of(file_of("{\"\xC3\x28\":{}}", 0)), "header is not UTF-8");
  for (const char* header : {"", "[]", "{", "{\"a\":}", "nonsense", "{}{}"}) {
    EXPECT_EQ(error_of(file_of(header, 0)).find("header is not"), 0U) << header;
  }
  const std::string deep = "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(error_of(file_of(deep, 0)).find("header is not valid JSON"), 0U);
}

TEST(Safetensors, ReadsTheIndex) {
  const auto places = parse_safetensors_index(
      R"({"metadata":{"total_size":1},"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  ASSERT_TRUE(places) << places.error().message;
  EXPECT_EQ((*places)[1].second, "s2.safetensors");
  for (const char* index :
       {"{}", "[]", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"../s"}})", R"({"weight_map":{"a":"/etc/passwd"}})",
        R"({"weight_map":{"a":""}})", R"({"weight_map":{"a":".."}})"}) {
    EXPECT_FALSE(parse_safetensors_index(index)) << index;
  }
}

TEST(Safetensors, MapsAFile) {
  const std::string path = testing::TempDir() + "galley_safetensors_test.safetensors";
  ASSERT_TRUE(write_file_atomic(path, file_of(kTwo, 10)));
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->tensor("b")->size_bytes, 8U);
  EXPECT_EQ(file->tensor("c").error().message, path + ": no tensor \"c\"");
}

}  // namespace
}  // namespace galley::model
