#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

// As everywhere in the program: its inline functions differ with it.
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "base/file.h"

namespace galley::server {
namespace {

constexpr size_t kFileBytesMax = size_t{4} << 20;
constexpr size_t kNameBytesMax = 64;

Digest digest_of(std::string_view salt, std::string_view key) {
  std::string text(salt);
  text += key;
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  OPENSSL_cleanse(text.data(), text.size());
  return digest;
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const unsigned char byte : digest) {
    text += "0123456789abcdef"[byte >> 4U];
    text += "0123456789abcdef"[byte & 15U];
  }
  return text;
}

std::optional<Digest> parse_digest(std::string_view text) {
  Digest digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const size_t value = kDigits.find(text[i]);
    if (value == std::string_view::npos) return std::nullopt;
    digest[i / 2] = static_cast<unsigned char>((i % 2 == 0 ? 0 : digest[i / 2] << 4U) | value);
  }
  return digest;
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kNameBytesMax &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ||
                  c == '.' || c == '@';
         });
}

Error wrong(const toml::node& node, const std::string& reason) {
  return {ErrorCode::kInvalid, "line " + std::to_string(node.source().begin.line) + ": " + reason};
}

Result<uint8_t> parse_scopes(const toml::node& node) {
  const toml::array* list = node.as_array();
  if (list == nullptr) return wrong(node, "scopes is a list of infer, batch and admin");
  uint8_t scopes = 0;
  for (const toml::node& item : *list) {
    const auto name = item.value<std::string>().value_or("");
    if (name == "infer") {
      scopes |= static_cast<uint8_t>(Scope::kInfer);
    } else if (name == "batch") {
      scopes |= static_cast<uint8_t>(Scope::kBatch);
    } else if (name == "admin") {
      scopes |= static_cast<uint8_t>(Scope::kAdmin);
    } else {
      return wrong(item, "no scope \"" + name + "\"; there are infer, batch and admin");
    }
  }
  return scopes;
}

Result<int64_t> parse_limit(const toml::node& node, const std::string& name) {
  const auto value = node.value_exact<int64_t>();
  if (!value || *value < 1) return wrong(node, name + " is a whole number above 0");
  return *value;
}

Result<ApiKey> parse_entry(const toml::table& entry) {
  ApiKey key;
  key.scopes = static_cast<uint8_t>(Scope::kInfer);
  bool has_digest = false;
  for (const auto& [name_key, node] : entry) {
    const std::string name(name_key.str());
    const auto text = node.value<std::string>();
    if (name == "name") {
      if (!text || !is_name(*text)) {
        return wrong(node, "name has 1 to 64 letters, digits and any of -_.@");
      }
      key.name = *text;
    } else if (name == "sha256") {
      const auto digest = parse_digest(text.value_or(""));
      if (!digest) return wrong(node, "sha256 is 64 hexadecimal digits, lower case");
      key.digest = *digest;
      has_digest = true;
    } else if (name == "salt") {
      if (!text) return wrong(node, "salt is a text");
      key.salt = *text;
    } else if (name == "scopes") {
      key.scopes = TRY(parse_scopes(node));
    } else if (name == "concurrency") {
      key.limits.concurrency = TRY(parse_limit(node, name));
    } else if (name == "requests-per-minute") {
      key.limits.requests_per_minute = TRY(parse_limit(node, name));
    } else if (name == "tokens-per-minute") {
      key.limits.tokens_per_minute = TRY(parse_limit(node, name));
    } else {
      return wrong(node, "a key has no \"" + name + "\"");
    }
  }
  if (key.name.empty()) return wrong(entry, "a key needs a name");
  if (!has_digest) return wrong(entry, "the key " + key.name + " needs its sha256");
  return key;
}

Result<toml::table> parse_toml(const std::string& text) {
  toml::parse_result parsed = toml::parse(text);
  if (parsed) return std::move(parsed).table();
  return Error{ErrorCode::kInvalid, "line " + std::to_string(parsed.error().source().begin.line) +
                                        ": " + std::string(parsed.error().description())};
}

}  // namespace

Result<ApiKeys> ApiKeys::parse(const std::string& text) {
  const toml::table root = TRY(parse_toml(text));
  ApiKeys keys;
  for (const auto& [name, node] : root) {
    const toml::array* list = node.as_array();
    if (name.str() != "key" || list == nullptr) {
      return wrong(node, "only [[key]] entries are expected here");
    }
    if (list->size() > kApiKeysMax) {
      return wrong(node, "more than " + std::to_string(kApiKeysMax) + " keys");
    }
    for (const toml::node& item : *list) {
      const toml::table* entry = item.as_table();
      if (entry == nullptr) return wrong(item, "only [[key]] entries are expected here");
      ApiKey key = TRY(parse_entry(*entry));
      const auto same = std::find_if(keys.keys_.begin(), keys.keys_.end(), [&](const ApiKey& each) {
        return each.name == key.name && each.digest == key.digest;
      });
      if (same != keys.keys_.end()) return wrong(item, "the key " + key.name + " is there twice");
      keys.keys_.push_back(std::move(key));
    }
  }
  if (keys.keys_.empty()) {
    return Error{ErrorCode::kInvalid, "no [[key]] entry; `galley serve --new-key NAME` makes one"};
  }
  return keys;
}

Result<ApiKeys> ApiKeys::open(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & S_IWOTH) != 0) {
    return Error{ErrorCode::kPermission,
                 path + ": everybody may write it; chmod o-w it, or anybody can let himself in"};
  }
  const std::string text = TRY(read_file(path, kFileBytesMax));
  Result<ApiKeys> keys = parse(text);
  if (!keys) return with_context(keys.error(), path);
  return keys;
}

const ApiKey* ApiKeys::find(std::string_view key) const {
  const ApiKey* found = nullptr;
  const std::string* salt = nullptr;
  Digest digest = {};
  for (const ApiKey& entry : keys_) {
    if (salt == nullptr || *salt != entry.salt) digest = digest_of(entry.salt, key);
    salt = &entry.salt;
    if (CRYPTO_memcmp(digest.data(), entry.digest.data(), digest.size()) == 0) found = &entry;
  }
  return found;
}

Result<NewKey> make_key(const std::string& name) {
  if (!is_name(name)) {
    return Error{ErrorCode::kInvalid, "a key's name has 1 to 64 letters, digits and any of -_.@"};
  }
  Digest secret;  // 32 random bytes: no salt could make it harder to guess
  if (RAND_bytes(secret.data(), static_cast<int>(secret.size())) != 1) {
    return Error{ErrorCode::kIo, "the system gives no random bytes"};
  }
  NewKey made;
  made.key = "sk-galley-" + hex(secret);
  made.entry = "[[key]]\nname = \"" + name + "\"\nsha256 = \"" + hex(digest_of("", made.key)) +
               "\"\nscopes = [\"infer\"]\n";
  return made;
}

}  // namespace galley::server
