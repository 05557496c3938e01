// The one binary. Each verb is a file of its own; this one only chooses.
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/mapping_fault.h"
#include "tools/exit_code.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

struct Verb {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};

// In the order in which --help lists them; a verb enters with its file.
constexpr Verb kVerbs[] = {
    {"run", "generate from a prompt, streaming", run_run},
    {"batch", "answer a file of requests, resumable", run_batch},
    {"serve", "answer over HTTP, in the OpenAI and Anthropic APIs", run_serve},
    {"eval", "bits per byte of texts, accuracy on task sets", run_eval},
    {"doctor", "what a model needs, what fits here, whether its files are whole", run_doctor},
    {"tokenize", "text or messages to token ids and back", run_tokenize},
    {"bench", "times against floors measured in the same run", run_bench},
    {"verify", "compare with DeepSeek's reference code on golden directories", run_verify},
};

void print_help(std::FILE* out) {
  std::fputs(
      "Galley serves DeepSeek-V4.1-Flash: one binary, the released checkpoint as it is.\n\n"
      "Usage: galley VERB [options]     galley VERB --help     galley --version\n\nVerbs:\n",
      out);
  for (const Verb& verb : kVerbs) {
    std::fprintf(out, "  %-10s %s\n", verb.name.data(), verb.summary.data());
  }
  std::fputs(
      "\nSettings come from flags, then GALLEY_* in the environment, then galley.toml;\n"
      "`galley VERB --show-config` prints what is in force and where each value came from.\n\n"
      "Exit codes: 0 ok, 1 failed, 2 verify had nothing to judge by, 64 wrong usage,\n"
      "130 interrupted (what was produced is kept).\n",
      out);
}

int dispatch(int argc, char** argv) {
  if (argc < 2) {
    print_help(stderr);
    return kExitUsage;
  }
  const std::string_view name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    print_help(stdout);
    return kExitOk;
  }
  if (name == "--version") {
    std::puts("galley " GALLEY_VERSION);
    return kExitOk;
  }
  for (const Verb& verb : kVerbs) {
    if (verb.name == name) return verb.run(argc - 1, argv + 1);
  }
  std::fprintf(stderr, "galley: no verb named \"%s\"; `galley --help` lists them\n", argv[1]);
  return kExitUsage;
}

}  // namespace
}  // namespace galley::tools

int main(int argc, char** argv) {
  galley::report_mapping_faults();
  return galley::tools::dispatch(argc, argv);
}
