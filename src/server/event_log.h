// The server's log: one event a line on standard error, key=value.
//
//   2026-11-29T21:33:16.123Z info event=finished id=4f2a status=200 output_tokens=12
//
// error = a person must act, warn = degraded, info = life cycle, debug = the rest.
// Prompts, answers and keys never come here. Any thread may write.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace galley::server {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarn, kError };

Result<LogLevel> parse_log_level(std::string_view name);

// One line in the making. A value with spaces, quotes or control characters is quoted.
class LogEvent {
 public:
  explicit LogEvent(std::string_view name) { add("event", name); }

  LogEvent& add(std::string_view key, std::string_view value);
  LogEvent& add(std::string_view key, int64_t value);
  LogEvent& add_ms(std::string_view key, double milliseconds);  // with one decimal

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class EventLog {
 public:
  explicit EventLog(LogLevel lowest);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void debug(const LogEvent& event) { write(LogLevel::kDebug, event); }
  void info(const LogEvent& event) { write(LogLevel::kInfo, event); }
  void warn(const LogEvent& event) { write(LogLevel::kWarn, event); }
  void error(const LogEvent& event) { write(LogLevel::kError, event); }

 private:
  void write(LogLevel level, const LogEvent& event);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley::server
