// A disk in memory whose power can be cut, for tests: what was not synced is then
// there in part, or not at all, as a random number has it.
//
// A name and the content behind it become durable apart from each other, as on a
// real file system. Faults can be asked for: a full disk, a sync that fails and
// loses what it should have written. One thread.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace galley::server {

class PowerCutFiles : public Files {
 public:
  explicit PowerCutFiles(uint64_t seed) : random_(seed) {}

  bool full = false;        // nothing can be written
  bool sync_fails = false;  // and what was to be synced is lost

  void cut_power() {
    const auto chance = [&] { return std::uniform_int_distribution<int>(0, 1)(random_) == 1; };
    // A change of a name may have reached the disk by itself.
    for (const auto& [path, node] : names_) {
      if (chance()) durable_names_[path] = node;
    }
    std::erase_if(durable_names_,
                  [&](const auto& entry) { return !names_.contains(entry.first) && chance(); });
    names_ = durable_names_;
    for (const auto& [path, node] : names_) {
      // Of what was appended some part may have, with the page that it ends in torn.
      const size_t synced = node->durable.size();
      if (node->content.starts_with(node->durable) && chance()) {
        std::uniform_int_distribution<size_t> length(synced, node->content.size());
        node->durable = node->content.substr(0, length(random_));
        if (node->durable.size() > synced && chance()) node->durable.back() = '\0';
      }
      node->content = node->durable;
    }
    locks_ = std::make_shared<std::map<std::string, bool>>();
  }

  Result<void> make_directory(const std::string& /*path*/) override { return {}; }

  Result<std::unique_ptr<Lock>> lock(const std::string& path) override {
    if (std::exchange((*locks_)[path], true)) return Error{ErrorCode::kInvalid, path};
    return std::unique_ptr<Lock>(std::make_unique<Held>(locks_, path));
  }

  bool exists(const std::string& path) const override { return names_.contains(path); }

  std::vector<std::string> names(const std::string& folder) const override {
    std::vector<std::string> found;
    for (const auto& [path, node] : names_) {
      if (path.starts_with(folder + "/")) found.push_back(path.substr(folder.size() + 1));
    }
    return found;
  }

  Result<std::string> read(const std::string& path, size_t /*bytes_max*/) const override {
    const auto found = names_.find(path);
    if (found == names_.end()) return Error{ErrorCode::kNotFound, path};
    return found->second->content;
  }

  Result<void> replace(const std::string& path, std::string_view content) override {
    if (full) return Error{ErrorCode::kExhausted, path};
    auto node = std::make_shared<Node>();
    node->content = node->durable = content;
    names_[path] = durable_names_[path] = node;
    return {};
  }

  Result<void> append(const std::string& path, std::string_view text) override {
    if (full) return Error{ErrorCode::kExhausted, path};
    std::shared_ptr<Node>& node = names_[path];
    if (node == nullptr) node = std::make_shared<Node>();
    node->content += text;
    return {};
  }

  Result<void> truncate(const std::string& path, size_t bytes) override {
    names_.at(path)->content.resize(bytes);
    return {};
  }

  Result<void> sync(const std::string& path) override {
    const auto found = names_.find(path);
    if (found == names_.end()) return Error{ErrorCode::kNotFound, path};
    Node& node = *found->second;
    if (sync_fails) {
      // The pages count as clean from now on: later syncs do not write them.
      node.content = node.durable;
      return Error{ErrorCode::kIo, path};
    }
    node.durable = node.content;
    durable_names_[path] = found->second;
    return {};
  }

  Result<void> remove(const std::string& path) override {
    names_.erase(path);
    durable_names_.erase(path);
    return {};
  }

 private:
  struct Node {
    std::string content;
    std::string durable;
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;  // shared by both states of a name
  using Locks = std::shared_ptr<std::map<std::string, bool>>;  // a lock may outlive a cut

  struct Held : Lock {
    Held(Locks of, std::string name) : locks(std::move(of)), path(std::move(name)) {}
    ~Held() override { (*locks)[path] = false; }
    Locks locks;
    std::string path;
  };

  std::mt19937_64 random_;
  Names names_;
  Names durable_names_;
  Locks locks_ = std::make_shared<std::map<std::string, bool>>();
};

}  // namespace galley::server
