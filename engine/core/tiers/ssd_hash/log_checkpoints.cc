// What the log does for checkpoints.
#include <algorithm>
#include <utility>

#include "tiers/ssd_hash/log.h"

namespace embstore::ssd_hash {

void Log::take_up(std::deque<std::shared_ptr<LogFile>> files, uint64_t next_number,
                  uint64_t newest_checkpoint) {
  const MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& file : files) bytes += file->written_bytes;
  file_bytes_ = file_bytes_peak_ = bytes;
  next_index_ = static_cast<uint32_t>(files.size());
  next_number_ = next_number;
  epoch_ = newest_checkpoint + 1;
  files_ = std::move(files);
  publish_files();
}

// The numbers of records that would begin in the block of the last one are given to nobody.
void Log::begin_another_block() {
  if (buffer_ == nullptr) return;  // nothing was appended since the last time
  const uint64_t end = shape_.record.offset(active_->records);
  const uint64_t stride = shape_.record.stride;
  const uint64_t skipped = (round_up_to_block(end) - end + stride - 1) / stride;
  active_->records = static_cast<uint32_t>(std::min<uint64_t>(active_->records + skipped, active_->capacity));
  buffer_ = nullptr;
  publish_view();
}

void Log::begin_checkpoint(uint64_t number) {
  const MutexLock lock(mutex_);
  checkpoint_begins_ = true;
  try {
    flush_buffer();  // which waits for those that are under way
    begin_another_block();
    for (const auto& file : files_) {
      if (file->live_rows() > 0) file->hold_live_rows(number);
    }
    epoch_ = number + 1;
  } catch (...) {
    for (const auto& file : files_) file->let_go(number);
    checkpoint_begins_ = false;
    copied_.notify_all();
    throw;
  }
  checkpoint_begins_ = false;
  copied_.notify_all();
}

std::vector<HeldRows> Log::rows_of(uint64_t checkpoint) const {
  const MutexLock lock(mutex_);
  std::vector<HeldRows> rows;
  for (const auto& file : files_) {
    const auto held = file->held().find(checkpoint);
    if (held != file->held().end()) rows.push_back({file, held->second});
  }
  return rows;
}

// The lock isn't held while the medium is waited for, but where it refused a file.
void Log::bring_to_medium(std::span<const HeldRows> files) {
  for (const HeldRows& held : files) {
    files::File& file = held.file->file();
    try {
      file.sync_if_written();
      continue;
    } catch (const files::FileError&) {
      if (!file.in_doubt()) throw;
    }
    const MutexLock lock(mutex_);
    make_sound(*held.file);  // unless another thread did that meanwhile
  }
}

void Log::drop_checkpoint(uint64_t number) noexcept {
  const MutexLock lock(mutex_);
  for (const auto& file : files_) file->let_go(number);
}

void Log::make_live(std::span<const HeldRows> rows) {
  uint64_t live = 0;
  for (const HeldRows& held : rows) {
    held.file->make_live(held.rows);
    live += held.file->live_rows();
  }
  live_rows_.fetch_add(live, std::memory_order_relaxed);
}

uint64_t Log::held_bytes() const {
  const std::shared_ptr<const LogView> seen = view();
  uint64_t bytes = 0;
  for (const auto& file : *seen->files) {
    if (file != nullptr && file->is_held() && file->live_rows() == 0) bytes += file->written_bytes;
  }
  return bytes;
}

}  // namespace embstore::ssd_hash
