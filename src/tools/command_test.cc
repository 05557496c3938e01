// Settings: the order flag, environment, file, default, and what is refused.
#include "tools/command.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "tools/exit_code.h"

namespace galley::tools {
namespace {

class CommandTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "command_test.toml";
    ::unsetenv("GALLEY_CONFIG");
    ::unsetenv("GALLEY_HEAT");
    ::unsetenv("GALLEY_PLACE");
  }

  std::optional<int> parse(std::vector<std::string> arguments, const std::string& file = "") {
    command_ = std::make_unique<Command>("run", "Tests.", "");
    heat_ = 0.5F;
    place_ = "here";
    loud_ = false;
    command_->setting("-t,--heat", heat_, "heat").range(0, 2);
    command_->setting("--place", place_, "place");
    command_->setting("--loud", loud_, "loud");
    command_->argument("--file", file_, "file");
    if (!file.empty()) {
      EXPECT_TRUE(write_file_atomic(path_, file).has_value());
      arguments.push_back("--config=" + path_);
    }
    std::vector<char*> argv = {const_cast<char*>("run")};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    return command_->parse(static_cast<int>(argv.size()), argv.data());
  }

  std::string path_;
  std::unique_ptr<Command> command_;
  float heat_ = 0;
  std::string place_;
  std::string file_;
  bool loud_ = false;
};

TEST_F(CommandTest, DefaultsStand) {
  EXPECT_EQ(parse({}), std::nullopt);
  EXPECT_EQ(heat_, 0.5F);
  EXPECT_EQ(place_, "here");
  EXPECT_FALSE(command_->given("heat"));
}

TEST_F(CommandTest, FileThenEnvironmentThenFlag) {
  const std::string file = "place = \"shared\"\n[run]\nheat = 0.7\nloud = true\n[batch]\nx = 1\n";
  EXPECT_EQ(parse({}, file), std::nullopt);
  EXPECT_EQ(heat_, 0.7F);
  EXPECT_EQ(place_, "shared");
  EXPECT_TRUE(loud_);
  ::setenv("GALLEY_HEAT", "0.9", 1);
  EXPECT_EQ(parse({}, file), std::nullopt);
  EXPECT_EQ(heat_, 0.9F);
  EXPECT_EQ(parse({"-t", "1.1"}, file), std::nullopt);
  EXPECT_EQ(heat_, 1.1F);
  EXPECT_TRUE(command_->given("heat"));
}

TEST_F(CommandTest, VerbTableWinsOverTopOfFile) {
  EXPECT_EQ(parse({}, "heat = 0.1\n[run]\nheat = 0.2\n"), std::nullopt);
  EXPECT_EQ(heat_, 0.2F);
}

TEST_F(CommandTest, RefusesWhatIsWrong) {
  EXPECT_EQ(parse({"--heat", "3"}), kExitUsage);                   // out of range
  EXPECT_EQ(parse({"--heat", "warm"}), kExitUsage);                // no number
  EXPECT_EQ(parse({"--unknown"}), kExitUsage);                     // no such flag
  EXPECT_EQ(parse({}, "[run]\nheat = 3\n"), kExitUsage);           // out of range in the file
  EXPECT_EQ(parse({}, "[run]\nwarmth = 1\n"), kExitUsage);         // no such setting
  EXPECT_EQ(parse({}, "[rum]\nheat = 1\n"), kExitUsage);           // no such verb
  EXPECT_EQ(parse({}, "[run]\nheat = [1]\n"), kExitUsage);         // no plain value
  EXPECT_EQ(parse({}, "[run\n"), kExitUsage);                      // no TOML
  EXPECT_EQ(parse({"--config=/nonexistent/x.toml"}), kExitUsage);  // no file
  ::setenv("GALLEY_HEAT", "hot", 1);
  EXPECT_EQ(parse({}), kExitUsage);
}

TEST_F(CommandTest, HelpEndsTheVerb) { EXPECT_EQ(parse({"--help"}), kExitOk); }

}  // namespace
}  // namespace galley::tools
