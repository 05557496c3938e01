// One event as text and as JSON: the id comes first, and nothing of a value ends its field.
#include "server/event_log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace galley::server {
namespace {

TEST(LogEvent, TheIdComesFirst) {
  LogEvent event("finished", "abc");
  event.add("status", 200).add_ms("ms", 1.25).add("finish", "stop");
  EXPECT_EQ(event.text(), "id=abc event=finished status=200 ms=1.2 finish=stop");
  EXPECT_EQ(event.json(), R"("id":"abc","event":"finished","status":200,"ms":1.2,"finish":"stop")");
}

TEST(LogEvent, ValuesStayInTheirFields) {
  for (const std::string& value :
       {std::string("a b"), std::string("a\"b"), std::string("a\\"), std::string("a=b\nevent=c"),
        std::string(""), std::string("\xff\x00x", 3), std::string(2000, 'x'),
        std::string(511, 'x') + "\u00e9"}) {
    LogEvent event("e");
    event.add("v", value).add("w", 1);
    const std::string text = event.text();
    EXPECT_EQ(text.find('\n'), std::string::npos);
    EXPECT_TRUE(text.starts_with("event=e v=") && text.ends_with(" w=1")) << text;
    EXPECT_LT(text.size(), 700U);
    EXPECT_TRUE(is_utf8(text)) << text;
    std::string object = "{";
    object.append(event.json()).append("}");
    const auto json = nlohmann::json::parse(object, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << event.json();
    EXPECT_EQ(json["w"], 1);
    EXPECT_EQ(json["event"], "e");
  }
}

}  // namespace
}  // namespace galley::server
