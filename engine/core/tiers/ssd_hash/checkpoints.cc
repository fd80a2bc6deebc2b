#include "tiers/ssd_hash/checkpoints.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "errors/error.h"
#include "files/file.h"
#include "tiers/ssd_hash/checkpoint_file.h"
#include "tiers/ssd_hash/file_header.h"
#include "tiers/ssd_hash/restoring.h"

namespace embstore::ssd_hash {
namespace {

// A file with records that checkpoints need. It's never written again.
std::shared_ptr<LogFile> open_record_file(const LogShape& shape, const CheckpointContents::File& needed,
                                          uint32_t index) {
  const std::string path = shape.path_of(needed.number);
  const auto refuse = [&path](const std::string& why) {
    throw Error(ErrorKind::kStorage,
                path + ": " + why +
                    ", and a checkpoint of the pool needs it; put it back as it was, or remove the "
                    "pool's files and this directory to start without their rows");
  };
  std::error_code code;
  if (!std::filesystem::exists(path, code)) refuse("is missing");
  const FileHeader header = read_file_header(*shape.calls, path);
  check_file_header(path, header, shape);
  if (header.format_version != kCheckpointsVersion || header.flags != kOfCheckpoints ||
      header.file_number != needed.number || header.record_capacity != needed.capacity) {
    refuse("is another file than the one that was written");
  }
  auto file = std::make_shared<LogFile>(
      std::make_unique<files::File>(*shape.calls, path, shape.open_flags(), shape.file_use()), needed.number,
      index, needed.capacity);
  const uint64_t size = file->file().size_bytes();
  file->written_bytes = round_up_to_block(size);
  file->sealed = true;
  if (shape.maps_files) {
    file->map(size);
    file->mapped_bytes.store(size, std::memory_order_release);
  }
  return file;
}

void check_length(const LogFile& file, const CheckpointContents::File& needed, const LogShape& shape) {
  const uint64_t end = shape.offset_of(end_of_records(needed.rows));
  const uint64_t size = file.file().size_bytes();
  if (needed.capacity == file.capacity && size >= end) return;
  throw Error(ErrorKind::kStorage,
              file.file().path() + ": has " + std::to_string(size) +
                  " bytes, and a checkpoint of the pool needs " + std::to_string(end) +
                  "; put it back as it was, or remove the pool's files and this directory to "
                  "start without their rows");
}

}  // namespace

Checkpoints::Checkpoints(Log& log, const LogShape& shape, std::string optimizer)
    : shape_(shape), log_(log), optimizer_(std::move(optimizer)) {
  check_optimizer_name(optimizer_);
}

void Checkpoints::take_up(std::span<const CheckpointName> kept, TierDirectory& directory,
                          const TierDirectory::OfCheckpoints& found) {
  std::vector<CheckpointContents> contents;
  std::map<uint64_t, std::shared_ptr<LogFile>> files;  // by number
  std::set<std::string> needed;                        // paths
  Log::NextNumbers next{.file = found.last_file_number + 1, .sequence = 1};
  for (const CheckpointName& name : kept) {
    contents.push_back(read_checkpoint_file(shape_, optimizer_, name));
    needed.insert(shape_.checkpoint_path(name.number));
    next.file = std::max(next.file, contents.back().next.file);
    next.sequence = std::max(next.sequence, contents.back().next.sequence);
    for (const auto& file : contents.back().files) files.emplace(file.number, nullptr);
  }
  if (files.size() > shape_.max_files) {
    throw Error(ErrorKind::kStoreFull, shape_.directory + ": holds more files than can be addressed");
  }
  // The oldest first, as the log has them.
  std::deque<std::shared_ptr<LogFile>> adopted;
  for (auto& [number, file] : files) {
    for (const CheckpointContents& checkpoint : contents) {
      for (const auto& part : checkpoint.files) {
        if (part.number != number) continue;
        if (file == nullptr) file = open_record_file(shape_, part, static_cast<uint32_t>(adopted.size()));
        check_length(*file, part, shape_);
        file->records = std::max<uint32_t>(file->records, part.records);
      }
    }
    needed.insert(file->file().path());
    adopted.push_back(file);
  }
  std::map<uint64_t, Checkpoint> taken_up;
  for (size_t i = 0; i < kept.size(); ++i) {
    Snapshot snapshot{.files = {}, .rows = contents[i].rows};
    for (auto& part : contents[i].files) {
      snapshot.files.push_back(
          {files.at(part.number), part.records, std::make_shared<const RecordBits>(std::move(part.rows))});
    }
    taken_up[kept[i].number] = {std::make_shared<const Snapshot>(std::move(snapshot)), kept[i].id};
  }
  std::vector<std::string> leftovers;
  for (const std::string& path : found.paths) {
    if (!needed.contains(path)) leftovers.push_back(path);
  }
  // Nothing has changed so far.
  directory.remove(leftovers);
  log_.adopt(std::move(adopted), /*live_rows=*/0, next);
  const MutexLock lock(mutex_);
  for (const auto& [number, checkpoint] : taken_up) log_.hold(*checkpoint.snapshot);
  checkpoints_ = std::move(taken_up);
}

void Checkpoints::begin(uint64_t number) {
  const MutexLock lock(mutex_);
  const auto [at, is_new] = checkpoints_.try_emplace(number);
  if (!is_new) {
    throw Error(ErrorKind::kInvalidArgument,
                shape_.directory + ": there is a checkpoint " + std::to_string(number) + " already");
  }
  try {
    auto snapshot = std::make_shared<Snapshot>();
    *snapshot = log_.take_snapshot();
    at->second.snapshot = std::move(snapshot);
  } catch (...) {
    checkpoints_.erase(at);
    throw;
  }
}

void Checkpoints::commit(const CheckpointName& checkpoint) {
  std::shared_ptr<const Snapshot> snapshot;
  bool sync_parent = false;
  {
    const MutexLock lock(mutex_);
    const auto at = checkpoints_.find(checkpoint.number);
    if (at == checkpoints_.end() || at->second.id) {
      throw Error(ErrorKind::kInvalidArgument,
                  shape_.directory + ": no checkpoint " + std::to_string(checkpoint.number) + " is pending");
    }
    snapshot = at->second.snapshot;
    sync_parent = !directory_is_on_medium_;
  }
  log_.bring_to_medium(*snapshot);
  write_checkpoint_file(shape_, optimizer_, checkpoint, *snapshot, log_.next_numbers());
  // The names of its files, and its own.
  files::sync_directory(*shape_.calls, shape_.directory);
  if (sync_parent) {
    const std::filesystem::path directory = std::filesystem::canonical(shape_.directory);
    files::sync_directory(*shape_.calls, directory.parent_path().string());
  }
  const MutexLock lock(mutex_);
  directory_is_on_medium_ = true;
  checkpoints_.at(checkpoint.number).id = checkpoint.id;
}

void Checkpoints::drop(uint64_t number) noexcept {
  const MutexLock lock(mutex_);
  const auto at = checkpoints_.find(number);
  if (at != checkpoints_.end()) drop(at);
}

Checkpoints::ByNumber::iterator Checkpoints::drop(ByNumber::iterator checkpoint) noexcept {
  // Of one that is pending too: it may have come so far.
  shape_.calls->unlink(shape_.checkpoint_path(checkpoint->first).c_str());
  log_.let_go(*checkpoint->second.snapshot);
  return checkpoints_.erase(checkpoint);
}

void Checkpoints::drop_pending() noexcept {
  const MutexLock lock(mutex_);
  for (auto at = checkpoints_.begin(); at != checkpoints_.end();)
    at = at->second.id ? std::next(at) : drop(at);
}

uint64_t Checkpoints::rows(uint64_t number) const {
  const MutexLock lock(mutex_);
  const auto at = checkpoints_.find(number);
  return at == checkpoints_.end() || !at->second.id ? 0 : at->second.snapshot->rows;
}

void Checkpoints::restore(const CheckpointName& checkpoint, int threads,
                          const CheckpointFollower::Restored& visit) {
  std::shared_ptr<const Snapshot> snapshot;
  {
    const MutexLock lock(mutex_);
    const auto at = checkpoints_.find(checkpoint.number);
    if (at == checkpoints_.end() || at->second.id != checkpoint.id) {
      throw Error(ErrorKind::kStorage,
                  shape_.checkpoint_path(checkpoint.number) +
                      ": there is no such checkpoint; restore one of those that are kept");
    }
    snapshot = at->second.snapshot;
  }
  if (log_.live_rows() > 0) {
    throw Error(ErrorKind::kInvalidArgument,
                shape_.directory + ": rows are live; a checkpoint is restored when all were erased");
  }
  visit_rows(*snapshot, shape_, threads, visit);
  log_.make_live(*snapshot);
}

bool Checkpoints::any_kept() const {
  const MutexLock lock(mutex_);
  return std::any_of(checkpoints_.begin(), checkpoints_.end(),
                     [](const auto& checkpoint) { return checkpoint.second.id.has_value(); });
}

}  // namespace embstore::ssd_hash
