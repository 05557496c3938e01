// BatchDesk: what survives the process, and the machine.
//
// What clients are told is on the disk first. Answers go to journals line by line,
// which costs no wait; a sync of all that is new follows on the thread that may
// wait for the disk, and then their counts are told. The files at a batch's end are
// kept there too.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/batch_desk.h"
#include "server/batch_job.h"

namespace galley::server {

using Journal = StateDirectory::Journal;

// A batch as its clients may see it: answers count when nothing can take them any more.
serve::ApiBatch BatchDesk::told(const Job& job) const {
  serve::ApiBatch batch = job.run.batch();
  if (state_ == nullptr || job.run.files_named()) return batch;
  batch.completed = job.on_disk.completed;
  batch.failed = job.on_disk.failed;
  return batch;
}

// The batch's record, if it says something else than the kept one. False: not now.
bool BatchDesk::keep(Job& job) {
  const serve::ApiBatch& batch = job.run.batch();
  const std::pair now(batch.status, !batch.output_file_id.empty() || !batch.error_file_id.empty());
  if (state_ == nullptr || job.kept == now) return true;
  // Its answers are asked for again if need be; the files are what ends it.
  if (batch.status == serve::BatchStatus::kFinalizing) return true;
  const Result<void> kept = state_->save_batch({job.owner, batch});
  if (!kept) {
    parts_.trouble(kept.error());
    return false;
  }
  job.kept = now;
  if (job.run.ended() && !job.run.wants_files()) state_->remove_journals(batch.id);
  return true;
}

bool BatchDesk::keep_answers(Job& job) {
  while (!job.unkept.empty() && !job.torn) {
    const Job::Unkept& next = job.unkept.front();
    const Result<void> kept = state_->append(job.run.batch().id, next.journal, next.line);
    if (!kept) {
      parts_.trouble(kept.error());
      return false;
    }
    ++(next.journal == Journal::kOutput ? job.journaled.completed : job.journaled.failed);
    job.unkept.pop_front();
  }
  return job.unkept.empty();
}

// All journals that have something new, one round of this at a time.
void BatchDesk::sync_later() {
  struct Round {
    struct Entry {
      std::string batch_id;
      Job::Counts counts;  // in the journals when it began
      bool output = false;
      bool errors = false;
      Result<void> outcome;
    };
    std::vector<Entry> entries;
  };
  if (syncing_) return;
  const auto round = std::make_shared<Round>();
  for (const std::unique_ptr<Job>& job : jobs_) {
    const bool output = job->journaled.completed > job->on_disk.completed;
    const bool errors = job->journaled.failed > job->on_disk.failed;
    if ((!output && !errors) || job->torn || job->keeping_files) continue;
    round->entries.push_back({job->run.batch().id, job->journaled, output, errors, {}});
  }
  if (round->entries.empty()) return;
  syncing_ = true;
  const auto end = [this, round] {
    syncing_ = false;
    for (const Round::Entry& entry : round->entries) {
      const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& job) {
        return job->run.batch().id == entry.batch_id;
      });
      // Once its answers are files the journals may be gone.
      if (found == jobs_.end() || (*found)->run.files_named()) continue;
      if (entry.outcome) {
        (*found)->on_disk = entry.counts;
      } else {
        (*found)->torn = true;
        parts_.trouble(entry.outcome.error());
      }
    }
  };
  parts_.aside(
      [state = state_, round, end, later = parts_.later, alive = std::weak_ptr<bool>(alive_)] {
        for (Round::Entry& entry : round->entries) {
          if (entry.output) entry.outcome = state->sync(entry.batch_id, Journal::kOutput);
          if (entry.errors && entry.outcome) {
            entry.outcome = state->sync(entry.batch_id, Journal::kErrors);
          }
        }
        later([end, alive] {
          if (!alive.expired()) end();
        });
      });
}

// After a failed sync the system may say of pages that it lost that they are written: all is
// written again, with what waited.
void BatchDesk::mend(Job& job) {
  for (const auto& [journal, lines] :
       {std::pair(Journal::kOutput, &job.output), std::pair(Journal::kErrors, &job.errors)}) {
    if (lines->empty()) continue;
    const Result<void> written = state_->replace(job.run.batch().id, journal, *lines);
    if (!written) return parts_.trouble(written.error());
  }
  job.torn = false;
  job.unkept.clear();
  const serve::ApiBatch& batch = job.run.batch();
  job.journaled = job.on_disk = {batch.completed, batch.failed};
}

