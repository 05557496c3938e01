// Lines of any shape come back with their numbers and offsets, in bounded memory.
#include "base/line_reader.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/file.h"

namespace galley {
namespace {

struct Seen {
  std::string text;
  int64_t begin;
  bool too_long;
  bool ended;
};

std::vector<Seen> read_all(const std::string& content, size_t line_bytes_max = 100) {
  const std::string path = testing::TempDir() + "line_reader_test.txt";
  EXPECT_TRUE(write_file_atomic(path, content).has_value());
  LineReader reader = LineReader::open(path, line_bytes_max).value();
  std::vector<Seen> seen;
  while (true) {
    const std::optional<Line> line = reader.next().value();
    if (!line) break;
    EXPECT_EQ(line->number, static_cast<int64_t>(seen.size()) + 1);
    seen.push_back({std::string(line->text), line->begin, line->too_long, line->ended});
  }
  EXPECT_EQ(count_lines(path).value(), static_cast<int64_t>(seen.size()));
  return seen;
}

TEST(LineReader, EndsOfLinesAndFiles) {
  EXPECT_TRUE(read_all("").empty());
  const std::vector<Seen> seen = read_all("a\n\nb\r\nc");
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_EQ(seen[0].text, "a");
  EXPECT_EQ(seen[1].text, "");
  EXPECT_EQ(seen[2].text, "b");
  EXPECT_EQ(seen[2].begin, 3);
  EXPECT_TRUE(seen[2].ended);
  EXPECT_EQ(seen[3].text, "c");
  EXPECT_EQ(seen[3].begin, 6);
  EXPECT_FALSE(seen[3].ended);
}

TEST(LineReader, LongLinesAreCutAndTheNextOnesAreWhole) {
  const std::string huge(3000000, 'x');
  const std::vector<Seen> seen = read_all("one\n" + huge + "\ntwo\n" + huge, 1000);
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_FALSE(seen[0].too_long);
  EXPECT_TRUE(seen[1].too_long);
  EXPECT_EQ(seen[2].text, "two");
  EXPECT_EQ(seen[2].begin, 4 + 3000001);
  EXPECT_TRUE(seen[3].too_long);
  EXPECT_FALSE(seen[3].ended);
}

TEST(LineReader, ManyLinesAcrossReads) {
  std::string content;
  for (int i = 0; i < 100000; ++i) content += std::to_string(i * 7) + "\n";
  const std::vector<Seen> seen = read_all(content);
  ASSERT_EQ(seen.size(), 100000U);
  for (int i = 0; i < 100000; ++i) ASSERT_EQ(seen[i].text, std::to_string(i * 7));
}

TEST(LineReader, MissingFile) {
  EXPECT_EQ(LineReader::open("/nonexistent/file", 10).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(count_lines("/nonexistent/file").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace galley
