#include "server/event_log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace galley::server {
namespace {

constexpr size_t kValueBytesMax = 512;

bool is_plain(std::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > 0x20 && c < 0x7F && c != '"' && c != '=' && c != '\\';
  });
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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
  // Clients choose paths and fields; whoever reads the log expects text.
  fields_.push_back({std::string(key), to_utf8(value.substr(0, kValueBytesMax)), false});
  if (value.size() > kValueBytesMax) fields_.back().value += "...";
  return *this;
}

LogEvent& LogEvent::add(std::string_view key, int64_t value) {
  fields_.push_back({std::string(key), std::to_string(value), true});
  return *this;
}

LogEvent& LogEvent::add_ms(std::string_view key, double milliseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", milliseconds);
  fields_.push_back({std::string(key), text, true});
  return *this;
}

std::string LogEvent::text() const {
  std::string text;
  for (const Field& field : fields_) {
    if (!text.empty()) text += ' ';
    text.append(field.key).append("=");
    if (is_plain(field.value)) {
      text += field.value;
      continue;
    }
    text += '"';
    for (const char c : field.value) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') text += '\\';
      text += byte < 0x20 || byte == 0x7F ? ' ' : c;
    }
    text += '"';
  }
  return text;
}

std::string LogEvent::json() const {
  std::string text;
  for (const Field& field : fields_) {
    if (!text.empty()) text += ',';
    text.append(json_string(field.key)).append(":");
    text += field.is_number ? field.value : json_string(field.value);
  }
  return text;
}

struct EventLog::State {
  spdlog::logger logger{"galley", std::make_shared<spdlog::sinks::stderr_sink_mt>()};
};

EventLog::EventLog(LogLevel lowest, LogFormat format)
    : format_(format), state_(std::make_unique<State>()) {
  set_lowest(lowest);
  state_->logger.set_formatter(std::make_unique<spdlog::pattern_formatter>(
      format == LogFormat::kJson ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})"
                                 : "%Y-%m-%dT%H:%M:%S.%eZ %l %v",
      spdlog::pattern_time_type::utc));
  state_->logger.flush_on(spdlog::level::debug);
}

void EventLog::set_lowest(LogLevel lowest) { state_->logger.set_level(level_of(lowest)); }

EventLog::~EventLog() = default;

void EventLog::write(LogLevel level, const LogEvent& event) {
  const auto wanted = level_of(level);
  if (!state_->logger.should_log(wanted)) return;
  const std::string line = format_ == LogFormat::kJson ? event.json() : event.text();
  state_->logger.log(wanted, spdlog::string_view_t(line));
}

}  // namespace galley::server
