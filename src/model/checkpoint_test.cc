// Shows that the goldens' checkpoints open, and that each way in which a model
// directory can be broken is one clear line: a small sparse model is changed in
// one place at a time.
#include "model/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "model/inventory.h"
#include "model/released_config.h"
#include "model/sparse_checkpoint.h"

namespace galley::model {
namespace {

using nlohmann::json;

// The released config shrunk until a model takes kilobytes: every kind of tensor is left.
std::string small_config() {
  json config = json::parse(released_config_json());
  json& text = config["text_config"];
  text.update({{"vocab_size", 512},
               {"hidden_size", 64},
               {"num_hidden_layers", 4},
               {"moe_intermediate_size", 32},
               {"num_attention_heads", 2},
               {"head_dim", 64},
               {"qk_rope_head_dim", 32},
               {"q_lora_rank", 32},
               {"o_lora_rank", 32},
               {"o_groups", 2},
               {"n_routed_experts", 4},
               {"num_experts_per_tok", 2},
               {"compress_ratios", {0, 2, 1, 1}},
               {"kv_source_layer_ids", {1, 2}},
               {"index_source_layer_ids", {1, 2, 3}},
               {"candidate_source_layer_id", 2},
               {"index_n_heads", 2},
               {"index_head_dim", 32},
               {"engram_layer_ids", {0}},
               {"engram_vocab_size", 10},
               {"engram_n_heads", 1},
               {"engram_head_dim", 32},
               {"engram_num_embeddings", {11 + 13 + 17}},
               {"engram_compressed_vocab_size", 400},
               {"num_nextn_predict_layers", 2},
               {"dspark_noise_token_id", 3},
               {"dspark_target_layer_ids", {2, 3}},
               {"dspark_markov_rank", 32},
               {"dspark_n_routed_experts", 2},
               {"dspark_num_experts_per_tok", 1}});
  config["image_token_id"] = 5;
  config["vision_config"].update({{"num_hidden_layers", 1},
                                  {"hidden_size", 64},
                                  {"num_attention_heads", 2},
                                  {"intermediate_size", 32}});
  return config.dump();
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "galley_checkpoint_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    auto plan = CheckpointPlan::of_config(small_config(), 2);
    ASSERT_TRUE(plan) << plan.error().message;
    plan_ = *std::move(plan);
    ASSERT_EQ(plan_.shards.size(), 2U);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write() {
    const auto written = plan_.write(directory_);
    ASSERT_TRUE(written) << written.error().message;
  }
  // The one line; empty when it opens. Holds the rules every line obeys.
  Error error() {
    const auto checkpoint = Checkpoint::open(directory_);
    if (checkpoint) return {ErrorCode::kInvalid, ""};
    EXPECT_EQ(checkpoint.error().message.find('\n'), std::string::npos);
    EXPECT_NE(checkpoint.error().message.find(directory_), std::string::npos);
    const std::vector<Error> all = Checkpoint::problems(directory_, 100);
    EXPECT_GE(all.size(), 1U);
    EXPECT_EQ(all.at(0).message, checkpoint.error().message);
    return checkpoint.error();
  }
  std::string message() {
    const std::string text = error().message;
    return text.empty() ? text : text.substr(directory_.size());
  }
  std::string path(const std::string& file) const { return directory_ + "/" + file; }

  std::string directory_;
  CheckpointPlan plan_;
};

const std::string kFirst = "model-00001-of-00002.safetensors";
const std::string kSecond = "model-00002-of-00002.safetensors";

TEST_F(CheckpointTest, OpensShards) {
  write();
  const auto checkpoint = Checkpoint::open(directory_ + "/");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->shard_count(), 2U);
  EXPECT_EQ(checkpoint->tensors().size(), expected_tensors(checkpoint->config()).size());
  EXPECT_EQ(checkpoint->find("layers.0.attn.compressor.wkv.weight"), nullptr);
  EXPECT_TRUE(Checkpoint::problems(directory_, 10).empty());
}

TEST_F(CheckpointTest, OpensOneFile) {
  CheckpointPlan one;
  one.config_json = plan_.config_json;
  one.shards["model.safetensors"] =
      CheckpointPlan::of_config(small_config(), 1)->shards["model-00001-of-00001.safetensors"];
  plan_ = one;
  write();
  EXPECT_EQ(message(), "");
}

TEST_F(CheckpointTest, WeightsSayHowTheyAreStored) {
  write();
  const auto checkpoint = Checkpoint::open(directory_);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const kernels::WeightView fp8 = checkpoint->weight("layers.1.attn.wq_b");
  EXPECT_EQ(fp8.format, kernels::WeightFormat::kFp8Tile32);
  EXPECT_EQ(fp8.out, 128);
  EXPECT_EQ(fp8.in, 32);
  EXPECT_EQ(fp8.scale, checkpoint->tensor("layers.1.attn.wq_b.scale").as<uint8_t>());
  const kernels::WeightView fp4 = checkpoint->weight("layers.1.ffn.experts.3.w2");
  EXPECT_EQ(fp4.format, kernels::WeightFormat::kFp4Row32);
  EXPECT_EQ(fp4.out, 64);
  EXPECT_EQ(fp4.in, 32);
  EXPECT_EQ(checkpoint->weight("head").format, kernels::WeightFormat::kBf16);
  EXPECT_EQ(checkpoint->weight("head").scale, nullptr);
}

TEST_F(CheckpointTest, FollowsSymbolicLinks) {
  write();
  std::filesystem::create_directory(path("blobs"));
  for (const std::string& shard : {kFirst, kSecond}) {
    std::filesystem::rename(path(shard), path("blobs/" + shard));
    std::filesystem::create_symlink("blobs/" + shard, path(shard));
  }
  EXPECT_EQ(message(), "");
}

TEST_F(CheckpointTest, NoDirectory) {
  directory_ += "/absent";
  EXPECT_EQ(error().code, ErrorCode::kNotFound);
  EXPECT_EQ(message(), ": no such model directory");
}

TEST_F(CheckpointTest, AFileIsNoDirectory) {
  directory_ += "/file";
  ASSERT_TRUE(write_file_atomic(directory_, "x"));
  EXPECT_EQ(message(),
            ": not a directory; a model is a directory with config.json and safetensors");
  directory_ = std::filesystem::path(directory_).parent_path();
}

TEST_F(CheckpointTest, DirectoryWithoutModel) {
  EXPECT_EQ(message(), ": no model here (config.json is missing)");
  ASSERT_TRUE(write_file_atomic(path("config.json"), plan_.config_json));
  EXPECT_EQ(message(),
            ": no weights here (neither model.safetensors.index.json nor model.safetensors)");
}

TEST_F(CheckpointTest, BadConfigNamesFileAndField) {
  plan_.config_json.replace(plan_.config_json.find("\"hc_mult\":4"), 11, "\"hc_mult\":0");
  write();
  EXPECT_EQ(message(), "/config.json: text_config.hc_mult: must lie in 1..16, is 0");
}

TEST_F(CheckpointTest, NoPermission) {
  write();
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path(kSecond).c_str(), 0), 0);
  // Root may read everything: look with the eyes of nobody.
  const bool is_root = ::geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const Error shard = error();
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_EQ(shard.code, ErrorCode::kPermission);
  EXPECT_EQ(shard.message, "cannot open " + path(kSecond) + ": Permission denied");

  ASSERT_EQ(::chmod(directory_.c_str(), 0), 0);
  if (is_root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const Error directory = error();
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  EXPECT_EQ(directory.message, "cannot open " + path("config.json") + ": Permission denied");
}

