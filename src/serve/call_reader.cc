#include "serve/call_reader.h"

#include <algorithm>
#include <array>

#include "base/json.h"
#include "serve/answer_marks.h"
#include "serve/python_json.h"

namespace galley::serve {
namespace {

// Both spellings: V4.1 has a space after the mark, V4 none and "tool_calls".
constexpr std::string_view kClose = "</\xF8";
constexpr std::string_view kInvoke = "invoke name=\"";
constexpr std::string_view kParameter = "parameter name=\"";
constexpr std::array<std::string_view, 2> kBlockTags = {"calls>", "tool_calls>"};

// What may end a value besides its closing tag: the next tag on a line of its own.
constexpr std::array<std::string_view, 4> kNextTags = {
    "\n<\xF8 parameter name=\"", "\n<\xF8parameter name=\"", "\n<\xF8 invoke name=\"",
    "\n<\xF8invoke name=\""};

// Longer than every tag up to its name.
constexpr size_t kTagBytesMax = 48;

bool is_blank(char byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

// What no name holds: it stands between quotes on one line.
bool ends_name(char byte) {
  return static_cast<unsigned char>(byte) < 0x20 || byte == '<' || is_mark(byte);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Whether `tag` is `ending` after nothing but the tag's opening, which models sometimes drop.
bool is_tag(std::string_view tag, std::string_view ending) {
  if (!tag.ends_with(ending)) return false;
  tag.remove_suffix(ending.size());
  return std::all_of(tag.begin(), tag.end(),
                     [](char byte) { return byte == '<' || byte == ' ' || byte == kDsmlMark; });
}

// Whether `text` ends with the closing tag of which `rest` is what follows the mark.
bool closes(std::string_view text, std::string_view rest) {
  if (!text.ends_with('>')) return false;
  const size_t at = text.rfind(kClose);
  return at != std::string_view::npos && trimmed(text.substr(at + kClose.size())) == rest;
}

bool closes_block(std::string_view text) {
  return std::any_of(kBlockTags.begin(), kBlockTags.end(),
                     [&](std::string_view rest) { return closes(text, rest); });
}

// Keeps what a tag may still be made of.
void keep_end(std::string& text) {
  if (text.size() > 4 * kTagBytesMax) text.erase(0, text.size() - kTagBytesMax);
}

// Where the tag begins that `text` ends with.
std::string_view last_tag(std::string_view text) {
  const size_t at = text.rfind('<');
  return at == std::string_view::npos ? text : text.substr(at);
}

bool may_end_value(std::string_view text) {
  return kClose.starts_with(text) ||
         std::any_of(kNextTags.begin(), kNextTags.end(),
                     [&](std::string_view tag) { return tag.starts_with(text); });
}

}  // namespace

void CallReader::open(std::string_view opening) {
  enter(Stage::kCalls);
  raw_ = opening;
  if (!opening.empty()) tail_ = last_tag(opening);
  calls_in_block_ = false;
  began_ = false;
}

void CallReader::enter(Stage stage) {
  stage_ = stage;
  tail_.clear();
}

CallReader::State CallReader::push(char byte) {
  if (!began_ && (stage_ != Stage::kCalls || !calls_in_block_)) {
    raw_ += byte;
    if (raw_.size() > kCallRawBytesMax) {
      content_ += unmarked(std::exchange(raw_, ""));
      if (stage_ == Stage::kCalls) return State::kContent;
      if (stage_ != Stage::kBroken) enter(Stage::kBroken);
    }
  }
  switch (stage_) {
    case Stage::kCalls:
      return calls_in_block_ ? push_calls(byte) : push_first_call(byte);
    case Stage::kName:
      push_name(byte);
      break;
    case Stage::kNameEnd:
      push_name_end(byte);
      break;
    case Stage::kBetween:
      push_between(byte);
      break;
    case Stage::kCloseTag:
      return push_close_tag(byte);
    case Stage::kKey:
      push_key(byte);
      break;
    case Stage::kType:
      push_type(byte);
      break;
    case Stage::kText:
    case Stage::kValue:
      push_value(byte);
      break;
    case Stage::kBroken:
      return push_broken(byte);
  }
  return State::kReading;
}

// Before the first call: tags and blanks alone, or it is no block of calls.
CallReader::State CallReader::push_first_call(char byte) {
  if (tail_.empty() && is_blank(byte)) return State::kReading;
  tail_ += byte;
  if (is_tag(tail_, kInvoke)) {
    begin_call(last_tag(tail_));
    return State::kReading;
  }
  for (const std::string_view rest : kBlockTags) {
    if (!is_tag(tail_, rest)) continue;
    tail_.clear();
    return State::kReading;
  }
  if (byte != '>' && byte != '\n' && tail_.size() <= kTagBytesMax) return State::kReading;
  content_ += unmarked(std::exchange(raw_, ""));
  return State::kContent;
}

// After a call: whatever is no tag is dropped.
CallReader::State CallReader::push_calls(char byte) {
  tail_ += byte;
  if (tail_.ends_with(kInvoke)) {
    begin_call(last_tag(tail_));
    return State::kReading;
  }
  if (closes_block(tail_)) return end_block();
  keep_end(tail_);
  return State::kReading;
}

void CallReader::push_name(char byte) {
  if (byte == '"') return name_.empty() ? fail_call(std::string(1, byte)) : enter(Stage::kNameEnd);
  if (ends_name(byte) || name_.size() >= kCallNameBytesMax) {
    return fail_call(std::string(1, byte));
  }
  name_ += byte;
}

void CallReader::push_name_end(char byte) {
  if (byte == '>') return enter(Stage::kBetween);
  if (byte != ' ') fail_call(std::string(1, byte));
}

void CallReader::push_between(char byte) {
  if (tail_.empty() && is_blank(byte)) return;
  tail_ += byte;
  if (tail_ == kClose) return enter(Stage::kCloseTag);
  if (is_tag(tail_, kParameter)) {
    key_.clear();
    return enter(Stage::kKey);
  }
  if (is_tag(tail_, kInvoke)) {
    const std::string tag = tail_;
    end_call();
    return begin_call(tag);
  }
  const bool closes_badly = tail_.ends_with(kClose);
  if (closes_badly || byte == '>' || byte == '\n' || tail_.size() > kTagBytesMax) {
    fail_call(tail_);
  }
}

CallReader::State CallReader::push_close_tag(char byte) {
  tail_ += byte;
  const std::string_view rest = trimmed(tail_);
  if (rest == "parameter>") {
    enter(Stage::kBetween);
  } else if (rest == "invoke>") {
    end_call();
    enter(Stage::kCalls);
  } else if (rest == kBlockTags[0] || rest == kBlockTags[1]) {
    end_call();
    return end_block();
  } else if (byte == '>' || byte == '\n' || byte == '<' || tail_.size() > kTagBytesMax) {
    std::string seen(kClose);
    fail_call(std::move(seen.append(tail_)));
  }
  return State::kReading;
}

void CallReader::push_key(char byte) {
  if (byte == '"') {
    const bool is_new = !key_.empty() && !keys_.contains(key_);
    return is_new ? enter(Stage::kType) : fail_call(std::string(1, byte));
  }
  if (ends_name(byte) || key_.size() >= kCallNameBytesMax) {
    return fail_call(std::string(1, byte));
  }
  key_ += byte;
}

void CallReader::push_type(char byte) {
  tail_ += byte;
  if (byte == '>') {
    const std::string_view type = trimmed(tail_);
    if (type == "string=\"true\">") return begin_parameter(true);
    if (type == "string=\"false\">") return begin_parameter(false);
  }
  if (byte == '>' || byte == '\n' || tail_.size() > kTagBytesMax) fail_call(tail_);
}

void CallReader::push_value(char byte) {
  if (tail_.empty() && byte != '<' && byte != '\n') {
    return append_value(std::string_view(&byte, 1));
  }
  tail_ += byte;
  if (tail_ == kClose) {
    close_value();
    return enter(Stage::kCloseTag);
  }
  if (std::find(kNextTags.begin(), kNextTags.end(), tail_) != kNextTags.end()) {
    const std::string tag = tail_.substr(1);
    close_value();
    if (tag.ends_with(kParameter)) {
      key_.clear();
      return enter(Stage::kKey);
    }
    end_call();
    return begin_call(tag);
  }
  size_t ready = 0;
  while (!may_end_value(std::string_view(tail_).substr(ready))) ++ready;
  if (ready == 0) return;
  const std::string text = tail_.substr(0, ready);
  tail_.erase(0, ready);
  append_value(text);
}

CallReader::State CallReader::push_broken(char byte) {
  tail_ += byte;
  const bool ends_block = closes_block(tail_);
  if (ends_block || closes(tail_, "invoke>")) {
    end_broken_call(0);
    return ends_block ? end_block() : State::kReading;
  }
  const std::string tag(last_tag(tail_));
  if (is_tag(tag, kInvoke) && tag.find(kDsmlMark) != std::string::npos) {
    end_broken_call(tag.size());
    begin_call(tag);
    return State::kReading;
  }
  keep_end(tail_);
  return State::kReading;
}

void CallReader::begin_call(std::string_view tag) {
  if (calls_in_block_) raw_ = tag;
  name_.clear();
  keys_.clear();
  enter(Stage::kName);
}

void CallReader::begin_parameter(bool is_string) {
  std::string opening(began_ ? ", " : "{");
  if (!began_) {
    writer_->begin_call(name_);
    began_ = true;
    calls_in_block_ = true;
    raw_.clear();
  }
  opening += python_json_string(key_);
  opening += is_string ? ": \"" : ": ";
  writer_->arguments(opening);
  keys_.insert(key_);
  value_.clear();
  enter(is_string ? Stage::kText : Stage::kValue);
}

void CallReader::append_value(std::string_view text) {
  const std::string plain = unmarked(text);
  if (stage_ == Stage::kValue) {
    value_ += plain;
    if (value_.size() <= kCallValueBytesMax) return;
    // Too long to wait for: a string is JSON whatever comes.
    writer_->arguments("\"");
    stage_ = Stage::kText;
  } else {
    value_ = plain;
  }
  std::string escaped;
  append_json_escaped(std::exchange(value_, ""), escaped);
  writer_->arguments(escaped);
}

void CallReader::close_value() {
  if (stage_ == Stage::kText) {
    writer_->arguments("\"");
  } else {
    const bool is_json = JsonDocument::parse(value_).has_value();
    writer_->arguments(is_json ? value_ : python_json_string(value_));
  }
}

void CallReader::end_call() {
  if (!began_) {
    writer_->begin_call(name_);
    writer_->arguments("{");
  }
  writer_->arguments("}");
  writer_->end_call();
  began_ = false;
  calls_in_block_ = true;
  raw_.clear();
}

// `seen` may begin the tag that ends the call.
void CallReader::fail_call(std::string seen) {
  enter(Stage::kBroken);
  tail_ = std::move(seen);
}

// The last `kept_bytes` of what was read belong to what comes next.
void CallReader::end_broken_call(size_t kept_bytes) {
  if (began_) {
    writer_->end_call();  // its JSON stays open: nobody can run it
    raw_.clear();
  } else {
    const std::string kept = raw_.substr(raw_.size() - std::min(raw_.size(), kept_bytes));
    content_ += unmarked(std::string_view(raw_).substr(0, raw_.size() - kept.size()));
    raw_ = kept;
  }
  began_ = false;
  enter(Stage::kCalls);
}

CallReader::State CallReader::end_block() {
  if (calls_in_block_) return State::kDone;
  content_ += unmarked(std::exchange(raw_, ""));
  return State::kContent;
}

void CallReader::finish() {
  if (!began_) {
    content_ += unmarked(std::exchange(raw_, ""));
    return;
  }
  if (stage_ == Stage::kText || stage_ == Stage::kValue) append_value(std::exchange(tail_, ""));
  if (stage_ == Stage::kValue) writer_->arguments(value_);
  writer_->end_call();
  began_ = false;
}

}  // namespace galley::serve
