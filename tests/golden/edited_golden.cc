#include "edited_golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/file.h"

namespace galley::golden {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Container {
  json header;
  std::string bytes;  // what the offsets of the header count in
};

Container read_container(const std::string& path) {
  const std::string text = read_file(path, size_t{1} << 30).value();
  uint64_t header_bytes = 0;
  CHECK(text.size() >= sizeof(header_bytes));
  std::memcpy(&header_bytes, text.data(), sizeof(header_bytes));
  return {json::parse(text.substr(8, header_bytes)), text.substr(8 + header_bytes)};
}

void write_container(const std::string& path, const Container& container) {
  std::string header = container.header.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = header.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  out << header << container.bytes;
  CHECK(out.good());
}

void make_writable(const fs::path& root) {
  fs::permissions(root, fs::perms::owner_write, fs::perm_options::add);
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
  }
}

}  // namespace

EditedGolden::EditedGolden(const std::string& source, const std::string& place) {
  const fs::path directory = fs::path(testing::TempDir()) / "edited_golden" / place;
  scratch_ = directory.parent_path().string();
  directory_ = directory.string();
  fs::remove_all(scratch_);
  fs::create_directories(scratch_);
  fs::copy(source, directory, fs::copy_options::recursive);
  make_writable(directory);
}

EditedGolden::~EditedGolden() { fs::remove_all(scratch_); }

void EditedGolden::put_beside(const std::string& file) const {
  fs::copy(file, scratch_);
  make_writable(scratch_);
}

std::string EditedGolden::path_of(const std::string& file) const {
  return directory_ + "/expected/" + file + ".safetensors";
}

void EditedGolden::drop(const std::string& file, const std::vector<std::string>& tensors) const {
  const Container old = read_container(path_of(file));
  Container kept;
  kept.header = json::object();
  // The container allows no gap: what stays moves together, in the order of the bytes.
  std::vector<std::pair<uint64_t, std::string>> order;
  for (const auto& [name, entry] : old.header.items()) {
    if (name == "__metadata__") continue;
    if (std::find(tensors.begin(), tensors.end(), name) == tensors.end()) {
      order.emplace_back(entry["data_offsets"][0].get<uint64_t>(), name);
    }
  }
  CHECK(order.size() + tensors.size() + old.header.contains("__metadata__") == old.header.size());
  std::sort(order.begin(), order.end());
  for (const auto& [begin, name] : order) {
    json entry = old.header[name];
    const auto end = entry["data_offsets"][1].get<uint64_t>();
    entry["data_offsets"] = {kept.bytes.size(), kept.bytes.size() + (end - begin)};
    kept.bytes += old.bytes.substr(begin, end - begin);
    kept.header[name] = std::move(entry);
  }
  write_container(path_of(file), kept);
}

void EditedGolden::drop_cases(const std::vector<std::string>& cases) const {
  const Container container = read_container(path_of("expected"));
  std::vector<std::string> tensors;
  for (const auto& [name, entry] : container.header.items()) {
    const std::string prefix = name.substr(0, name.find('.'));
    if (std::find(cases.begin(), cases.end(), prefix) != cases.end()) tensors.push_back(name);
  }
  drop("expected", tensors);
}

void EditedGolden::flip_byte(const std::string& file, const std::string& tensor, size_t at) const {
  Container container = read_container(path_of(file));
  const auto begin = container.header.at(tensor)["data_offsets"][0].get<size_t>();
  container.bytes.at(begin + at) ^= 1;
  write_container(path_of(file), container);
}

}  // namespace galley::golden
