// A copy of a golden directory in the tests' scratch folder, changed as a test
// needs it, removed at the end.
#pragma once

#include <string>
#include <vector>

namespace galley::golden {

class EditedGolden {
 public:
  // Copies `source` to SCRATCH/`place`; the folder around it is the copy's own.
  EditedGolden(const std::string& source, const std::string& place);
  ~EditedGolden();
  EditedGolden(const EditedGolden&) = delete;
  EditedGolden& operator=(const EditedGolden&) = delete;

  const std::string& directory() const { return directory_; }

  // Copies a file into the folder around the directory.
  void put_beside(const std::string& file) const;
  // Rewrites expected/FILE.safetensors without these tensors.
  void drop(const std::string& file, const std::vector<std::string>& tensors) const;
  // Rewrites expected/expected.safetensors without any tensor of these cases: they are then not
  // run either, which saves a test's time.
  void drop_cases(const std::vector<std::string>& cases) const;
  // Flips the lowest bit of one byte of a tensor of expected/FILE.safetensors.
  void flip_byte(const std::string& file, const std::string& tensor, size_t at) const;

 private:
  std::string path_of(const std::string& file) const;

  std::string scratch_;
  std::string directory_;
};

}  // namespace galley::golden
