#include "random_model.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "kernels/number_formats.h"
#include "model/engram_primes.h"
#include "model/safetensors.h"
#include "model/sparse_checkpoint.h"

namespace galley::testing {
namespace {

// Deletes itself; the mappings of an opened checkpoint outlive its files.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = std::filesystem::temp_directory_path() / "galley-XXXXXX";
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

bool ends_with(const std::string& name, const std::string& end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

// Values of one tensor in its stored form.
std::vector<uint8_t> draw(const model::TensorEntry& entry, std::mt19937& random) {
  std::vector<uint8_t> bytes(entry.end - entry.begin);
  std::normal_distribution<float> normal;
  const auto real = [&](float value, uint8_t* at) {
    if (entry.dtype == model::DType::kF32) {
      std::memcpy(at, &value, sizeof value);
    } else {
      const kernels::Bf16 rounded = kernels::to_bf16(value);
      std::memcpy(at, &rounded, sizeof rounded);
    }
  };
  switch (entry.dtype) {
    case model::DType::kF8E4M3:
      for (uint8_t& code : bytes) code = kernels::f32_to_e4m3(normal(random));
      break;
    case model::DType::kF8E8M0: {
      // About fan_in^-0.5 for the widths of these models; what a site adds to the
      // streams is small beside them, or rounding would grow like chaos.
      const bool output = ends_with(entry.name, "wo_b.scale") || ends_with(entry.name, "w2.scale");
      for (uint8_t& code : bytes) code = static_cast<uint8_t>((output ? 120 : 123) + random() % 2);
      break;
    }
    case model::DType::kI8:
      for (uint8_t& pair : bytes) pair = static_cast<uint8_t>(random());
      break;
    default: {
      const size_t width = entry.dtype == model::DType::kF32 ? 4 : 2;
      const bool norm = ends_with(entry.name, "norm.weight");
      const bool scale = ends_with(entry.name, "_scale");
      const bool bias = ends_with(entry.name, "bias") || ends_with(entry.name, "_base") ||
                        ends_with(entry.name, "sink");
      const auto fan_in = static_cast<float>(entry.shape[entry.shape.rank - 1]);
      for (size_t i = 0; i < bytes.size(); i += width) {
        const float z = normal(random);
        real(norm    ? 1.0F + 0.1F * z
             : scale ? 0.5F
             : bias  ? 0.1F * z
                     : z / std::sqrt(fan_in),
             bytes.data() + i);
      }
    }
  }
  return bytes;
}

void fill(const std::string& path, std::mt19937& random) {
  const MappedFile mapped = MappedFile::open(path).value();
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto entries = model::parse_safetensors(mapped.bytes()).value();
  for (const model::TensorEntry& entry : entries) {
    const std::vector<uint8_t> bytes = draw(entry, random);
    file.seekp(static_cast<std::streamoff>(entry.begin));
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  CHECK(file.good());
}

}  // namespace

void write_random_model(const std::string& directory,
                        const std::function<void(nlohmann::json& text)>& change, uint32_t seed) {
  const std::filesystem::path base =
      std::filesystem::path(GALLEY_SOURCE_DIR) / "tests/golden/g1-micro-text/checkpoint";
  nlohmann::json config;
  std::ifstream(base / "config.json") >> config;
  nlohmann::json& text = config["text_config"];
  change(text);
  if (text.contains("engram_layer_ids")) {
    std::vector<int64_t> rows;
    for (const auto& table : model::engram_tables(
             text["engram_vocab_size"], static_cast<int32_t>(text["engram_layer_ids"].size()),
             text["engram_max_ngram_size"], text["engram_n_heads"])) {
      rows.push_back(table.rows);
    }
    text["engram_num_embeddings"] = rows;
  }
  const auto plan = model::CheckpointPlan::of_config(config.dump(), 1);
  if (!plan) std::fprintf(stderr, "%s\n", plan.error().message.c_str());
  CHECK(plan.value().write(directory).has_value());
  std::mt19937 random(seed);
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") fill(entry.path(), random);
  }
  std::filesystem::copy(base / "tokenizer.json", directory);
}

std::unique_ptr<model::Model> random_model(const std::function<void(nlohmann::json& text)>& change,
                                           uint32_t seed) {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), change, seed);
  auto opened = model::Model::open(directory.path());
  if (!opened) std::fprintf(stderr, "%s\n", opened.error().message.c_str());
  return std::move(opened).value();
}

}  // namespace galley::testing
