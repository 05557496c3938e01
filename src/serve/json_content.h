// The content of an answer that was asked for JSON: the JSON itself, without the
// fences and the prose that models put around it (spec/chat.md 5.2, JSON mode).
//
// Prose becomes one space a run; stop sequences count inside the JSON only. The
// JSON is handed on as it is, not checked.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "serve/stop_matcher.h"

namespace galley::serve {

class JsonContent {
 public:
  explicit JsonContent(std::vector<std::string> stops) : matcher_(std::move(stops)) {}

  // Appends what became final with this byte; nothing once stopped.
  void push(char byte, std::string& out);
  // Appends what was held back.
  void finish(std::string& out);

  const std::string& stop() const { return stop_; }  // empty while none came

 private:
  void push_prose(char byte, std::string& out);
  void push_json(char byte, std::string& out);

  StopMatcher matcher_;
  std::string stop_;
  std::string held_;  // a fence's beginning, or a stop's
  bool in_json_ = false;
  bool in_prose_run_ = false;
};

}  // namespace galley::serve
