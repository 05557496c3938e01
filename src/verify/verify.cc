#include "verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "verify/context.h"
#include "verify/units.h"

namespace galley::verify {

namespace {

// Positions that the longest case needs, its continuation included.
Result<int64_t> positions_needed(const Golden& golden) {
  int64_t most = 1;
  for (const GoldenCase& one : golden.cases) {
    const auto tokens = TRY(golden.expected.integers(one.name + ".decode_tokens", {kAny}));
    const int64_t continuation = tokens ? static_cast<int64_t>(tokens->values.size()) : 0;
    most = std::max(most, static_cast<int64_t>(one.tokens.size()) + continuation);
  }
  return most;
}

Result<void> check_tokens(const Golden& golden, const model::Config& config) {
  for (const GoldenCase& one : golden.cases) {
    for (const int32_t token : one.tokens) {
      if (token < 0 || token >= config.vocab_size) {
        return Error{ErrorCode::kCorrupt,
                     fmt::format("{}/expected/cases.json: case {} holds token {} of a vocabulary "
                                 "of {}",
                                 golden.directory, one.name, token, config.vocab_size)};
      }
    }
  }
  return {};
}

void note_not_checked(const Golden& golden, const model::Config& config, Report& report) {
  constexpr const char* kSection = "drafts and tower";
  bool images = false;
  for (const GoldenCase& one : golden.cases) {
    images |= one.is_image();
    if (one.draft_steps > 0) {
      report.not_checked(kSection, one.name + " drafts", fmt::format("{} steps", one.draft_steps));
    }
  }
  if (config.dspark.stages == 0) report.absent(kSection, "drafts", "the model has no draft stages");
  if (config.vision.layers == 0) {
    report.absent(kSection, "vision tower", "the model has none");
  } else {
    report.not_checked(kSection, "vision tower",
                       images ? "image prompts start from the stored embed_in" : "");
  }
}

Result<Report> verify_model(const std::string& directory, kernels::Ops& ops) {
  const Golden golden = TRY(open_golden(directory));
  const auto parent = std::filesystem::path(directory) / ".." / "tolerances.json";
  const std::optional<Tolerances> limits =
      TRY(find_tolerances(parent.string(), {golden.name, golden.model}, limits_kind(ops.name())));
  const auto model = TRY(model::Model::open(golden.checkpoint()));
  TRY(check_tokens(golden, model->config()));
  const int64_t positions = TRY(positions_needed(golden));
  const auto runner = TRY(Runner::create(*model, ops, positions));
  Report report(directory, std::string(ops.name()), limits ? limits->source : "");
  Context context{golden, *model, *runner, limits, report};
  TRY(check_constants(context));
  TRY(check_layers_alone(context));
  TRY(check_whole_model(context));
  note_not_checked(golden, model->config(), report);
  report.sort_by_section({kConstants, kLayerAlone, kState, kWholeModel, kTrace});
  return report;
}

}  // namespace

std::string_view limits_kind(std::string_view backend) {
  return backend == "plain" ? "reference_rounding" : "production";
}

std::string layer_tensor(const std::string& tag, int32_t layer, std::string_view what) {
  return fmt::format("{}.layer{}.{}", tag, layer, what);
}

Prompt prompt_of(const GoldenCase& one, const Table<kernels::Bf16>* embed_in) {
  Prompt prompt;
  prompt.tokens = one.tokens;
  for (const int32_t type : one.token_types) prompt.in_image.push_back(type >= 0);
  if (embed_in != nullptr) {
    for (size_t t = 0; t < one.token_types.size(); ++t) {
      prompt.embeddings.push_back(one.token_types[t] >= 0 ? embed_in->row(static_cast<int64_t>(t))
                                                          : nullptr);
    }
  }
  return prompt;
}

Result<std::vector<std::string>> golden_directories(const std::string& path) {
  if (!is_directory(path)) return Error{ErrorCode::kNotFound, path + ": no such directory"};
  if (is_golden_model(path) || is_golden_units(path)) return std::vector<std::string>{path};
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string inner = entry.path().string();
    if (is_golden_units(inner) || is_golden_model(inner)) found.push_back(inner);
  }
  if (error) return Error{ErrorCode::kIo, fmt::format("{}: {}", path, error.message())};
  if (found.empty()) {
    return Error{ErrorCode::kNotFound,
                 path +
                     ": no golden directory (checkpoint/ and expected/, or units.safetensors) "
                     "here or one level down"};
  }
  // The units first: what they show to be wrong, everything after them inherits.
  std::sort(found.begin(), found.end(), [](const std::string& a, const std::string& b) {
    const bool a_units = is_golden_units(a);
    const bool b_units = is_golden_units(b);
    return a_units != b_units ? a_units : a < b;
  });
  return found;
}

Result<Report> verify_directory(const std::string& directory, kernels::Ops& ops) {
  if (is_golden_units(directory)) return verify_units(directory, ops);
  return verify_model(directory, ops);
}

}  // namespace galley::verify
