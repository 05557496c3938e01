#include "tools/model_settings.h"

#include <filesystem>

#include "base/file.h"
#include "tools/backend.h"

namespace galley::tools {
namespace {

constexpr const char* kBundledModel = "models/nano";
constexpr int kAncestorsMax = 5;  // build/release/bin is three below the sources

}  // namespace

void add_model_directory(Command& command, std::string& model) {
  command.setting("-m,--model", model, "Model directory (default: the bundled models/nano)")
      .value_name("DIR");
}

void add_model_settings(Command& command, ModelSettings& settings) {
  add_model_directory(command, settings.model);
  command.setting("--backend", settings.backend, std::string(kBackendHelp))
      .choices({"auto", "fast", "fast-avx512bf16", "fast-avx2", "plain", "cuda"})
      .value_name("NAME");
  command.setting("--threads", settings.threads, "Threads; 0 = all that this process may use")
      .range(0, 1024)
      .value_name("N");
}

Result<std::string> find_model(const std::string& given) {
  if (!given.empty()) {
    if (is_directory(given)) return given;
    return Error{ErrorCode::kNotFound,
                 "no model at " + given + ": " +
                     (exists(given) ? "not a directory" : "no such directory") +
                     "; name one with --model or GALLEY_MODEL"};
  }
  if (is_directory(kBundledModel)) return std::string(kBundledModel);
  std::error_code ignored;
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", ignored);
  for (int i = 0; i < kAncestorsMax && folder.has_relative_path(); ++i) {
    folder = folder.parent_path();
    const std::string candidate = (folder / kBundledModel).string();
    if (is_directory(candidate)) return candidate;
  }
  return Error{ErrorCode::kNotFound,
               "no model: models/nano is neither here nor beside the program; name a directory "
               "with --model or GALLEY_MODEL"};
}

}  // namespace galley::tools
