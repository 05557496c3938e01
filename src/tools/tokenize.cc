// galley tokenize: text or messages to ids and back.
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "tools/exit_code.h"
#include "tools/interrupt.h"
#include "tools/model_settings.h"
#include "tools/prompt_input.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

struct TokenizeOptions {
  PromptInput input;
  std::string model;
  bool decode = false;
  bool pieces = false;
  bool begin = false;
  bool count = false;
  bool json = false;
};

// Quoted; bytes that are no character by themselves as \\xNN.
std::string printable(std::string_view bytes) {
  if (is_utf8(bytes)) return nlohmann::json(bytes).dump();
  std::string text = "\"";
  for (const char c : bytes) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(c));
    text += escaped;
  }
  return text + "\"";
}

void print_ids(const TokenizeOptions& options, const model::Tokenizer& tokenizer,
               const std::vector<int32_t>& ids) {
  if (options.json) {
    nlohmann::ordered_json json;
    json["ids"] = ids;
    json["count"] = ids.size();
    if (options.pieces) {
      for (const int32_t id : ids) json["pieces"].push_back(tokenizer.token_string(id));
    }
    std::puts(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else if (options.count) {
    std::printf("%zu\n", ids.size());
  } else if (options.pieces) {
    for (const int32_t id : ids)
      std::printf("%7d %s\n", id, printable(tokenizer.token_bytes(id)).c_str());
  } else {
    for (size_t i = 0; i < ids.size(); ++i) std::printf("%s%d", i == 0 ? "" : " ", ids[i]);
    std::putchar('\n');
  }
}

Result<std::vector<int32_t>> encode(const TokenizeOptions& options,
                                    const model::Tokenizer& tokenizer) {
  if (options.input.is_conversation() || options.begin) {
    const serve::ChatCodec codec = TRY(serve::ChatCodec::create(tokenizer));
    return TRY(encode_prompt(options.input, codec)).ids;
  }
  const std::string text = TRY(prompt_text(options.input));
  return tokenizer.encode(text,
                          options.input.markup ? model::Markup::kActive : model::Markup::kPlain);
}

Result<void> run(const TokenizeOptions& options) {
  const std::string directory = TRY(find_model(options.model));
  const model::Tokenizer tokenizer = TRY(model::Tokenizer::open(directory));
  if (!options.decode) {
    const std::vector<int32_t> ids = TRY(encode(options, tokenizer));
    print_ids(options, tokenizer, ids);
    return {};
  }
  const std::string list =
      options.input.ids.empty() ? TRY(prompt_text(options.input)) : options.input.ids;
  const std::vector<int32_t> ids = TRY(parse_ids(list));
  if (options.pieces) {
    print_ids(options, tokenizer, ids);
    return {};
  }
  const std::string text = TRY(tokenizer.decode(ids));
  if (options.json) {
    std::puts(nlohmann::json{{"text", text}}.dump().c_str());
  } else {
    std::puts(text.c_str());
  }
  return {};
}

}  // namespace

int run_tokenize(int argc, char** argv) {
  TokenizeOptions options;
  Command command("tokenize", "Turns text or messages into token ids, and ids into text.",
                  "  galley tokenize \"Hello, world!\"\n"
                  "  galley tokenize --pieces --messages chat.json\n"
                  "  galley tokenize --decode 19923 14 2058 3\n"
                  "  galley tokenize --count --file book.txt\n"
                  "\nExit codes: 0 ok, 1 failed, 64 wrong usage.\n");
  add_prompt_arguments(command, options.input);
  command.argument("-d,--decode", options.decode, "Ids to text");
  command.argument("-p,--pieces", options.pieces, "One token a line, with the text it stands for");
  command.argument("-b,--begin", options.begin,
                   "Put the begin token in front, as `galley run` does");
  command.argument("--count", options.count, "Print how many tokens, not which");
  command.argument("--json", options.json, "One JSON object");
  add_model_directory(command, options.model);
  if (const std::optional<int> code = command.parse(argc, argv)) return *code;
  if (const std::string wrong = options.input.problem(); !wrong.empty()) {
    return command.usage(wrong);
  }
  listen_for_interrupt();
  options.decode = options.decode || !options.input.ids.empty();
  const Result<void> done = run(options);
  return done ? kExitOk : command.fail(done.error());
}

}  // namespace galley::tools
