#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/shown_text.h"

namespace galley {
namespace {

using nlohmann::json;

// What a text will become, from its marks outside strings. Looked at before parsing: the library
// frees deep values by recursion, and builds what it is given whatever that takes.
struct Survey {
  int32_t deepest = 0;  // nesting of brackets
  size_t tree_bytes = 0;
};

// Bytes of each, measured with glibc's allocator: a value in an array whose growth copies it; a
// key in its map, in the list of its object's order and in the set of those seen; containers with
// their headers and the places where their order is kept; a string's header.
constexpr size_t kValueBytes = 32;
constexpr size_t kKeyBytes = 320;
constexpr size_t kObjectBytes = 288;
constexpr size_t kArrayBytes = 64;
constexpr size_t kStringBytes = 64;

Survey survey(std::string_view text) {
  Survey found;
  found.tree_bytes = text.size();
  int32_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        found.tree_bytes += kStringBytes;
        for (++i; i < text.size() && text[i] != '"'; ++i) {
          if (text[i] == '\\') ++i;
        }
        break;
      case '{':
        found.tree_bytes += kObjectBytes;
        found.deepest = std::max(found.deepest, ++depth);
        break;
      case '[':
        found.tree_bytes += kArrayBytes;
        found.deepest = std::max(found.deepest, ++depth);
        break;
      case '}':
      case ']':
        --depth;
        break;
      case ',':
        found.tree_bytes += kValueBytes;
        break;
      case ':':
        found.tree_bytes += kKeyBytes;
        break;
      default:
        break;
    }
  }
  return found;
}

// Builds the value through the library's own builder, and remembers what the
// builder forgets: repeated keys, the order of keys, and where and why parsing
// stopped.
class Builder : public nlohmann::detail::json_sax_dom_parser<json> {
 public:
  using Base = nlohmann::detail::json_sax_dom_parser<json>;

  Builder(json& target, const JsonLimits& limits)
      : Base(target, false),
        unique_keys_(limits.unique_keys || limits.keep_order),
        keep_order_(limits.keep_order) {}

  bool start_object(size_t count) {
    if (unique_keys_) keys_.emplace_back();
    if (keep_order_) {
      open_.push_back(orders_.size());
      orders_.emplace_back();
    }
    return Base::start_object(count);
  }
  bool end_object() {
    if (unique_keys_) keys_.pop_back();
    if (keep_order_) open_.pop_back();
    return Base::end_object();
  }
  bool key(std::string& name) {
    if (unique_keys_ && !keys_.back().insert(name).second) {
      reason_ = "the key " + shown_text(name) + " appears twice in one object";
      return false;
    }
    if (keep_order_) orders_[open_.back()].push_back(name);
    return Base::key(name);
  }
  template <class Exception>
  bool parse_error(size_t position, const std::string& token, const Exception& exception) {
    reason_ = "not valid JSON at byte " + std::to_string(position);
    // What the library says about strings is about bytes that may be anything: say it shortly.
    if (std::string_view(exception.what()).find("UTF-8") != std::string_view::npos) {
      reason_ += ": not UTF-8";
    }
    return Base::parse_error(position, token, exception);
  }

  const std::string& reason() const { return reason_; }
  // Of every object, in the order in which they begin.
  std::vector<std::vector<std::string>>& orders() { return orders_; }

 private:
  bool unique_keys_;
  bool keep_order_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  std::vector<size_t> open_;                 // indices into orders_
  std::vector<std::vector<std::string>> orders_;
  std::string reason_;
};

// Where each object came to lie, found by walking them in the order in which they begin.
void place_orders(const json& value, std::vector<std::vector<std::string>>& orders, size_t& next,
                  JsonKeyOrder& placed) {
  if (value.is_array()) {
    for (const json& item : value) place_orders(item, orders, next, placed);
  } else if (value.is_object()) {
    const auto& keys =
        placed.emplace(value.get_ptr<const json::object_t*>(), std::move(orders[next++]))
            .first->second;
    for (const std::string& key : keys) place_orders(value[key], orders, next, placed);
  }
}

const char* kind_name(const json& value) {
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return "null";
}

}  // namespace

JsonValue::JsonValue(const json& value, std::string path, const JsonKeyOrder* order)
    : value_(&value), path_(std::move(path)), order_(order) {}

bool JsonValue::is_null() const { return value_->is_null(); }
bool JsonValue::is_object() const { return value_->is_object(); }
bool JsonValue::is_array() const { return value_->is_array(); }
bool JsonValue::is_string() const { return value_->is_string(); }
bool JsonValue::is_number() const { return value_->is_number(); }
bool JsonValue::is_integer() const { return value_->is_number_integer(); }
bool JsonValue::is_bool() const { return value_->is_boolean(); }