TEST_F(CheckpointTest, MissingShard) {
  write();
  std::filesystem::remove(path(kSecond));
  EXPECT_EQ(error().code, ErrorCode::kNotFound);
  EXPECT_EQ(message(), "/" + kSecond + ": missing shard, named by model.safetensors.index.json");
}

TEST_F(CheckpointTest, DanglingLinkIsAMissingShard) {
  write();
  std::filesystem::remove(path(kSecond));
  std::filesystem::create_symlink("nowhere", path(kSecond));
  EXPECT_EQ(message(), "/" + kSecond + ": missing shard, named by model.safetensors.index.json");
}

TEST_F(CheckpointTest, TruncatedShard) {
  write();
  const auto size = std::filesystem::file_size(path(kSecond));
  for (const uintmax_t left : {size - 1, size / 2, uintmax_t{100}, uintmax_t{8}, uintmax_t{0}}) {
    std::filesystem::resize_file(path(kSecond), left);
    const std::string text = message();
    EXPECT_EQ(text.find("/" + kSecond + ": "), 0U) << text;
    EXPECT_NE(text.find("runcated"), std::string::npos) << text;
  }
}

TEST_F(CheckpointTest, ShardThatIsADirectory) {
  write();
  std::filesystem::remove(path(kSecond));
  std::filesystem::create_directory(path(kSecond));
  EXPECT_FALSE(Checkpoint::open(directory_));
}

