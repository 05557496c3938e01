#include "model/checkpoint.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/inventory.h"

namespace galley::model {
namespace {

constexpr size_t kConfigBytesMax = size_t{4} << 20;
constexpr size_t kIndexBytesMax = 200'000'000;
constexpr size_t kShardsMax = 4096;
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

Error error_at(ErrorCode code, const std::string& path, const std::string& message) {
  return {code, path + ": " + message};
}

}  // namespace

// Collects what is wrong until `count_max` lines are full; the first line that
// makes the rest meaningless ends it.
class CheckpointReader {
 public:
  CheckpointReader(std::string directory, size_t count_max) : count_max_(count_max) {
    while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
    checkpoint_.directory_ = std::move(directory);
  }

  void read() {
    if (!keep(read_config())) return;
    if (!keep(find_shards())) return;
    if (!open_shards()) return;
    compare();
  }

  std::vector<Error>& problems() { return problems_; }
  Checkpoint& checkpoint() { return checkpoint_; }

 private:
  struct Place {
    TensorView view;
    size_t shard;
  };

  bool full() const { return problems_.size() >= count_max_; }
  void add(Error error) {
    if (!full()) problems_.push_back(std::move(error));
  }
  bool keep(Result<void> result) {
    if (result) return true;
    add(std::move(result).error());
    return false;
  }
  std::string path_of(const std::string& name) const { return checkpoint_.directory_ + "/" + name; }

  Result<void> read_config() {
    const std::string& directory = checkpoint_.directory_;
    const std::string path = path_of("config.json");
    auto text = read_file(path, kConfigBytesMax);
    if (!text && text.error().code == ErrorCode::kNotFound) {
      if (!exists(directory)) {
        return error_at(ErrorCode::kNotFound, directory, "no such model directory");
      }
      if (!is_directory(directory)) {
        return error_at(ErrorCode::kInvalid, directory,
                        "not a directory; a model is a directory with config.json and safetensors");
      }
      return error_at(ErrorCode::kNotFound, directory, "no model here (config.json is missing)");
    }
    const std::string json = TRY(std::move(text));
    auto config = parse_config(json);
    if (!config) return with_context(std::move(config).error(), path);
    checkpoint_.config_ = *std::move(config);
    return {};
  }

  // Fills shard_names_ and, with an index, where it places each tensor.
  Result<void> find_shards() {
    const std::string index_path = path_of(kIndexName);
    auto text = read_file(index_path, kIndexBytesMax);
    if (!text) {
      if (text.error().code != ErrorCode::kNotFound) return std::move(text).error();
      if (!exists(path_of(kSingleName))) {
        return error_at(
            ErrorCode::kNotFound, checkpoint_.directory_,
            std::string("no weights here (neither ") + kIndexName + " nor " + kSingleName + ")");
      }
      shard_names_.push_back(kSingleName);
      return {};
    }
    auto places = parse_safetensors_index(*text);
    if (!places) return with_context(std::move(places).error(), index_path);
    NameMap<size_t> shard_of_name;
    placed_.reserve(places->size());
    for (auto& [name, shard] : *places) {
      const auto [entry, is_new] = shard_of_name.try_emplace(shard, shard_names_.size());
      if (is_new) shard_names_.push_back(shard);
      if (shard_names_.size() > kShardsMax) {
        return error_at(ErrorCode::kCorrupt, index_path,
                        "more than " + std::to_string(kShardsMax) + " shards");
      }
      const size_t shard_index = entry->second;
      if (!placed_.try_emplace(std::move(name), shard_index).second) {
        return error_at(ErrorCode::kCorrupt, index_path, "tensor \"" + name + "\" is named twice");
      }
    }
    has_index_ = true;
    return {};
  }

  // False when a shard could not be read: what is missing then means nothing.
  bool open_shards() {
    bool all = true;
    for (size_t shard = 0; shard < shard_names_.size() && !full(); ++shard) {
      if (!keep(open_shard(shard))) all = false;
    }
    return all;
  }

  Result<void> open_shard(size_t shard) {
    const std::string path = path_of(shard_names_[shard]);
    auto opened = MappedFile::open(path);
    if (!opened && opened.error().code == ErrorCode::kNotFound) {
      return error_at(ErrorCode::kNotFound, path,
                      std::string("missing shard, named by ") + kIndexName);
    }
    MappedFile file = TRY(std::move(opened));
    auto entries = parse_safetensors(file.bytes());
    if (!entries) return with_context(std::move(entries).error(), path);
    for (TensorEntry& entry : *entries) {
      const TensorView view = {.dtype = entry.dtype,
                               .shape = entry.shape,
                               .data = file.bytes().data() + entry.begin,
                               .size_bytes = entry.end - entry.begin};
      place(shard, std::move(entry.name), view);
    }
    checkpoint_.shards_.push_back(std::move(file));
    return {};
  }

  void place(size_t shard, std::string name, const TensorView& view) {
    const std::string path = path_of(shard_names_[shard]);
    if (has_index_) {
      const auto found = placed_.find(name);
      if (found == placed_.end()) {
        add(error_at(ErrorCode::kCorrupt, path, "tensor \"" + name + "\" is not in " + kIndexName));
      } else if (found->second != shard) {
        add(error_at(ErrorCode::kCorrupt, path,
                     "tensor \"" + name + "\" belongs to " + shard_names_[found->second] +
                         " according to " + kIndexName));
        return;
      }
    }
    // Operands are read in place, so their elements must lie at multiples of their size.
    const auto address = reinterpret_cast<uintptr_t>(view.data);
    if (address % static_cast<uintptr_t>(dtype_bytes(view.dtype)) != 0 && view.size_bytes > 0) {
      add(error_at(ErrorCode::kUnsupported, path,
                   "tensor \"" + name + "\" is not aligned to its element size"));
    }
    tensor_shards_.try_emplace(name, shard);
    const auto [entry, is_new] = checkpoint_.tensors_.try_emplace(std::move(name), view);
    if (!is_new) {
      add(error_at(ErrorCode::kCorrupt, path,
                   "tensor \"" + entry->first + "\" is in another shard too"));
    }
  }

