#include "server/state_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/file.h"

namespace galley::server {
namespace {

constexpr size_t kRecordBytesMax = size_t{1} << 20;
constexpr size_t kContentBytesMax = size_t{1} << 30;

Error failed(const std::string& path, int code) {
  return {
      code == ENOSPC || code == EDQUOT || code == EFBIG ? ErrorCode::kExhausted : ErrorCode::kIo,
      path + ": " + std::strerror(code)};
}

const char* suffix_of(StateDirectory::Journal journal) {
  return journal == StateDirectory::Journal::kOutput ? ".output" : ".errors";
}

Result<void> make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || (errno == EEXIST && is_directory(path))) return {};
  return failed(path, errno == EEXIST ? ENOTDIR : errno);
}

// Names in a folder that end in `suffix`, without it.
std::vector<std::string> names_in(const std::string& folder, std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(suffix)) names.push_back(name.substr(0, name.size() - suffix.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The whole lines of a journal. What a sudden end left behind them is cut off, so that the next
// line begins at the beginning of one.
Result<std::string> read_journal(const std::string& path) {
  std::string text = TRY(galley::read_file(path, kContentBytesMax));
  size_t whole = 0;
  while (whole < text.size()) {
    const size_t end = text.find('\n', whole);
    if (end == std::string::npos) break;
    const std::string_view line(text.data() + whole, end - whole);
    if (!serve::answered_custom_id(line)) break;
    whole = end + 1;
  }
  if (whole == text.size()) return text;
  if (::truncate(path.c_str(), static_cast<off_t>(whole)) != 0) return failed(path, errno);
  text.resize(whole);
  return text;
}

template <class Kept, class Age>
void sort_by_age(std::vector<Kept>& kept, const Age& age) {
  std::sort(kept.begin(), kept.end(),
            [&](const Kept& a, const Kept& b) { return age(a) < age(b); });
}

}  // namespace

Result<std::unique_ptr<StateDirectory>> StateDirectory::open(const std::string& path) {
  TRY(make_directory(path));
  TRY(make_directory(path + "/files"));
  TRY(make_directory(path + "/batches"));
  const std::string lock_path = path + "/lock";
  const int lock = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return failed(lock_path, errno);
  std::unique_ptr<StateDirectory> state(new StateDirectory(path, lock));
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    return Error{ErrorCode::kInvalid, path + ": another server uses this state directory"};
  }
  TRY(write_file_atomic(path + "/probe", std::string(4096, ' ')));
  ::unlink((path + "/probe").c_str());
  return state;
}

StateDirectory::~StateDirectory() { ::close(lock_); }

std::string StateDirectory::file_path(const std::string& id, const char* suffix) const {
  return path_ + "/files/" + id + suffix;
}

std::string StateDirectory::batch_path(const std::string& id, const char* suffix) const {
  return path_ + "/batches/" + id + suffix;
}

std::vector<StateDirectory::KeptFile> StateDirectory::files(
    std::vector<std::string>& problems) const {
  std::vector<KeptFile> kept;
  const auto read = [&](const std::string& id) -> Result<KeptFile> {
    KeptFile file;
    const std::string record = TRY(galley::read_file(file_path(id, ".json"), kRecordBytesMax));
    file.saved = TRY(serve::parse_saved_file(record));
    file.content = TRY(galley::read_file(file_path(id, ".data"), kContentBytesMax));
    const bool whole = file.saved.record.id == id &&
                       file.saved.record.bytes == static_cast<int64_t>(file.content.size());
    if (!whole) return Error{ErrorCode::kCorrupt, "is not the file that was saved"};
    return file;
  };
  for (const std::string& id : names_in(path_ + "/files", ".json")) {
    Result<KeptFile> file = read(id);
    if (file) {
      kept.push_back(*std::move(file));
    } else {
      problems.push_back(file_path(id, ".json") + ": " + file.error().message);
    }
  }
  // Content whose record was never written, or is gone already.
  for (const std::string& id : names_in(path_ + "/files", ".data")) {
    if (!exists(file_path(id, ".json"))) ::unlink(file_path(id, ".data").c_str());
  }
  sort_by_age(kept, [](const KeptFile& file) {
    return std::tie(file.saved.record.created_at, file.saved.record.id);
  });
  return kept;
}

std::vector<StateDirectory::KeptBatch> StateDirectory::batches(
    std::vector<std::string>& problems) const {
  std::vector<KeptBatch> kept;
  const auto read = [&](const std::string& id) -> Result<KeptBatch> {
    KeptBatch batch;
    const std::string record = TRY(galley::read_file(batch_path(id, ".json"), kRecordBytesMax));
    batch.saved = TRY(serve::parse_saved_batch(record));
    if (batch.saved.batch.id != id) {
      return Error{ErrorCode::kCorrupt, "is not the batch that was saved"};
    }
    for (const auto& [journal, text] :
         {std::pair(Journal::kOutput, &batch.output), std::pair(Journal::kErrors, &batch.errors)}) {
      const std::string path = batch_path(id, suffix_of(journal));
      if (!exists(path)) continue;
      batch.has_journals = true;
      *text = TRY(read_journal(path));
    }
    return batch;
  };
  for (const std::string& id : names_in(path_ + "/batches", ".json")) {
    Result<KeptBatch> batch = read(id);
    if (batch) {
      kept.push_back(*std::move(batch));
    } else {
      problems.push_back(batch_path(id, ".json") + ": " + batch.error().message);
    }
  }
  sort_by_age(kept, [](const KeptBatch& batch) {
    return std::tie(batch.saved.batch.created_at, batch.saved.batch.id);
  });
  return kept;
}

Result<void> StateDirectory::save_file(const serve::SavedFile& file, std::string_view content) {
  const std::string& id = file.record.id;
  TRY(write_file_atomic(file_path(id, ".data"), content));
  return write_file_atomic(file_path(id, ".json"), serve::saved_file_text(file));
}

Result<void> StateDirectory::remove_file(const std::string& id) {
  const std::string path = file_path(id, ".json");
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return failed(path, errno);
  ::unlink(file_path(id, ".data").c_str());
  return {};
}

Result<void> StateDirectory::save_batch(const serve::SavedBatch& batch) {
  return write_file_atomic(batch_path(batch.batch.id, ".json"), serve::saved_batch_text(batch));
}

Result<void> StateDirectory::append(const std::string& batch_id, Journal journal,
                                    std::string_view line) {
  const std::string path = batch_path(batch_id, suffix_of(journal));
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return failed(path, errno);
  const off_t before = ::lseek(file, 0, SEEK_END);
  int code = 0;
  while (!line.empty() && code == 0) {
    const ssize_t count = ::write(file, line.data(), line.size());
    if (count >= 0) {
      line.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      code = errno;
    }
  }
  if (code != 0 && ::ftruncate(file, before) != 0) code = errno;
  ::close(file);
  if (code != 0) return failed(path, code);
  return {};
}

void StateDirectory::remove_journals(const std::string& batch_id) {
  for (const Journal journal : {Journal::kOutput, Journal::kErrors}) {
    ::unlink(batch_path(batch_id, suffix_of(journal)).c_str());
  }
}

void StateDirectory::remove_batch(const std::string& batch_id) {
  ::unlink(batch_path(batch_id, ".json").c_str());
  remove_journals(batch_id);
}

}  // namespace galley::server
