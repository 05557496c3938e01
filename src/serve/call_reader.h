// Reads a block of tool calls as the model writes it, byte by byte
// (spec/chat.md 5.2 from "Calls" on, with recommendations a to c).
//
// Arguments become JSON as they come: strings piece by piece, other values when
// they are whole and found to be JSON (as strings if they are not). What the
// markup leaves open is closed where the call clearly went on; a call whose
// markup cannot be read is never handed on as one that looks whole: before its
// first argument it is content, after that its JSON stays open.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "serve/answer_writer.h"

namespace galley::serve {

constexpr size_t kCallNameBytesMax = 256;       // of a tool or a parameter
constexpr size_t kCallRawBytesMax = 64 << 10;   // of markup held back until a call can be read
constexpr size_t kCallValueBytesMax = 1 << 20;  // of a value held back until it is whole

class CallReader {
 public:
  // What ended with this byte.
  enum class State : uint8_t {
    kReading,
    kDone,     // the block, with calls in it
    kContent,  // the block, without any: its text was content
  };

  explicit CallReader(AnswerWriter& writer) : writer_(&writer) {}

  // A block begins. `opening` is what was read of it: text if there turns out to be no call.
  void open(std::string_view opening);
  // `byte` may be a mark (answer_marks.h).
  State push(char byte);
  // The answer ended inside the block.
  void finish();
  // Markup that turned out to be no call, as plain text.
  std::string take_content() { return std::exchange(content_, ""); }

 private:
  enum class Stage : uint8_t {
    kCalls,     // between calls
    kName,      // in a tool's name
    kNameEnd,   // from there to the end of the tag
    kBetween,   // between parameters
    kCloseTag,  // in a closing tag
    kKey,       // in a parameter's name
    kType,      // from there to the end of the tag
    kText,      // in a string
    kValue,     // in another value
    kBroken,    // in a call that cannot be read
  };

  State push_calls(char byte);
  State push_first_call(char byte);
  void push_name(char byte);
  void push_name_end(char byte);
  void push_between(char byte);
  State push_close_tag(char byte);
  void push_key(char byte);
  void push_type(char byte);
  void push_value(char byte);
  State push_broken(char byte);

  void enter(Stage stage);
  void begin_call(std::string_view tag);
  void begin_parameter(bool is_string);
  void append_value(std::string_view text);
  void close_value();
  void end_call();
  void fail_call(std::string seen);
  void end_broken_call(size_t kept_bytes);
  State end_block();

  AnswerWriter* writer_;
  Stage stage_ = Stage::kCalls;
  std::string content_;
  std::string raw_;   // what cannot be read yet, from the last call or the block's beginning on
  std::string tail_;  // of the stage: what its markup may be part of
  std::string name_;
  std::string key_;
  std::string value_;            // of kValue
  std::set<std::string> keys_;   // of this call
  bool calls_in_block_ = false;  // any was handed on
  bool began_ = false;           // this call was
};

}  // namespace galley::serve