Error JsonValue::error(std::string_view reason) const {
  const std::string place = path_.empty() ? "top level" : path_;
  return {ErrorCode::kInvalid, place + ": " + std::string(reason)};
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  if (!value_->is_object()) return std::nullopt;
  const auto found = value_->find(std::string(key));
  if (found == value_->end()) return std::nullopt;
  return JsonValue(*found, path_.empty() ? std::string(key) : path_ + "." + std::string(key),
                   order_);
}

Result<JsonValue> JsonValue::at(std::string_view key) const {
  if (!value_->is_object())
    return error(std::string("is ") + kind_name(*value_) + ", not an object");
  std::optional<JsonValue> member = find(key);
  if (!member.has_value()) {
    const std::string place = path_.empty() ? std::string(key) : path_ + "." + std::string(key);
    return Error{ErrorCode::kInvalid, place + ": missing"};
  }
  return *std::move(member);
}

size_t JsonValue::size() const { return value_->is_structured() ? value_->size() : 0; }

JsonValue JsonValue::item(size_t index) const {
  CHECK(value_->is_array() && index < value_->size());
  return JsonValue((*value_)[index], path_ + "[" + std::to_string(index) + "]", order_);
}

std::vector<std::string> JsonValue::keys() const {
  std::vector<std::string> names;
  if (!value_->is_object()) return names;
  if (order_ != nullptr) {
    const auto kept = order_->find(value_->get_ptr<const json::object_t*>());
    if (kept != order_->end()) return kept->second;
  }
  for (auto member = value_->begin(); member != value_->end(); ++member) {
    names.push_back(member.key());
  }
  return names;
}

Result<int64_t> JsonValue::as_integer(int64_t smallest, int64_t largest) const {
  if (!value_->is_number_integer()) {
    return error(std::string("must be an integer, is ") + kind_name(*value_));
  }
  const bool too_large = value_->is_number_unsigned() &&
                         value_->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  const int64_t value = too_large ? 0 : value_->get<int64_t>();
  if (too_large || value < smallest || value > largest) {
    return error("must lie in " + std::to_string(smallest) + ".." + std::to_string(largest) +
                 ", is " + value_->dump());
  }
  return value;
}

Result<double> JsonValue::as_number() const {
  if (!value_->is_number()) {
    return error(std::string("must be a number, is ") + kind_name(*value_));
  }
  const double value = value_->get<double>();
  if (!std::isfinite(value)) return error("must be finite");
  return value;
}

Result<bool> JsonValue::as_bool() const {
  if (!value_->is_boolean()) {
    return error(std::string("must be true or false, is ") + kind_name(*value_));
  }
  return value_->get<bool>();
}

Result<std::string_view> JsonValue::as_string() const {
  if (!value_->is_string()) {
    return error(std::string("must be a string, is ") + kind_name(*value_));
  }
  return std::string_view(value_->get_ref<const std::string&>());
}

Result<std::vector<int64_t>> JsonValue::as_integers(int64_t smallest, int64_t largest) const {
  if (!value_->is_array()) {
    return error(std::string("must be an array, is ") + kind_name(*value_));
  }
  std::vector<int64_t> values;
  values.reserve(size());
  for (size_t i = 0; i < size(); ++i) {
    values.push_back(TRY(item(i).as_integer(smallest, largest)));
  }
  return values;
}

Result<JsonDocument> JsonDocument::parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes_max) {
    return Error{ErrorCode::kInvalid, "JSON text of " + std::to_string(text.size()) +
                                          " bytes, at most " + std::to_string(limits.bytes_max) +
                                          " are accepted"};
  }
  const Survey found = survey(text);
  if (found.deepest > limits.depth_max) {
    return Error{ErrorCode::kInvalid,
                 "JSON nested deeper than " + std::to_string(limits.depth_max) + " levels"};
  }
  if (found.tree_bytes > limits.tree_bytes_max) {
    return Error{ErrorCode::kInvalid,
                 "JSON of too many values: they would take about " +
                     std::to_string(found.tree_bytes >> 20) + " MiB of memory, at most " +
                     std::to_string(limits.tree_bytes_max >> 20) + " are given to one text"};
  }
  auto value = std::make_unique<json>();
  Builder builder(*value, limits);
  const bool whole = json::sax_parse(text.begin(), text.end(), &builder);
  if (!whole || builder.is_errored()) {
    return Error{ErrorCode::kInvalid,
                 builder.reason().empty() ? "not valid JSON" : builder.reason()};
  }
  std::unique_ptr<JsonKeyOrder> order;
  if (limits.keep_order) {
    order = std::make_unique<JsonKeyOrder>();
    size_t next = 0;
    place_orders(*value, builder.orders(), next, *order);
  }
  return JsonDocument(std::move(value), std::move(order));
}

JsonDocument::JsonDocument(std::unique_ptr<json> value, std::unique_ptr<JsonKeyOrder> order)
    : json_(std::move(value)), order_(std::move(order)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

JsonValue JsonDocument::root() const { return JsonValue(*json_, "", order_.get()); }

}  // namespace galley
