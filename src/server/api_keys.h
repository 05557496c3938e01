// Who may use the server, for what and how much: the file of API keys.
//
//   [[key]]
//   name = "alice"                   # in logs and metrics
//   sha256 = "9f86d08..."            # of salt and key together, 64 hexadecimal digits
//   salt = "x7"                      # optional
//   scopes = ["infer"]               # infer, batch, admin; default infer
//   concurrency = 8                  # requests at once; each limit is optional
//   requests-per-minute = 60
//   tokens-per-minute = 100000
//
// The keys themselves are nowhere in it. Pure but for the reading of the file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::server {

enum class Scope : uint8_t { kInfer = 1, kBatch = 2, kAdmin = 4 };

struct KeyLimits {
  std::optional<int64_t> concurrency = {};
  std::optional<int64_t> requests_per_minute = {};
  std::optional<int64_t> tokens_per_minute = {};
};

using Digest = std::array<unsigned char, 32>;

struct ApiKey {
  std::string name;
  Digest digest = {};
  std::string salt;
  uint8_t scopes = 0;
  KeyLimits limits;

  bool may(Scope scope) const { return (scopes & static_cast<uint8_t>(scope)) != 0; }
};

constexpr size_t kApiKeysMax = 1000;

class ApiKeys {
 public:
  // The text of the file. Errors name the line.
  static Result<ApiKeys> parse(const std::string& toml);
  // Errors name the file. kPermission when others than its owner and group may write it.
  static Result<ApiKeys> open(const std::string& path);

  // The entry of a key, or null. Looks at every entry and compares in constant time, so that
  // the time taken says nothing about any of them.
  const ApiKey* find(std::string_view key) const;

  const std::vector<ApiKey>& all() const { return keys_; }

 private:
  std::vector<ApiKey> keys_;
};

// A fresh key, and the entry of the file that admits it.
struct NewKey {
  std::string key;
  std::string entry;
};
Result<NewKey> make_key(const std::string& name);

}  // namespace galley::server
