// One line on stderr about long work: how far, how fast, how long still.
//
// On a terminal it redraws itself five times a second; elsewhere it stays
// silent unless asked for, and then prints a line every few seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace galley::tools {

// "0:05", "12:34", "1:02:03".
std::string format_duration(double seconds);
// 1234567 -> "1,234,567".
std::string format_count(int64_t count);
std::string format_bytes(int64_t bytes);

class Progress {
 public:
  struct Options {
    std::string unit = "lines";
    int64_t total = 0;    // 0: not known
    int64_t begin = 0;    // done before; not counted in the rate
    bool wanted = false;  // also without a terminal
  };

  explicit Progress(Options options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // That many of what is done were done before, and say nothing about the rate.
  void skip(int64_t count) { options_.begin += count; }

  // `extra` follows the rate, e.g. tokens per second.
  void update(int64_t done, const std::string& extra = "");
  // Takes the line off a terminal, so that something else can be printed.
  void clear();
  // Draws the last state and goes to the next line.
  void finish(int64_t done, const std::string& extra = "");

 private:
  using Clock = std::chrono::steady_clock;

  std::string describe(int64_t done, const std::string& extra) const;
  void draw(const std::string& text);

  Options options_;
  bool terminal_;
  Clock::time_point begin_;
  Clock::time_point drawn_;
  size_t drawn_width_ = 0;
};

// For model/weight_upload.h: MB, rate and time left; a Ctrl-C that somebody listens for stops it.
std::function<bool(int64_t done, int64_t total)> show_upload();

}  // namespace galley::tools
