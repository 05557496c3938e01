// The Engram hash and the tokenizer against units.json: primes, offsets,
// multipliers, table rows and token ids, all equal to the integer.
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/file.h"
#include "model/engram_hash.h"
#include "model/tokenizer.h"
#include "verify/context.h"
#include "verify/units.h"

namespace galley::verify {

namespace {

using nlohmann::json;

constexpr size_t kJsonBytesMax = size_t{64} << 20;

std::optional<int64_t> integer(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

// layer_ids, search_start, max_ngram, heads, classes, pad; empty when one is missing.
std::optional<model::EngramHashShape> shape_of(const json& entry) {
  model::EngramHashShape shape;
  const auto layers = entry.find("layer_ids");
  if (layers == entry.end() || !layers->is_array()) return std::nullopt;
  for (const json& layer : *layers) {
    if (!layer.is_number_integer()) return std::nullopt;
    shape.layer_ids.push_back(layer.get<int32_t>());
  }
  const auto start = integer(entry, "search_start");
  const auto ngram = integer(entry, "max_ngram");
  const auto heads = integer(entry, "heads");
  const auto classes = integer(entry, "classes");
  const auto pad = integer(entry, "pad");
  if (!start || !ngram || !heads || !classes || !pad) return std::nullopt;
  constexpr int64_t kMost = 1 << 24;
  for (const int64_t value : {*ngram, *heads, *classes}) {
    if (value < 1 || value > kMost) return std::nullopt;
  }
  if (*pad < 0 || *pad >= *classes) return std::nullopt;
  shape.prime_search_start = *start;
  shape.ngram_size_max = static_cast<int32_t>(*ngram);
  shape.heads = static_cast<int32_t>(*heads);
  shape.classes = static_cast<int32_t>(*classes);
  shape.pad_class = static_cast<int32_t>(*pad);
  return shape;
}

template <class Part>
int64_t different_of(const model::EngramHash& hash, const Table<int64_t>& expected, Part part) {
  int64_t different = 0;
  for (int32_t index = 0; index < hash.layer_count(); ++index) {
    const std::span<const int64_t> measured = part(index);
    for (size_t i = 0; i < measured.size(); ++i) different += measured[i] != expected.row(index)[i];
  }
  return different;
}

Result<void> check_hash(UnitsContext& context, const std::string& name, const json& entry) {
  const auto shape = shape_of(entry);
  if (!shape) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{}/units.json: {} is incomplete", context.directory, name)};
  }
  std::vector<int32_t> identity(static_cast<size_t>(shape->classes));
  std::iota(identity.begin(), identity.end(), 0);
  const auto hash = TRY(model::EngramHash::create(*shape, identity));
  const int64_t layers = hash.layer_count();
  const int64_t columns = hash.columns();
  UnitTensors tensors(context);
  const auto layer_ids = tensors.integers(name + ".layer_ids", {layers});
  const auto ids = tensors.integers(name + ".ids", {kAny});
  const auto alive = tensors.integers(name + ".alive", {ids.rows()});
  const auto primes = tensors.integers(name + ".primes", {layers, columns});
  const auto offsets = tensors.integers(name + ".offsets", {layers, columns});
  const auto multipliers = tensors.integers(name + ".multipliers", {layers, shape->ngram_size_max});
  const auto rows_alive = tensors.integers(name + ".rows_all_alive", {ids.rows(), layers, columns});
  const auto rows_masked = tensors.integers(name + ".rows_masked", {ids.rows(), layers, columns});
  if (!TRY(tensors.complete(name))) return {};
  if (!std::equal(layer_ids.values.begin(), layer_ids.values.end(), shape->layer_ids.begin())) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: {}.layer_ids are not those of units.json",
                                                  context.file.path(), name)};
  }
  Report& report = context.report;
  report.judge_equal(kUnits, name + ".primes",
                     different_of(hash, primes, [&](int32_t i) { return hash.primes(i); }),
                     std::ssize(primes.values));
  report.judge_equal(kUnits, name + ".offsets",
                     different_of(hash, offsets, [&](int32_t i) { return hash.offsets(i); }),
                     std::ssize(offsets.values));
  report.judge_equal(
      kUnits, name + ".multipliers",
      different_of(hash, multipliers, [&](int32_t i) { return hash.multipliers(i); }),
      std::ssize(multipliers.values));
  std::vector<int32_t> tokens;
  for (const int64_t id : ids.values) {
    if (id < 0 || id >= shape->classes) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("{}: {}.ids holds {}", context.file.path(), name, id)};
    }
    tokens.push_back(static_cast<int32_t>(id));
  }
  std::vector<uint8_t> dead;
  for (const int64_t flag : alive.values) dead.push_back(flag == 0);
  for (const bool masked : {false, true}) {
    const Table<int64_t>& expected = masked ? rows_masked : rows_alive;
    std::vector<int64_t> rows(expected.values.size());
    for (int32_t index = 0; index < layers; ++index) {
      model::EngramTokens view{.tokens = tokens};
      if (masked) view.dead = dead;
      const auto length = std::ssize(tokens);
      hash.rows(index, view, 0, length,
                {rows.data() + index * columns, length, columns, layers * columns});
    }
    int64_t different = 0;
    for (size_t i = 0; i < rows.size(); ++i) different += rows[i] != expected.values[i];
    report.judge_equal(kUnits, name + (masked ? ".rows_masked" : ".rows_all_alive"), different,
                       std::ssize(rows));
  }
  return {};
}

