#include "tools/synthetic_model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kernels/number_formats.h"
#include "model/checkpoint.h"
#include "model/inventory.h"
#include "model/released_config.h"

namespace galley::tools {
namespace {

constexpr size_t kAlignment = 4096;
constexpr int64_t kChunkBytes = int64_t{4} << 20;
// Root mean square of uniform finite codes, for scales that give weights of fan_in^-0.5.
constexpr double kFp8Rms = 105.0;
constexpr double kFp4Rms = 2.93;

// A fast stream for bulk bytes: splitmix64, started by position.
class Bulk {
 public:
  explicit Bulk(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // Uniform in [-1, 1).
  float unit() { return static_cast<float>(static_cast<int64_t>(next()) >> 11) * 0x1p-52F; }

 private:
  uint64_t state_;
};

enum class Fill : uint8_t { kFp8, kFp4, kScale, kBf16, kF32 };

struct Region {
  std::byte* data;
  int64_t bytes;
  Fill fill;
  uint8_t scale_code;  // of kScale
  float spread;        // of kBf16 and kF32: values lie within +- spread around centre
  float centre;
};

void fill_bytes(const Region& region, int64_t begin, int64_t end, uint64_t seed) {
  Bulk bulk(seed);
  std::byte* out = region.data;
  switch (region.fill) {
    case Fill::kFp8:
    case Fill::kFp4:
      for (int64_t i = begin; i < end; i += 8) {
        uint64_t word = bulk.next();
        // An E4M3 byte with all magnitude bits set is NaN: clear the lowest bit of each byte.
        if (region.fill == Fill::kFp8) word &= 0xFEFEFEFEFEFEFEFE;
        std::memcpy(out + i, &word, static_cast<size_t>(std::min<int64_t>(8, end - i)));
      }
      return;
    case Fill::kScale:
      for (int64_t i = begin; i < end; ++i) {
        out[i] = static_cast<std::byte>(region.scale_code + (bulk.next() & 1));
      }
      return;
    case Fill::kBf16:
      for (int64_t i = begin; i < end; i += 2) {
        const kernels::Bf16 value = kernels::to_bf16(region.centre + region.spread * bulk.unit());
        std::memcpy(out + i, &value, 2);
      }
      return;
    case Fill::kF32:
      for (int64_t i = begin; i < end; i += 4) {
        const float value = region.centre + region.spread * bulk.unit();
        std::memcpy(out + i, &value, 4);
      }
      return;
  }
}

// Chunks of all regions, spread over the threads; the bytes depend on their place alone.
void fill_all(const std::vector<Region>& regions, ThreadPool& pool) {
  struct Chunk {
    const Region* region;
    int64_t begin;
  };
  std::vector<Chunk> chunks;
  for (const Region& region : regions) {
    for (int64_t begin = 0; begin < region.bytes; begin += kChunkBytes) {
      chunks.push_back({&region, begin});
    }
  }
  pool.run(static_cast<int64_t>(chunks.size()), [&](int64_t index, int) {
    const Chunk& chunk = chunks[index];
    fill_bytes(*chunk.region, chunk.begin, std::min(chunk.begin + kChunkBytes, chunk.region->bytes),
               static_cast<uint64_t>(index) * 0xD1342543DE82EF95);
  });
}

bool ends_with(const std::string& name, std::string_view end) {
  return std::string_view(name).ends_with(end);
}

uint8_t scale_code(double weight_rms, double code_rms) {
  return static_cast<uint8_t>(127 + std::lround(std::log2(weight_rms / code_rms)) - 1);
}

model::DType dtype_of(model::Storage storage) {
  switch (storage) {
    case model::Storage::kBf16:
    case model::Storage::kBf16OrF32:
      return model::DType::kBf16;
    case model::Storage::kF32:
      return model::DType::kF32;
    case model::Storage::kFp8:
      return model::DType::kF8E4M3;
    case model::Storage::kPackedFp4:
      return model::DType::kI8;
    case model::Storage::kScale:
      return model::DType::kF8E8M0;
  }
  return model::DType::kBf16;
}

// Magnitudes that keep a random model from degenerating (spec/model.md 12).
Region region_of(const model::ExpectedTensor& tensor, std::byte* data, int64_t bytes) {
  Region region = {data, bytes, Fill::kBf16, 0, 0.0F, 0.0F};
  const int64_t in = tensor.shape[tensor.shape.rank - 1];
  const auto projection = static_cast<float>(std::sqrt(3.0 / static_cast<double>(in)));
  switch (tensor.storage) {
    case model::Storage::kFp8:
      region.fill = Fill::kFp8;
      return region;
    case model::Storage::kPackedFp4:
      region.fill = Fill::kFp4;
      return region;
    case model::Storage::kScale: {
      region.fill = Fill::kScale;
      const bool packed = tensor.part == model::Part::kRoutedExperts;
      const double rms = 1.0 / std::sqrt(32.0 * static_cast<double>(in));
      region.scale_code = scale_code(rms, packed ? kFp4Rms : kFp8Rms);
      return region;
    }
    case model::Storage::kF32:
      region.fill = Fill::kF32;
      region.spread = 0.17F;
      if (ends_with(tensor.name, "_fn")) region.spread = 0.017F;
      if (ends_with(tensor.name, "_scale")) region.centre = 0.5F;
      return region;
    case model::Storage::kBf16:
    case model::Storage::kBf16OrF32:
      region.spread = tensor.shape.rank > 1 ? projection : 0.1F;
      if (tensor.shape.rank == 1) region.centre = 0.5F;
      if (tensor.name == "embed.weight") region.spread = 0.2F;
      return region;
  }
  return region;
}

}  // namespace

Result<model::Config> released_layers_config(int32_t experts) {
  nlohmann::json json = nlohmann::json::parse(model::released_config_json());
  nlohmann::json& text = json["text_config"];
  text["num_hidden_layers"] = 2;
  text["compress_ratios"] = {2, 2};
  text["kv_source_layer_ids"] = {0};
  text["index_source_layer_ids"] = {0};
  text["candidate_source_layer_id"] = -1;
  text["engram_layer_ids"] = nlohmann::json::array();
  text["num_nextn_predict_layers"] = 0;
  text["n_routed_experts"] = experts;
  text["vocab_size"] = 4096;
  json["image_token_id"] = 4095;
  json["vision_config"]["num_hidden_layers"] = 0;
  return model::parse_config(json.dump());
}

Result<model::Config> released_whole_config() {
  nlohmann::json json = nlohmann::json::parse(model::released_config_json());
  nlohmann::json& text = json["text_config"];
  // 24 columns, each a prime number of rows from here on.
  text["engram_vocab_size"] = 160'000;
  text["engram_num_embeddings"] = {3'860'000, 3'860'000};
  text["num_nextn_predict_layers"] = 0;
  json["vision_config"]["num_hidden_layers"] = 0;
  return model::parse_config(json.dump());
}

SyntheticModel::Alias alias_by_role(const model::Config& config) {
  // [layers] the first layer that is like it.
  std::vector<int32_t> first;
  const auto alike = [](const model::LayerRole& a, const model::LayerRole& b) {
    return a.ratio == b.ratio && a.owns_kv == b.owns_kv && a.owns_indexer == b.owns_indexer &&
           (a.engram_index >= 0) == (b.engram_index >= 0);
  };
  for (const model::LayerRole& role : config.roles) {
    const auto found = std::ranges::find_if(
        config.roles, [&](const model::LayerRole& other) { return alike(role, other); });
    first.push_back(static_cast<int32_t>(found - config.roles.begin()));
  }
  const int32_t table = config.engram.layer_ids.empty() ? 0 : config.engram.layer_ids.front();
  return [first, table](const std::string& name) -> std::string {
    constexpr std::string_view kPrefix = "layers.";
    if (name == "head.weight") return "embed.weight";
    if (!name.starts_with(kPrefix)) return name;
    const size_t end = name.find('.', kPrefix.size());
    const int32_t layer = std::stoi(name.substr(kPrefix.size(), end - kPrefix.size()));
    const std::string rest = name.substr(end);
    int32_t owner = first[static_cast<size_t>(layer)];
    if (rest.starts_with(".ffn.experts.")) owner = layer % 2;
    if (rest.starts_with(".engram.embed.")) owner = table;
    return std::string(kPrefix) + std::to_string(owner) + rest;
  };
}

int64_t expert_bytes(const model::Config& config) {
  const int64_t values = int64_t{3} * config.hidden * config.expert_width;
  return values / 2 + values / 32;
}

Result<std::unique_ptr<SyntheticModel>> SyntheticModel::create(const model::Config& config,
                                                               ThreadPool& pool,
                                                               const Alias& alias) {
  const std::vector<model::ExpectedTensor> expected = model::expected_tensors(config);
  std::unordered_map<std::string, int64_t> offsets;  // of those that have memory of their own
  int64_t size = 0;
  for (const model::ExpectedTensor& tensor : expected) {
    if (alias(tensor.name) != tensor.name) continue;
    offsets[tensor.name] = size;
    const int64_t bytes = tensor.shape.elements() * model::dtype_bytes(dtype_of(tensor.storage));
    size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::unique_ptr<SyntheticModel> synthetic(new SyntheticModel());
  void* memory = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Error{ErrorCode::kExhausted,
                 "no memory for " + std::to_string(size) + " bytes of random weights"};
  }
  ::madvise(memory, static_cast<size_t>(size), MADV_HUGEPAGE);  // as the bandwidth buffer has
  synthetic->memory_ = static_cast<std::byte*>(memory);
  synthetic->size_ = static_cast<size_t>(size);
  std::vector<Region> regions;
  model::NameMap<model::TensorView> tensors;
  for (const model::ExpectedTensor& tensor : expected) {
    const std::string owner = alias(tensor.name);
    std::byte* data = synthetic->memory_ + offsets.at(owner);
    model::TensorView view;
    view.dtype = dtype_of(tensor.storage);
    view.shape = tensor.shape;
    view.data = data;
    view.size_bytes = static_cast<size_t>(tensor.shape.elements() * model::dtype_bytes(view.dtype));
    if (owner == tensor.name) {
      regions.push_back(region_of(tensor, data, static_cast<int64_t>(view.size_bytes)));
    }
    tensors.emplace(tensor.name, view);
  }
  fill_all(regions, pool);
  // Any classes do: rows of a random table mean nothing.
  std::vector<int32_t> classes;
  for (int32_t token = 0; !config.engram.layer_ids.empty() && token < config.vocab_size; ++token) {
    classes.push_back(token % config.engram.compressed_vocab_size);
  }
  synthetic->model_ = TRY(model::Model::create(
      model::Checkpoint::of_memory(config, std::move(tensors)), std::move(classes)));
  return synthetic;
}

SyntheticModel::~SyntheticModel() {
  model_.reset();
  if (memory_ != nullptr) ::munmap(memory_, size_);
}

void fill_cache(const model::Config& config, model::KvCache& cache, ThreadPool& pool) {
  const model::KvLayout& layout = cache.layout();
  const int64_t global_codes = config.head_dim / 2;
  const int64_t index_codes = config.index_head_dim / 2;
  // E4M3 0x30 is 0.5, UE8M0 126 and 127 are a half and one.
  const auto records = [](std::byte* at, int64_t count, int64_t record_bytes, int64_t code_bytes,
                          Fill codes, uint8_t scale, uint64_t seed) {
    for (int64_t i = 0; i < count; ++i) {
      std::byte* record = at + i * record_bytes;
      fill_bytes({record, code_bytes, codes, 0, 0, 0}, 0, code_bytes,
                 seed + static_cast<uint64_t>(i));
      std::memset(record + code_bytes, scale, static_cast<size_t>(record_bytes - code_bytes));
    }
  };
  pool.run(cache.page_count(), [&](int64_t page, int) {
    std::byte* base = cache.page(static_cast<int32_t>(page));
    const auto seed = static_cast<uint64_t>(page) << 32;
    for (const model::KvSourceLayout& source : layout.sources) {
      records(base + source.global_offset, source.records_per_page, layout.global_record_bytes,
              global_codes, Fill::kFp4, 0x30, seed);
      records(base + source.index_offset, source.records_per_page, layout.index_record_bytes,
              index_codes, Fill::kFp4, 126, seed + 0x10000000);
    }
  });
  for (int32_t slot = 0; slot < cache.slot_count(); ++slot) {
    for (const model::RingLayout& ring : layout.rings) {
      // Window codes reach 448: 2^-8 brings them to about one.
      records(cache.slot(slot) + ring.offset, ring.slots, layout.window_record_bytes,
              config.head_dim, Fill::kFp8, 127 - 8, static_cast<uint64_t>(slot) << 40);
    }
    for (const model::KvSourceLayout& source : layout.sources) {
      Region pending = {cache.slot(slot) + source.pending_offset,
                        layout.pending_row_bytes * source.pending_slots,
                        Fill::kF32,
                        0,
                        1.0F,
                        0.0F};
      fill_bytes(pending, 0, pending.bytes, 7);
    }
  }
}

}  // namespace galley::tools