// --- The end of a batch ---

// One of the two files; made again after a restart it is the same one.
void BatchDesk::make_file(Job& job, std::string& answers, const char* what) const {
  if (answers.empty()) return;
  const std::string& batch = job.run.batch().id;
  StoredFile file;
  file.owner = job.owner;
  file.record.id = "file-" + batch.substr(batch.find('_') + 1) + "-" + what;
  file.record.filename = batch + "_" + what + ".jsonl";
  file.record.purpose = "batch_output";
  file.record.bytes = static_cast<int64_t>(answers.size());
  file.record.created_at = parts_.now();
  file.content = std::make_shared<const std::string>(std::exchange(answers, {}));
  job.made.push_back(std::move(file));
}

// Again at the next tick when something cannot be kept.
void BatchDesk::write_files(Job& job) {
  if (job.keeping_files || !job.unkept.empty() || job.torn) return;
  make_file(job, job.output, "output");
  make_file(job, job.errors, "error");
  if (state_ == nullptr || job.made.empty()) return files_kept(job);
  job.keeping_files = true;
  // The job stays: create() only drops those that have their files.
  const auto end = [this, &job](const Result<void>& kept) {
    job.keeping_files = false;
    if (kept) return files_kept(job);
    parts_.trouble(kept.error());
  };
  parts_.aside([state = state_, made = job.made, end, later = parts_.later,
                alive = std::weak_ptr<bool>(alive_)] {
    Result<void> kept;
    for (const StoredFile& file : made) {
      if (kept) kept = state->save_file({file.owner, file.record}, *file.content);
    }
    later([end, alive, kept] {
      if (!alive.expired()) end(kept);
    });
  });
}

void BatchDesk::files_kept(Job& job) {
  std::string output;
  std::string errors;
  for (StoredFile& file : job.made) {
    (file.record.id.ends_with("-output") ? output : errors) = file.record.id;
    // Its bytes were counted as answers. One of this name is from before a restart.
    std::erase_if(files_, [&](const StoredFile& other) {
      if (other.record.id != file.record.id) return false;
      bytes_ -= other.content->size();
      return true;
    });
    files_.push_back(std::move(file));
  }
  job.made.clear();
  job.run.files_written(output, errors, parts_.now());
  job.input.reset();
  job.at_end = true;
  keep(job);
}

// --- Another process's ---

void BatchDesk::restore(StateDirectory& state, std::vector<std::string>& problems) {
  state_ = &state;
  for (StateDirectory::KeptFile& kept : state.files(problems)) {
    bytes_ += kept.content.size();
    files_.push_back({kept.saved.owner, kept.saved.record,
                      std::make_shared<const std::string>(std::move(kept.content))});
  }
  for (StateDirectory::KeptBatch& kept : state.batches(problems)) restore_job(std::move(kept));
}

void BatchDesk::restore_job(StateDirectory::KeptBatch kept) {
  serve::BatchRun::Answered answered;
  answered.in_files = !kept.has_journals;
  const auto count = [&](std::string_view text, int64_t& counter) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      if (auto id = serve::answered_custom_id(text.substr(0, end))) {
        ++counter;
        answered.custom_ids.insert(*std::move(id));
      }
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  };
  count(kept.output, answered.completed);
  count(kept.errors, answered.failed);
  const Job::Counts counts = {answered.completed, answered.failed};
  const std::string input_id = kept.saved.batch.create.input_file_id;
  auto job = std::make_unique<Job>(
      kept.saved.owner, serve::BatchRun::resume(std::move(kept.saved.batch), std::move(answered)));
  if (job->run.ended() && !job->run.wants_files()) {
    job->at_end = true;
    jobs_.push_back(std::move(job));
    return state_->remove_journals(jobs_.back()->run.batch().id);
  }
  job->journaled = job->on_disk = counts;
  job->output = std::move(kept.output);
  job->errors = std::move(kept.errors);
  bytes_ += job->output.size() + job->errors.size();
  const auto input = find_file(job->owner, input_id);
  if (input) job->input = (*input)->content;
  // Without its input it ends with what it has.
  if (!input) static_cast<void>(job->run.cancel(parts_.now()));
  using Status = serve::BatchStatus;
  job->at_end = !input || (job->run.batch().status != Status::kInProgress &&
                           job->run.batch().status != Status::kValidating);
  jobs_.push_back(std::move(job));
  if (jobs_.back()->run.batch().status == Status::kValidating) check_later(*jobs_.back());
}

}  // namespace galley::server