// The model directory beside the units whose name begins with `prefix`, or empty.
std::string sibling_of(const std::string& directory, const std::string& prefix) {
  std::error_code ignored;
  const auto parent = std::filesystem::weakly_canonical(directory, ignored).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix + "-") &&
        exists(entry.path().string() + "/checkpoint/tokenizer.json")) {
      return entry.path().string();
    }
  }
  return "";
}

Result<void> check_tokenizer(UnitsContext& context, const std::string& name, const json& texts) {
  const std::string model = sibling_of(context.directory, name.substr(name.find('.') + 1));
  if (model.empty()) {
    context.report.absent(kUnits, name, "no model of that name beside the units");
    return {};
  }
  const auto tokenizer = TRY(model::Tokenizer::open(model + "/checkpoint"));
  int64_t different = 0;
  int64_t total = 0;
  for (const json& entry : texts) {
    if (!entry.is_object() || !entry.contains("text") || !entry["text"].is_string() ||
        !entry.contains("ids") || !entry["ids"].is_array()) {
      return Error{ErrorCode::kCorrupt, fmt::format("{}/units.json: {} holds an entry without text "
                                                    "or ids",
                                                    context.directory, name)};
    }
    ++total;
    const auto ids =
        TRY(tokenizer.encode(entry["text"].get<std::string>(), model::Markup::kActive));
    if (json(ids) != entry["ids"]) {
      ++different;
      continue;
    }
    if (const auto decoded = entry.find("decoded"); decoded != entry.end()) {
      different += json(TRY(tokenizer.decode(ids))) != *decoded;
    }
  }
  context.report.judge_equal(kUnits, name, different, total);
  return {};
}

}  // namespace

Result<void> check_unit_hash(UnitsContext& context) {
  const std::string path = context.directory + "/units.json";
  if (!exists(path)) {
    context.report.absent(kUnits, "Engram hash and tokenizer", "no units.json");
    return {};
  }
  const json root = json::parse(TRY(read_file(path, kJsonBytesMax)), nullptr, false);
  if (root.is_discarded() || !root.is_object()) {
    return Error{ErrorCode::kCorrupt, path + ": not a JSON object"};
  }
  for (const auto& [name, entry] : root.items()) {
    if (name.starts_with("engram.") && entry.is_object()) TRY(check_hash(context, name, entry));
    if (name.starts_with("tokenizer.") && entry.is_array()) {
      TRY(check_tokenizer(context, name, entry));
    }
  }
  return {};
}

}  // namespace galley::verify
