// The server's log: one event a line on standard error, key=value or JSON.
//
//   2026-11-29T21:33:16.123Z info id=4f2a event=finished status=200 output_tokens=12
//   {"time":"2026-11-29T21:33:16.123Z","level":"info","id":"4f2a","event":"finished","status":200,...
//
// error = a person must act, warn = degraded, info = life cycle, debug = the rest.
// Prompts, answers and keys never come here. Any thread may write.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::server {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarn, kError };
enum class LogFormat : uint8_t { kText, kJson };

Result<LogLevel> parse_log_level(std::string_view name);

// One line in the making.
class LogEvent {
 public:
  explicit LogEvent(std::string_view name) { add("event", name); }
  // Of a request: its id comes first, so that its lines are found and line up.
  LogEvent(std::string_view name, std::string_view id) { add("id", id).add("event", name); }

  LogEvent& add(std::string_view key, std::string_view value);
  LogEvent& add(std::string_view key, int64_t value);
  LogEvent& add_ms(std::string_view key, double milliseconds);  // with one decimal

  // key=value; a value with spaces, quotes or control characters is quoted.
  std::string text() const;
  // The members of a JSON object, without its braces.
  std::string json() const;

 private:
  struct Field {
    std::string key;
    std::string value;
    bool is_number;
  };
  std::vector<Field> fields_;
};

class EventLog {
 public:
  explicit EventLog(LogLevel lowest, LogFormat format = LogFormat::kText);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // From the next line on.
  void set_lowest(LogLevel lowest);

  void debug(const LogEvent& event) { write(LogLevel::kDebug, event); }
  void info(const LogEvent& event) { write(LogLevel::kInfo, event); }
  void warn(const LogEvent& event) { write(LogLevel::kWarn, event); }
  void error(const LogEvent& event) { write(LogLevel::kError, event); }

 private:
  void write(LogLevel level, const LogEvent& event);

  LogFormat format_;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley::server
