#include "tools/prompt_input.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "serve/message_json.h"
#include "tools/interrupt.h"

namespace galley::tools {
namespace {

constexpr size_t kPromptBytesMax = size_t{64} << 20;

Result<std::string> read_stdin() {
  std::string text;
  char buffer[1 << 16];
  while (wait_readable(STDIN_FILENO)) {
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error{ErrorCode::kIo, "cannot read the prompt from standard input"};
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > kPromptBytesMax) {
      return Error{ErrorCode::kInvalid, "the prompt on standard input is longer than 64 MiB"};
    }
  }
  return Error{ErrorCode::kCancelled, "interrupted while reading the prompt"};
}

}  // namespace

std::string PromptInput::problem() const {
  const int given = (words.empty() ? 0 : 1) + (file.empty() ? 0 : 1) + (ids.empty() ? 0 : 1) +
                    (messages_file.empty() ? 0 : 1);
  if (given > 1) return "give one of PROMPT, --file, --ids and --messages";
  if (given == 0 && ::isatty(STDIN_FILENO) == 1) {
    return "nothing to read; name a prompt, e.g. \"Once upon a time\"";
  }
  if (!system.empty() && !chat) return "--system needs --chat";
  return "";
}

void add_prompt_arguments(Command& command, PromptInput& input) {
  command.argument("prompt", input.words, "Words are joined; - or nothing reads standard input");
  command.argument("-f,--file", input.file, "Read the text from a file").value_name("FILE");
  command.argument("-c,--chat", input.chat, "The text is a user's message, to be answered");
  command.argument("--system", input.system, "With --chat: the system message");
  command.argument("--messages", input.messages_file, "A conversation as a JSON list of messages")
      .value_name("FILE");
  command.argument("--ids", input.ids, "Token ids instead of text, e.g. 0,17,254")
      .value_name("LIST");
  command.argument("--markup", input.markup,
                   "Control tokens written in the text, like <think>, count as such");
}

Result<std::string> prompt_text(const PromptInput& input) {
  if (!input.file.empty()) return read_file(input.file, kPromptBytesMax);
  if (input.words.empty() || (input.words.size() == 1 && input.words[0] == "-")) {
    return read_stdin();
  }
  std::string text;
  for (const std::string& word : input.words) {
    if (!text.empty()) text += ' ';
    text += word;
  }
  return text;
}

Result<serve::Prompt> encode_prompt(const PromptInput& input, const serve::ChatCodec& codec) {
  serve::Prompt prompt;
  if (!input.ids.empty()) {
    prompt.ids = TRY(parse_ids(input.ids));
    return prompt;
  }
  if (!input.messages_file.empty()) {
    const std::string json = TRY(read_file(input.messages_file, kPromptBytesMax));
    JsonLimits limits;
    limits.keep_order = true;
    Result<JsonDocument> document = JsonDocument::parse(json, limits);
    if (!document) return with_context(document.error(), input.messages_file);
    Result<serve::Conversation> conversation = serve::parse_messages(document->root());
    if (!conversation) return with_context(conversation.error(), input.messages_file);
    return codec.encode(*conversation);
  }
  const std::string text = TRY(prompt_text(input));
  if (!input.chat) {
    prompt.ids =
        TRY(codec.encode_text(text, input.markup ? model::Markup::kActive : model::Markup::kPlain));
    return prompt;
  }
  serve::Conversation conversation;
  if (!input.system.empty()) {
    conversation.messages.push_back(serve::text_message(serve::Role::kSystem, input.system));
  }
  conversation.messages.push_back(serve::text_message(serve::Role::kUser, text));
  return codec.encode(conversation);
}

Result<std::vector<int32_t>> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  size_t at = 0;
  while (at < text.size()) {
    if (text[at] == ',' || text[at] == ' ' || text[at] == '\n') {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [end, code] = std::from_chars(text.data() + at, text.data() + text.size(), id);
    const size_t next = static_cast<size_t>(end - text.data());
    const bool bounded =
        next == text.size() || std::string_view(", \n").find(text[next]) != std::string_view::npos;
    if (code != std::errc() || !bounded || id < 0) {
      return Error{ErrorCode::kInvalid,
                   "--ids: \"" + std::string(text.substr(at, 20)) + "\" is no token id"};
    }
    ids.push_back(id);
    at = next;
  }
  if (ids.empty()) return Error{ErrorCode::kInvalid, "--ids has no token id"};
  return ids;
}

}  // namespace galley::tools