TEST_F(CheckpointTest, WrongDtype) {
  PlannedTensor* tensor = plan_.find("layers.2.attn.wq_a.weight");
  tensor->dtype = "F8_E5M2";
  write();
  EXPECT_EQ(message(),
            "/" + kFirst + ": tensor \"layers.2.attn.wq_a.weight\" is F8_E5M2, must be F8_E4M3");
}

TEST_F(CheckpointTest, WrongShape) {
  PlannedTensor* tensor = plan_.find("layers.2.attn.wq_a.weight");
  tensor->shape = {64, 32};
  write();
  EXPECT_EQ(message(), "/" + kFirst +
                           ": tensor \"layers.2.attn.wq_a.weight\" has shape [64, 32], the config "
                           "implies [32, 64]");
}

TEST_F(CheckpointTest, MissingTensor) {
  plan_.erase("layers.3.attn_norm.weight");
  plan_.rebuild_index();
  write();
  EXPECT_EQ(message(),
            ": tensor \"layers.3.attn_norm.weight\" is missing, the config implies BF16 or F32 "
            "[64]");
}

TEST_F(CheckpointTest, MissingTensorThatTheIndexNames) {
  plan_.erase("mtp.1.norm.weight");
  write();
  EXPECT_EQ(message(),
            ": tensor \"mtp.1.norm.weight\" is missing, the config implies BF16 or F32 "
            "[64]");
}

TEST_F(CheckpointTest, MissingScale) {
  plan_.erase("layers.3.ffn.experts.1.w2.scale");
  plan_.rebuild_index();
  write();
  EXPECT_EQ(message(),
            ": scale tensor \"layers.3.ffn.experts.1.w2.scale\" is missing, the config implies "
            "F8_E8M0 [64, 1]");
}

TEST_F(CheckpointTest, UnknownTensor) {
  plan_.shards[kSecond].push_back({"layers.3.attn.bias", "U8", {4}, 4});
  plan_.rebuild_index();
  write();
  EXPECT_EQ(message(),
            "/" + kSecond + ": tensor \"layers.3.attn.bias\" is unknown: the config implies none");
}

TEST_F(CheckpointTest, UnknownTensorInTheIndexAlone) {
  plan_.shards[kSecond].push_back({"layers.9.x", "U8", {4}, 4});
  plan_.rebuild_index();
  plan_.shards[kSecond].pop_back();
  write();
  EXPECT_EQ(message(),
            "/model.safetensors.index.json: tensor \"layers.9.x\" is unknown: the config implies "
            "none");
}

TEST_F(CheckpointTest, TensorThatTheIndexDoesNotName) {
  plan_.shards[kSecond].push_back({"layers.9.x", "U8", {4}, 4});
  write();
  EXPECT_EQ(message(),
            "/" + kSecond + ": tensor \"layers.9.x\" is not in model.safetensors.index.json");
}

TEST_F(CheckpointTest, TensorInTwoShards) {
  PlannedTensor copy = *plan_.find("norm.weight");
  plan_.shards[kSecond].insert(plan_.shards[kSecond].begin(), copy);
  write();
  EXPECT_EQ(message(), "/" + kSecond + ": tensor \"norm.weight\" belongs to " + kFirst +
                           " according to model.safetensors.index.json");
}

TEST_F(CheckpointTest, NameTwiceInTheIndex) {
  const size_t place = plan_.index_json.find("\"norm.weight\"");
  plan_.index_json.insert(place, "\"norm.weight\": \"" + kFirst + "\",\n");
  write();
  EXPECT_EQ(message(), "/model.safetensors.index.json: tensor \"norm.weight\" is named twice");
}

TEST_F(CheckpointTest, OverlappingTensors) {
  write();
  auto file = read_file(path(kFirst), 1 << 24);
  ASSERT_TRUE(file);
  // The second tensor begins where the first does.
  const size_t first = file->find("\"data_offsets\":[");
  const size_t second = file->find("\"data_offsets\":[", first + 1);
  const size_t digits = file->find(',', second + 16) - (second + 16);
  file->replace(second + 16, digits, std::string(digits - 1, ' ') + "0");
  ASSERT_TRUE(write_file_atomic(path(kFirst), *file));
  EXPECT_NE(message(), "");
}

