// What a model's directory asks for becomes the defaults of run, batch and serve alike; flags,
// environment and file win over it, and a file that is wrong is one line.
#include "tools/generation_config.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "engine/sampling_options.h"
#include "tools/exit_code.h"
#include "tools/model_settings.h"
#include "tools/sampling_settings.h"

namespace galley::tools {
namespace {

GenerationDefaults parsed(std::string_view text) {
  auto defaults = parse_generation_config(text);
  EXPECT_TRUE(defaults) << text;
  return defaults ? *defaults : GenerationDefaults();
}

TEST(GenerationConfig, WhatIsAboutSamplingIsTaken) {
  EXPECT_EQ(parsed(R"({"_from_model_config": true, "bos_token_id": 0, "eos_token_id": [1, 2],
                       "do_sample": true, "temperature": 0.6, "top_p": 0.95, "max_length": 20})"),
            (GenerationDefaults{{"temperature", "0.6"}, {"top-p", "0.95"}}));
  EXPECT_EQ(parsed(R"({"top_k": 50, "min_p": 0, "repetition_penalty": 1.05})"),
            (GenerationDefaults{{"min-p", "0"}, {"repetition-penalty", "1.05"}, {"top-k", "50"}}));
  EXPECT_EQ(parsed(R"({"top_k": -1, "temperature": null})"), (GenerationDefaults{{"top-k", "0"}}));
  EXPECT_TRUE(parsed("{}").empty());
}

TEST(GenerationConfig, NoSamplingIsTheBestToken) {
  EXPECT_EQ(parsed(R"({"do_sample": false, "temperature": 0.6, "top_p": 0.9})"),
            (GenerationDefaults{{"top-p", "0.9"}, {"temperature", "0"}}));
}

TEST(GenerationConfig, WhatIsWrongIsNamed) {
  for (const auto& [text, message] :
       {std::pair("[]", "must be a JSON object"),
        std::pair(R"({"temperature": "warm"})", "temperature"),
        std::pair(R"({"top_k": 1.5})", "top_k"), std::pair(R"({"do_sample": 1})", "do_sample"),
        std::pair("{", "not valid JSON")}) {
    const auto defaults = parse_generation_config(text);
    ASSERT_FALSE(defaults) << text;
    EXPECT_NE(defaults.error().message.find(message), std::string::npos)
        << defaults.error().message;
  }
}

class ModelDefaults : public testing::Test {
 protected:
  ModelDefaults() : model_(testing::TempDir() + "generation_config_test") {
    std::filesystem::create_directories(model_);
    ::unsetenv("GALLEY_CONFIG");
    ::unsetenv("GALLEY_TEMPERATURE");
    ::unsetenv("GALLEY_MODEL");
  }
  ~ModelDefaults() override { std::filesystem::remove_all(model_); }

  void write(const std::string& text) {
    EXPECT_TRUE(write_file_atomic(model_ + "/generation_config.json", text));
  }

  std::optional<int> parse(std::vector<std::string> arguments) {
    command_ = std::make_unique<Command>("run", "", "");
    settings_ = {};
    sampling_ = {};
    add_model_settings(*command_, settings_);
    add_sampling_settings(*command_, sampling_, settings_.model);
    arguments.push_back("--model=" + model_);
    std::vector<char*> argv = {const_cast<char*>("run")};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    return command_->parse(static_cast<int>(argv.size()), argv.data());
  }

  std::string model_;
  ModelSettings settings_;
  engine::SamplingOptions sampling_;
  std::unique_ptr<Command> command_;
};

TEST_F(ModelDefaults, WithoutTheFileTheyAreDeepSeeks) {
  ASSERT_EQ(parse({}), std::nullopt);
  EXPECT_EQ(sampling_.temperature, 1.0F);
  EXPECT_EQ(sampling_.top_p, 0.95F);
}

TEST_F(ModelDefaults, WhatIsGivenWins) {
  write(R"({"temperature": 0.5, "top_p": 0.8})");
  ASSERT_EQ(parse({}), std::nullopt);
  EXPECT_EQ(sampling_.temperature, 0.5F);
  EXPECT_EQ(sampling_.top_p, 0.8F);
  EXPECT_FALSE(command_->given("temperature"));
  ASSERT_EQ(parse({"--top-p", "0.7"}), std::nullopt);
  EXPECT_EQ(sampling_.temperature, 0.5F);
  EXPECT_EQ(sampling_.top_p, 0.7F);
  EXPECT_TRUE(command_->given("top-p"));
  ::setenv("GALLEY_TEMPERATURE", "0.3", 1);
  ASSERT_EQ(parse({}), std::nullopt);
  EXPECT_EQ(sampling_.temperature, 0.3F);
  ::unsetenv("GALLEY_TEMPERATURE");
}

TEST_F(ModelDefaults, AWrongFileFailsTheVerb) {
  for (const char* text : {"{", R"({"temperature": -1})", R"({"top_p": 2})"}) {
    write(text);
    testing::internal::CaptureStderr();
    EXPECT_EQ(parse({}), kExitFailed) << text;
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_EQ(told.find('\n'), told.size() - 1) << told;
    EXPECT_NE(told.find("generation_config.json: "), std::string::npos) << told;
  }
  // A flag does not mend it: the next start without that flag would fail.
  EXPECT_EQ(parse({"-t", "0"}), kExitFailed);
}

}  // namespace
}  // namespace galley::tools
