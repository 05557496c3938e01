#include "server/event_log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <cstdio>

namespace galley::server {
namespace {

constexpr size_t kValueBytesMax = 512;

bool is_plain(std::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > 0x20 && c < 0x7F && c != '"' && c != '=' && c != '\\';
  });
}

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

Result<LogLevel> parse_log_level(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warn") return LogLevel::kWarn;
  if (name == "error") return LogLevel::kError;
  return Error{ErrorCode::kInvalid, "no log level \"" + std::string(name) + "\""};
}

LogEvent& LogEvent::add(std::string_view key, std::string_view value) {
  if (!text_.empty()) text_ += ' ';
  text_ += key;
  text_ += '=';
  if (is_plain(value) && value.size() <= kValueBytesMax) {
    text_ += value;
    return *this;
  }
  text_ += '"';
  for (const char c : value.substr(0, kValueBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') text_ += '\\';
    text_ += byte < 0x20 || byte == 0x7F ? ' ' : c;
  }
  text_ += value.size() > kValueBytesMax ? "...\"" : "\"";
  return *this;
}

LogEvent& LogEvent::add(std::string_view key, int64_t value) {
  return add(key, std::string_view(std::to_string(value)));
}

LogEvent& LogEvent::add_ms(std::string_view key, double milliseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", milliseconds);
  return add(key, std::string_view(text));
}

struct EventLog::State {
  spdlog::logger logger{"galley", std::make_shared<spdlog::sinks::stderr_sink_mt>()};
};

EventLog::EventLog(LogLevel lowest) : state_(std::make_unique<State>()) {
  state_->logger.set_level(level_of(lowest));
  state_->logger.set_formatter(std::make_unique<spdlog::pattern_formatter>(
      "%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc));
  state_->logger.flush_on(spdlog::level::debug);
}

EventLog::~EventLog() = default;

void EventLog::write(LogLevel level, const LogEvent& event) {
  state_->logger.log(level_of(level), spdlog::string_view_t(event.text()));
}

}  // namespace galley::server
