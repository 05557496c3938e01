// Writes a model directory of full size whose tensors are holes: almost no disk.
//
//   galley_sparse_checkpoint DIRECTORY [CONFIG.json] [SHARDS]
//
// Without a config it is the released DeepSeek-V4.1-Flash in 48 shards.
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/file.h"
#include "model/released_config.h"
#include "model/sparse_checkpoint.h"

namespace galley {
namespace {

Result<size_t> write_sparse(const std::string& directory, const char* config_path, int32_t shards) {
  std::string config = model::released_config_json();
  if (config_path != nullptr) config = TRY(read_file(config_path, size_t{4} << 20));
  const auto plan = TRY(model::CheckpointPlan::of_config(std::move(config), shards));
  ::mkdir(directory.c_str(), 0755);  // what goes wrong here, the first write reports
  TRY(plan.write(directory));
  size_t tensors = 0;
  for (const auto& [file, list] : plan.shards) tensors += list.size();
  return tensors;
}

}  // namespace
}  // namespace galley

int main(int argc, char** argv) {
  const int shards = argc > 3 ? std::atoi(argv[3]) : 48;
  if (argc < 2 || argc > 4 || shards < 1 || shards > 4096) {
    std::fputs("usage: galley_sparse_checkpoint DIRECTORY [CONFIG.json] [SHARDS 1..4096]\n",
               stderr);
    return 64;
  }
  const auto tensors =
      galley::write_sparse(argv[1], argc > 2 ? argv[2] : nullptr, static_cast<int32_t>(shards));
  if (!tensors) {
    std::fprintf(stderr, "galley_sparse_checkpoint: %s\n", tensors.error().message.c_str());
    return 1;
  }
  std::printf("%s: %zu tensors\n", argv[1], *tensors);
  return 0;
}
