#include "server/state_directory.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace galley::server {
namespace {

constexpr size_t kRecordBytesMax = size_t{1} << 20;
constexpr size_t kContentBytesMax = size_t{1} << 30;

const char* suffix_of(StateDirectory::Journal journal) {
  return journal == StateDirectory::Journal::kOutput ? ".output" : ".errors";
}

// Names in a folder that end in `suffix`, without it.
std::vector<std::string> names_in(const Files& files, const std::string& folder,
                                  std::string_view suffix) {
  std::vector<std::string> names;
  for (const std::string& name : files.names(folder)) {
    if (name.ends_with(suffix)) names.push_back(name.substr(0, name.size() - suffix.size()));
  }
  return names;
}

template <class Kept, class Age>
void sort_by_age(std::vector<Kept>& kept, const Age& age) {
  std::sort(kept.begin(), kept.end(),
            [&](const Kept& a, const Kept& b) { return age(a) < age(b); });
}

}  // namespace

Result<std::unique_ptr<StateDirectory>> StateDirectory::open(const std::string& path,
                                                             Files& files) {
  TRY(files.make_directory(path));
  TRY(files.make_directory(path + "/files"));
  TRY(files.make_directory(path + "/batches"));
  Result<std::unique_ptr<Files::Lock>> lock = files.lock(path + "/lock");
  if (!lock && lock.error().code == ErrorCode::kInvalid) {
    return Error{ErrorCode::kInvalid, path + ": another server uses this state directory"};
  }
  if (!lock) return lock.error();
  TRY(files.replace(path + "/probe", std::string(4096, ' ')));
  TRY(files.remove(path + "/probe"));
  return std::unique_ptr<StateDirectory>(new StateDirectory(path, files, *std::move(lock)));
}

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
    const std::string record = TRY(files_->read(file_path(id, ".json"), kRecordBytesMax));
    file.saved = TRY(serve::parse_saved_file(record));
    file.content = TRY(files_->read(file_path(id, ".data"), kContentBytesMax));
    const bool whole = file.saved.record.id == id &&
                       file.saved.record.bytes == static_cast<int64_t>(file.content.size());
    if (!whole) return Error{ErrorCode::kCorrupt, "is not the file that was saved"};
    return file;
  };
  for (const std::string& id : names_in(*files_, path_ + "/files", ".json")) {
    Result<KeptFile> file = read(id);
    if (file) {
      kept.push_back(*std::move(file));
    } else {
      problems.push_back(file_path(id, ".json") + ": " + file.error().message);
    }
  }
  // Content whose record was never written, or is gone already.
  for (const std::string& id : names_in(*files_, path_ + "/files", ".data")) {
    if (files_->exists(file_path(id, ".json"))) continue;
    static_cast<void>(files_->remove(file_path(id, ".data")));  // again at the next start
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
    const std::string record = TRY(files_->read(batch_path(id, ".json"), kRecordBytesMax));
    batch.saved = TRY(serve::parse_saved_batch(record));
    if (batch.saved.batch.id != id) {
      return Error{ErrorCode::kCorrupt, "is not the batch that was saved"};
    }
    for (const auto& [journal, text] :
         {std::pair(Journal::kOutput, &batch.output), std::pair(Journal::kErrors, &batch.errors)}) {
      const std::string path = batch_path(id, suffix_of(journal));
      if (!files_->exists(path)) continue;
      batch.has_journals = true;
      *text = TRY(read_journal(path));
    }
    return batch;
  };
  for (const std::string& id : names_in(*files_, path_ + "/batches", ".json")) {
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
  TRY(files_->replace(file_path(id, ".data"), content));
  return files_->replace(file_path(id, ".json"), serve::saved_file_text(file));
}

Result<void> StateDirectory::remove_file(const std::string& id) {
  TRY(files_->remove(file_path(id, ".json")));
  static_cast<void>(files_->remove(file_path(id, ".data")));  // without its record it is no file
  return {};
}

Result<void> StateDirectory::save_batch(const serve::SavedBatch& batch) {
  return files_->replace(batch_path(batch.batch.id, ".json"), serve::saved_batch_text(batch));
}

Result<void> StateDirectory::append(const std::string& batch_id, Journal journal,
                                    std::string_view line) {
  return files_->append(batch_path(batch_id, suffix_of(journal)), line);
}

Result<void> StateDirectory::sync(const std::string& batch_id, Journal journal) {
  return files_->sync(batch_path(batch_id, suffix_of(journal)));
}

Result<void> StateDirectory::replace(const std::string& batch_id, Journal journal,
                                     std::string_view lines) {
  return files_->replace(batch_path(batch_id, suffix_of(journal)), lines);
}

// What stays is removed at the next start: the record says that nobody needs it.
void StateDirectory::remove_journals(const std::string& batch_id) {
  for (const Journal journal : {Journal::kOutput, Journal::kErrors}) {
    static_cast<void>(files_->remove(batch_path(batch_id, suffix_of(journal))));
  }
}

void StateDirectory::remove_batch(const std::string& batch_id) {
  static_cast<void>(files_->remove(batch_path(batch_id, ".json")));
  remove_journals(batch_id);
}

Result<std::string> StateDirectory::read_journal(const std::string& path) const {
  std::string text = TRY(files_->read(path, kContentBytesMax));
  size_t whole = 0;
  while (whole < text.size()) {
    const size_t end = text.find('\n', whole);
    if (end == std::string::npos) break;
    const std::string_view line(text.data() + whole, end - whole);
    if (!serve::answered_custom_id(line)) break;
    whole = end + 1;
  }
  if (whole < text.size()) TRY(files_->truncate(path, whole));
  text.resize(whole);
  TRY(files_->sync(path));
  return text;
}

}  // namespace galley::server
