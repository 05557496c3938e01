#include "tools/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "tools/interrupt.h"

namespace galley::tools {
namespace {

constexpr std::chrono::milliseconds kRedraw{200};
constexpr std::chrono::seconds kPlainLine{5};
constexpr int kBarWidth = 24;

std::string bar(double share) {
  const int filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * kBarWidth);
  std::string text(kBarWidth + 2, '.');
  text.front() = '[';
  text.back() = ']';
  std::fill_n(text.begin() + 1, filled, '#');
  return text;
}

std::string printed(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

std::string format_duration(double seconds) {
  const auto whole = static_cast<long long>(std::llround(std::max(seconds, 0.0)));
  char text[48];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                  whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  }
  return text;
}

std::string format_count(int64_t count) {
  const std::string digits = std::to_string(count);
  const size_t first = count < 0 ? 1 : 0;
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string format_bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return printed("%.2f GiB", value / (1 << 30));
  if (bytes >= int64_t{1} << 20) return printed("%.0f MiB", value / (1 << 20));
  return printed("%.0f KiB", value / 1024);
}

Progress::Progress(Options options)
    : options_(std::move(options)),
      terminal_(::isatty(STDERR_FILENO) == 1),
      begin_(Clock::now()),
      drawn_(begin_) {}

Progress::~Progress() {
  if (terminal_ && drawn_width_ > 0) std::fputc('\n', stderr);
}

void Progress::update(int64_t done, const std::string& extra) {
  if (!terminal_ && !options_.wanted) return;
  const Clock::time_point now = Clock::now();
  if (now - drawn_ < (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kPlainLine))) return;
  drawn_ = now;
  draw(describe(done, extra));
}

void Progress::clear() {
  if (!terminal_ || drawn_width_ == 0) return;
  std::fprintf(stderr, "\r%s\r", std::string(drawn_width_, ' ').c_str());
  drawn_width_ = 0;
}

void Progress::finish(int64_t done, const std::string& extra) {
  if (!terminal_ && !options_.wanted) return;
  draw(describe(done, extra));
  if (terminal_) std::fputc('\n', stderr);
  drawn_width_ = 0;
}

std::string Progress::describe(int64_t done, const std::string& extra) const {
  const double seconds =
      std::max(std::chrono::duration<double>(Clock::now() - begin_).count(), 1e-3);
  const double rate = static_cast<double>(done - options_.begin) / seconds;
  std::string text;
  const auto add = [&text](std::string_view part) { text.append(part); };
  if (options_.total > 0) {
    const double share = static_cast<double>(done) / static_cast<double>(options_.total);
    add(bar(share));
    add(printed(" %3.0f%%  ", 100 * share));
    add(format_count(done));
    add("/");
    add(format_count(options_.total));
  } else {
    add(format_count(done));
  }
  add(" ");
  add(options_.unit);
  add("  ");
  add(rate >= 100 ? format_count(std::llround(rate)) : printed("%.1f", rate));
  add("/s");
  if (!extra.empty()) {
    add("  ");
    add(extra);
  }
  if (options_.total > 0 && rate > 0) {
    add("  ");
    add(format_duration(static_cast<double>(options_.total - done) / rate));
    add(" left");
  }
  return text;
}

void Progress::draw(const std::string& text) {
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", text.c_str());
    return;
  }
  const size_t padding = drawn_width_ > text.size() ? drawn_width_ - text.size() : 0;
  std::fprintf(stderr, "\r%s%s", text.c_str(), std::string(padding, ' ').c_str());
  std::fflush(stderr);
  drawn_width_ = text.size();
}

std::function<bool(int64_t, int64_t)> show_upload() {
  constexpr int64_t kMb = 1'000'000;
  // Made with the first bytes: the rate is that of the upload.
  auto progress = std::make_shared<std::unique_ptr<Progress>>();
  return [progress](int64_t done, int64_t total) {
    if (*progress == nullptr) {
      *progress = std::make_unique<Progress>(Progress::Options{
          .unit = "MB to the device", .total = std::max<int64_t>(total / kMb, 1), .wanted = true});
    }
    (*progress)->update(done / kMb);
    if (done == total) (*progress)->clear();
    return !interrupted();
  };
}

}  // namespace galley::tools
