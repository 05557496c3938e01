#include "verify/tolerances.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace galley::verify {

namespace {

using nlohmann::json;

constexpr size_t kBytesMax = size_t{4} << 20;

class Reader {
 public:
  Reader(const json& entry, std::string where) : entry_(&entry), where_(std::move(where)) {}

  // An object inside the entry; an empty one when absent.
  Result<Reader> part(const char* key) const {
    static const json kEmpty = json::object();
    const auto found = entry_->find(key);
    const std::string where = fmt::format("{}.{}", where_, key);
    if (found == entry_->end()) return Reader(kEmpty, where);
    if (!found->is_object()) return Error{ErrorCode::kCorrupt, where + " is not an object"};
    return Reader(*found, where);
  }

  Result<Limit> number(const std::string& key) const {
    const auto found = entry_->find(key);
    if (found == entry_->end()) return Limit();
    if (!found->is_number() || found->get<double>() < 0) {
      return Error{ErrorCode::kCorrupt, where_ + "." + key + " is not a number of at least 0"};
    }
    return Limit(found->get<double>());
  }

  const json& entry() const { return *entry_; }
  const std::string& where() const { return where_; }

 private:
  const json* entry_;
  std::string where_;
};

Result<std::map<int32_t, double>> layer_medians(const Reader& reader) {
  std::map<int32_t, double> medians;
  for (const auto& [key, unused] : reader.entry().items()) {
    int32_t layer = -1;
    const std::string_view name = key;
    if (name.substr(0, 5) == "layer") {
      std::from_chars(name.data() + 5, name.data() + name.size(), layer);
    }
    if (layer < 0) {
      return Error{ErrorCode::kCorrupt, reader.where() + "." + key + " names no layer"};
    }
    medians[layer] = *TRY(reader.number(key));
  }
  return medians;
}

}  // namespace

Result<std::optional<Tolerances>> parse_tolerances(std::string_view text, const std::string& path,
                                                   const std::vector<std::string>& names,
                                                   std::string_view kind) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object()) {
    return Error{ErrorCode::kCorrupt, path + ": not a JSON object"};
  }
  for (const std::string& name : names) {
    const auto model = root.find(name);
    if (model == root.end()) continue;
    const std::string kind_name(kind);
    if (!model->is_object()) {
      return Error{ErrorCode::kCorrupt, fmt::format("{}: {} is not an object", path, name)};
    }
    const auto entry = model->find(kind_name);
    if (entry == model->end()) continue;
    const std::string where = fmt::format("{}: {}.{}", path, name, kind_name);
    if (!entry->is_object()) return Error{ErrorCode::kCorrupt, where + " is not an object"};
    const Reader reader(*entry, where);
    Tolerances limits;
    limits.source = fmt::format("{} of {} in {}", kind_name, name, path);
    const Reader last_short = TRY(reader.part("last_logits_short"));
    limits.short_up_to_length = TRY(last_short.number("up_to_length"));
    limits.short_mean_rel_rms = TRY(last_short.number("mean_rel_rms"));
    limits.short_each_rel_rms = TRY(last_short.number("each_rel_rms"));
    const Reader last_long = TRY(reader.part("last_logits_long"));
    limits.long_mean_rel_rms = TRY(last_long.number("mean_rel_rms"));
    limits.long_each_rel_rms = TRY(last_long.number("each_rel_rms"));
    const Reader rows = TRY(reader.part("row_sets"));
    limits.rows_rel_rms = TRY(rows.number("rel_rms"));
    limits.rows_mean_kl = TRY(rows.number("mean_kl"));
    limits.rows_each_kl = TRY(rows.number("each_row_kl"));
    limits.rows_flip_fraction = TRY(rows.number("argmax_flip_fraction"));
    limits.rows_no_flip_above_gap = TRY(rows.number("no_flip_above_gap"));
    const Reader layers = TRY(reader.part("isolated_layer"));
    const Reader medians = TRY(layers.part("median"));
    limits.layer_median = TRY(layer_medians(medians));
    limits.layer_p99 = TRY(layers.number("p99"));
    limits.layer_row_max = TRY(layers.number("row_max_when_margin_over_0p005"));
    limits.layer_rows_over_0p06 = TRY(layers.number("rows_over_0p06"));
    return std::optional<Tolerances>(std::move(limits));
  }
  return std::optional<Tolerances>();
}

Result<std::optional<Tolerances>> find_tolerances(const std::string& path,
                                                  const std::vector<std::string>& names,
                                                  std::string_view kind) {
  if (!exists(path)) return std::optional<Tolerances>();
  return parse_tolerances(TRY(read_file(path, kBytesMax)), path, names, kind);
}

}  // namespace galley::verify
