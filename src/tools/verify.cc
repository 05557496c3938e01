// `galley verify`: golden directories against a backend. What is checked and how
// it is judged lives in verify/; this chooses kernels and prints.
#include "verify/verify.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/backend.h"
#include "tools/command.h"
#include "tools/exit_code.h"
#include "tools/verbs.h"

namespace galley::tools {

namespace {

// A deviation outweighs having nothing to judge by, which outweighs a pass.
int worse(int a, int b) {
  const auto rank = [](int code) {
    return code == kExitNothingToJudge ? 1 : code == kExitOk ? 0 : 2;
  };
  return rank(b) > rank(a) ? b : a;
}

}  // namespace

int run_verify(int argc, char** argv) {
  Command command(
      "verify", "Compares this program with DeepSeek's reference code on golden directories.",
      "galley verify tests/golden                         every model and the units\n"
      "galley verify tests/golden/g1-micro-text --json    one model, for machines\n"
      "\n"
      "Limits come from tolerances.json beside the directory: reference_rounding for the plain\n"
      "backend, production for the others. Exit 0: all within limits, 1: a deviation or a file\n"
      "that cannot be read, 2: no limits to judge by.");
  std::string directory;
  std::string backend_name = "fast";
  int32_t threads = 0;
  bool as_json = false;
  command.argument("DIR", directory, "a golden directory, or a folder of several").required();
  command.setting("--backend", backend_name, std::string(kBackendHelp));
  command.setting("--threads", threads, "0: every CPU this process may use").range(0, 1024);
  command.argument("--json", as_json, "print one JSON object instead of tables");
  if (const auto code = command.parse(argc, argv)) return *code;

  auto backend = make_backend(backend_name, threads);
  if (!backend) {
    return backend.error().code == ErrorCode::kInvalid ? command.usage(backend.error().message)
                                                       : command.fail(backend.error());
  }
  const auto directories = verify::golden_directories(directory);
  if (!directories) return command.fail(directories.error());

  int code = kExitOk;
  nlohmann::json runs = nlohmann::json::array();
  for (const std::string& one : *directories) {
    const auto report = verify::verify_directory(one, *backend->ops);
    if (!report) {
      code = worse(code, command.fail(report.error()));
      runs.push_back({{"directory", one},
                      {"backend", backend->ops->name()},
                      {"exit_code", kExitFailed},
                      {"error", report.error().message}});
      continue;
    }
    code = worse(code, report->exit_code());
    if (as_json) {
      runs.push_back(report->to_json());
    } else {
      std::fputs(report->table().c_str(), stdout);
      std::fflush(stdout);
    }
  }
  if (as_json) {
    const nlohmann::json result = {{"exit_code", code}, {"runs", std::move(runs)}};
    // A path may be any bytes; JSON takes UTF-8 only.
    std::puts(result.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  return code;
}

}  // namespace galley::tools
