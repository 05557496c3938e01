// Reading JSON that others wrote: bounded, never throwing, errors that name the
// field by its dotted path.
//
// Numbers keep their kind (an integer is never read through a double). The
// library behind it stays out of this header: it costs seconds a file. Code
// that writes JSON includes nlohmann/json.hpp itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace galley {

struct JsonLimits {
  size_t bytes_max = size_t{16} << 20;
  int32_t depth_max = 64;  // of nested arrays and objects
  // What the values may take in memory, guessed from the text before any is made: many small
  // values take some thirty times their text.
  size_t tree_bytes_max = std::numeric_limits<size_t>::max();
  bool unique_keys = false;  // refuse an object that names a key twice
  bool keep_order = false;   // JsonValue::keys() as written, else sorted; implies unique_keys
};

// By the address of an object's members: its keys as they were written.
using JsonKeyOrder = std::unordered_map<const void*, std::vector<std::string>>;

// One value inside a JsonDocument, which must outlive it, and where it stands.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string path, const JsonKeyOrder* order = nullptr);

  bool is_null() const;
  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  bool is_number() const;
  bool is_integer() const;
  bool is_bool() const;

  // "text_config.rope_scaling.factor"; empty at the root.
  const std::string& path() const { return path_; }
  // kInvalid: "PATH: REASON".
  Error error(std::string_view reason) const;

  // The member, or nothing when it is absent or this is no object.
  std::optional<JsonValue> find(std::string_view key) const;
  // The member; an error names the path of what is missing.
  Result<JsonValue> at(std::string_view key) const;

  size_t size() const;                    // of an array or object, else 0
  JsonValue item(size_t index) const;     // of an array, index < size()
  std::vector<std::string> keys() const;  // as written if the order was kept, else sorted

  Result<int64_t> as_integer(int64_t smallest = std::numeric_limits<int64_t>::min(),
                             int64_t largest = std::numeric_limits<int64_t>::max()) const;
  Result<double> as_number() const;  // finite
  Result<bool> as_bool() const;
  Result<std::string_view> as_string() const;
  Result<std::vector<int64_t>> as_integers(int64_t smallest, int64_t largest) const;

  const nlohmann::json& raw() const { return *value_; }

 private:
  const nlohmann::json* value_;
  std::string path_;
  const JsonKeyOrder* order_;  // null: not kept
};

class JsonDocument {
 public:
  // One whole JSON text. Errors say what and at which byte; the caller adds the file's name.
  static Result<JsonDocument> parse(std::string_view text, const JsonLimits& limits = {});

  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonValue root() const;

 private:
  JsonDocument(std::unique_ptr<nlohmann::json> json, std::unique_ptr<JsonKeyOrder> order);

  std::unique_ptr<nlohmann::json> json_;
  std::unique_ptr<JsonKeyOrder> order_;  // null: not kept; behind a pointer, as values point to it
};

}  // namespace galley