TEST_F(CheckpointTest, MisalignedTensor) {
  // One byte in front of everything; that it is unknown comes later than that it is odd.
  auto& tensors = plan_.shards[kSecond];
  tensors.insert(tensors.begin(), {"odd", "U8", {1}, 1});
  plan_.rebuild_index();
  write();
  EXPECT_NE(message().find("is not aligned to its element size"), std::string::npos);
}

TEST_F(CheckpointTest, ConfigAndTensorsDisagree) {
  const std::string key = "\"n_routed_experts\":4";
  plan_.config_json.replace(plan_.config_json.find(key), key.size(), "\"n_routed_experts\":5");
  write();
  EXPECT_EQ(message(), "/" + kFirst +
                           ": tensor \"layers.0.ffn.gate.weight\" has shape [4, 64], the config "
                           "implies [5, 64]");
  EXPECT_GT(Checkpoint::problems(directory_, 1000).size(), 30U);
}

TEST_F(CheckpointTest, AcceptsTheKnownAlternatives) {
  for (const char* name : {"norm.weight", "layers.0.engram.q_weight", "layers.0.engram.k_weight",
                           "layers.1.attn.indexer.wk.weight", "mtp.1.confidence_head.proj.weight",
                           "layers.1.attn.indexer.k_norm.weight", "vision.norm.weight"}) {
    PlannedTensor* tensor = plan_.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    tensor->dtype = "F32";
    tensor->size_bytes *= 2;
  }
  PlannedTensor* patch = plan_.find("vision.patch_embed.proj.weight");
  patch->shape = {64, 3, 14, 14};
  write();
  ASSERT_EQ(message(), "");
  const auto checkpoint = Checkpoint::open(directory_);
  EXPECT_EQ(checkpoint->tensor("norm.weight").dtype, DType::kF32);
  EXPECT_EQ(checkpoint->tensor("vision.patch_embed.proj.weight").shape, (Shape{64, 588}));
}

// The released model in full size: 510 GB of holes. The limits are promises of the program,
// measured on two busy cores: 0.5 s and 90 MB.
TEST_F(CheckpointTest, FullSizeOpensQuicklyAndSmall) {
  auto plan = CheckpointPlan::of_config(released_config_json(), 48);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->shards.size(), 48U);
  const auto written = plan->write(directory_);
  if (!written) GTEST_SKIP() << "no room for sparse files: " << written.error().message;
  const auto start = std::chrono::steady_clock::now();
  const auto checkpoint = Checkpoint::open(directory_);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 96'085U);
  struct rusage usage = {};
  ASSERT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
#ifdef NDEBUG  // sanitizers cost more of both
  EXPECT_LT(took.count(), 5.0);
  EXPECT_LT(usage.ru_maxrss, 1 << 20);  // in KiB
#endif
}

// Counts of spec/model.md 2.
TEST(Inventory, TheReleasedModelHasItsTensors) {
  const auto config = parse_config(released_config_json());
  ASSERT_TRUE(config);
  const std::vector<ExpectedTensor> tensors = expected_tensors(*config);
  EXPECT_EQ(tensors.size(), 96'085U);
  int64_t bytes = 0;
  int64_t f32 = 0;
  int64_t fp4 = 0;
  for (const ExpectedTensor& tensor : tensors) {
    const int64_t elements = tensor.shape.elements();
    if (tensor.storage == Storage::kF32) f32 += elements;
    if (tensor.storage == Storage::kPackedFp4) fp4 += 2 * elements;
    bytes += elements * (tensor.storage == Storage::kF32         ? 4
                         : accepts(tensor.storage, DType::kBf16) ? 2
                                                                 : 1);
  }
  EXPECT_EQ(f32, 42'307'282);
  EXPECT_EQ(fp4, 557'171'343'360);
  EXPECT_EQ(bytes, 510'286'023'000);
}

class GoldenCheckpoint : public testing::TestWithParam<const char*> {};

TEST_P(GoldenCheckpoint, Opens) {
  const std::string directory =
      std::string(GALLEY_SOURCE_DIR) + "/tests/golden/" + GetParam() + "/checkpoint";
  if (!exists(directory)) GTEST_SKIP() << "no " << directory;
  const auto checkpoint = Checkpoint::open(directory);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->shard_count(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenCheckpoint,
                         testing::Values("g1-micro-text", "g2-micro-full"));

}  // namespace
}  // namespace galley::model
