// What the program's exit status says; docs/cli.md repeats this table.
#pragma once

#include "base/result.h"

namespace galley::tools {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,          // the input, the model or the machine stopped it; one line says why
  kExitNothingToJudge = 2,  // verify: computed, but no tolerance to judge by
  kExitUsage = 64,          // the command line or a setting is wrong (sysexits EX_USAGE)
  kExitInterrupted = 130,   // Ctrl-C or SIGTERM; what was produced is kept (128 + SIGINT)
};

constexpr int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCancelled:
      return kExitInterrupted;
    case ErrorCode::kInvalid:
    case ErrorCode::kNotFound:
    case ErrorCode::kPermission:
    case ErrorCode::kCorrupt:
    case ErrorCode::kUnsupported:
    case ErrorCode::kExhausted:
    case ErrorCode::kIo:
      break;
  }
  return kExitFailed;
}

}  // namespace galley::tools
