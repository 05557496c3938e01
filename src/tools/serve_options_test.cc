// What a running server takes over from settings that changed, and what it only names.
#include "tools/serve_options.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"

namespace galley::tools {
namespace {

class ServeOptionsTest : public testing::Test {
 protected:
  Result<ReadSettings> read(const std::string& file) {
    const std::string path = testing::TempDir() + "serve_options_test.toml";
    EXPECT_TRUE(write_file_atomic(path, file).has_value());
    std::string config = "--config=" + path;
    std::string verb = "serve";
    std::string port = "--port=1";
    std::vector<char*> argv = {verb.data(), port.data(), config.data()};
    return read_serve_options_again(static_cast<int>(argv.size()), argv.data());
  }
};

TEST_F(ServeOptionsTest, LiveOnesAreTakenOthersAreNamed) {
  ReadSettings before = *read("[serve]\nkeep-alive = 5\nsequences = 3\n");
  const ReadSettings after =
      *read("[serve]\nkeep-alive = 7\ntop-p = 0.5\nsequences = 4\nport = 2\n");
  const SettingsChange change = compare_settings(before.values, after.values);
  EXPECT_EQ(change.taken, (std::vector<std::string>{"keep-alive", "top-p"}));
  EXPECT_EQ(change.need_restart, std::vector<std::string>{"sequences"});  // a flag gives the port
  take_settings(change.taken, after.options, before.options);
  EXPECT_EQ(before.options.keep_alive_s, 7);
  EXPECT_EQ(before.options.sampling.top_p, 0.5F);
  EXPECT_EQ(before.options.engine.sequences, 3);
  // Until the restart it is named again; what was taken is not.
  const SettingsChange again = compare_settings(before.values, after.values);
  EXPECT_TRUE(again.taken.empty());
  EXPECT_EQ(again.need_restart, std::vector<std::string>{"sequences"});
}

TEST_F(ServeOptionsTest, WithKeysOrWithoutIsAnotherServer) {
  ReadSettings before = *read("");
  const SettingsChange change =
      compare_settings(before.values, read("[serve]\napi-keys = \"k\"\n")->values);
  EXPECT_TRUE(change.taken.empty());
  EXPECT_EQ(change.need_restart, std::vector<std::string>{"api-keys"});
}

TEST_F(ServeOptionsTest, AWrongFileIsOneError) {
  for (const char* file : {"[serve\n", "[serve]\nsequences = 70000\n", "[serve]\nnonsense = 1\n",
                           "[serve]\ntls-cert = \"c\"\n"}) {
    const auto settings = read(file);
    ASSERT_FALSE(settings) << file;
    EXPECT_EQ(settings.error().message.find('\n'), std::string::npos);
  }
}

// The model's wishes are read again as well.
TEST_F(ServeOptionsTest, TheModelsWishesAreLive) {
  const std::string model = testing::TempDir() + "serve_options_model";
  std::filesystem::create_directories(model);
  const auto wish = [&](const char* text) {
    EXPECT_TRUE(write_file_atomic(model + "/generation_config.json", text));
    return read("[serve]\ntop-p = 0.5\nmodel = \"" + model + "\"\n");
  };
  ReadSettings before = *wish(R"({"temperature": 0.25, "top_p": 0.75})");
  EXPECT_EQ(before.options.sampling.temperature, 0.25F);
  EXPECT_EQ(before.options.sampling.top_p, 0.5F);
  const SettingsChange change =
      compare_settings(before.values, wish(R"({"temperature": 0.5, "top_p": 0.25})")->values);
  EXPECT_EQ(change.taken, std::vector<std::string>{"temperature"});
  EXPECT_FALSE(wish(R"({"temperature": "warm"})"));
  std::filesystem::remove_all(model);
}

// Every setting that is taken over is one that exists.
TEST_F(ServeOptionsTest, AllLiveSettingsChange) {
  ReadSettings before = *read("");
  const ReadSettings after = *read(
      "[serve]\nmax-output-tokens = 9\ndrain-grace = 9\ndrain-deadline = 9\nkeep-alive = 9\n"
      "request-timeout = 9\nstuck-after = 9\nmax-body = 9\nmax-connections = 9\n"
      "log-level = \"warn\"\ntemperature = 9\ntop-k = 9\ntop-p = 0.9\nmin-p = 0.9\n"
      "repetition-penalty = 9\nfrequency-penalty = 9\npresence-penalty = 9\nseed = 9\n");
  const SettingsChange change = compare_settings(before.values, after.values);
  EXPECT_EQ(change.taken.size(), 17U);
  EXPECT_TRUE(change.need_restart.empty());
}

}  // namespace
}  // namespace galley::tools