  std::string shard_path(std::string_view name) const {
    const auto found = tensor_shards_.find(name);
    return found == tensor_shards_.end() ? checkpoint_.directory_
                                         : path_of(shard_names_[found->second]);
  }

  void compare() {
    const std::vector<ExpectedTensor> expected = expected_tensors(checkpoint_.config_);
    NameMap<bool> known;
    known.reserve(expected.size());
    for (const ExpectedTensor& tensor : expected) {
      known.emplace(tensor.name, true);
      if (full()) return;
      compare_one(tensor);
    }
    const bool index_agrees = !has_index_ || placed_.size() == checkpoint_.tensors_.size();
    if (checkpoint_.tensors_.size() == expected.size() && problems_.empty() && index_agrees) return;
    std::vector<std::string_view> unknown;
    for (const auto& [name, view] : checkpoint_.tensors_) {
      if (!known.contains(name)) unknown.push_back(name);
    }
    std::sort(unknown.begin(), unknown.end());
    for (const std::string_view name : unknown) {
      add(error_at(ErrorCode::kCorrupt, shard_path(name),
                   "tensor \"" + std::string(name) + "\" is unknown: the config implies none"));
    }
    for (const auto& [name, shard] : placed_) {
      if (checkpoint_.tensors_.contains(name) || known.contains(name)) continue;
      add(error_at(ErrorCode::kCorrupt, path_of(kIndexName),
                   "tensor \"" + name + "\" is unknown: the config implies none"));
    }
  }

  void compare_one(const ExpectedTensor& expected) {
    const auto found = checkpoint_.tensors_.find(expected.name);
    if (found == checkpoint_.tensors_.end()) {
      const bool is_scale = expected.storage == Storage::kScale;
      add(error_at(ErrorCode::kCorrupt, checkpoint_.directory_,
                   std::string(is_scale ? "scale tensor \"" : "tensor \"") + expected.name +
                       "\" is missing, the config implies " +
                       std::string(storage_name(expected.storage)) + " " + expected.shape.text()));
      return;
    }
    TensorView& view = found->second;
    if (!accepts(expected.storage, view.dtype)) {
      add(error_at(ErrorCode::kCorrupt, shard_path(expected.name),
                   "tensor \"" + expected.name + "\" is " + std::string(dtype_name(view.dtype)) +
                       ", must be " + std::string(storage_name(expected.storage))));
      return;
    }
    if (view.shape == expected.shape) return;
    // A convolution's [out, 3, P, P] has the bytes of the matrix [out, 3 P P].
    if (expected.name == "vision.patch_embed.proj.weight" && view.shape.rank == 4 &&
        view.shape[0] == expected.shape[0] && view.shape[1] == 3 &&
        view.shape[2] == view.shape[3] && view.shape.elements() == expected.shape.elements()) {
      view.shape = expected.shape;
      return;
    }
    add(error_at(ErrorCode::kCorrupt, shard_path(expected.name),
                 "tensor \"" + expected.name + "\" has shape " + view.shape.text() +
                     ", the config implies " + expected.shape.text()));
  }

  size_t count_max_;
  std::vector<Error> problems_;
  Checkpoint checkpoint_;
  std::vector<std::string> shard_names_;
  bool has_index_ = false;
  NameMap<size_t> placed_;         // by the index
  NameMap<size_t> tensor_shards_;  // as found
};

Checkpoint Checkpoint::of_memory(Config config, NameMap<TensorView> tensors) {
  Checkpoint checkpoint;
  checkpoint.directory_ = "memory";
  checkpoint.config_ = std::move(config);
  checkpoint.tensors_ = std::move(tensors);
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  CheckpointReader reader(directory, 1);
  reader.read();
  if (!reader.problems().empty()) return std::move(reader.problems().front());
  return std::move(reader.checkpoint());
}

std::vector<Error> Checkpoint::problems(const std::string& directory, size_t count_max) {
  CheckpointReader reader(directory, count_max);
  reader.read();
  return std::move(reader.problems());
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const TensorView& Checkpoint::tensor(std::string_view name) const {
  const TensorView* view = find(name);
  CHECK(view != nullptr);
  return *view;
}

kernels::WeightView Checkpoint::weight(std::string_view stem) const {
  const std::string base(stem);
  const TensorView& values = tensor(base + ".weight");
  CHECK(values.shape.rank == 2);
  kernels::WeightView weight;
  weight.out = values.shape[0];
  weight.in = values.shape[1];
  weight.data = values.data;
  switch (values.dtype) {
    case DType::kF8E4M3:
      weight.format = kernels::WeightFormat::kFp8Tile32;
      weight.scale = tensor(base + ".scale").as<uint8_t>();
      break;
    case DType::kI8:
      weight.format = kernels::WeightFormat::kFp4Row32;
      weight.in *= 2;
      weight.scale = tensor(base + ".scale").as<uint8_t>();
      break;
    case DType::kF32:
      weight.format = kernels::WeightFormat::kF32;
      break;
    default:
      CHECK(values.dtype == DType::kBf16);
      weight.format = kernels::WeightFormat::kBf16;
  }
  return weight;
}

}  // namespace galley::model
