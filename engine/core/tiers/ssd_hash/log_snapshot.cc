// What the log does for checkpoints.
#include <cstring>
#include <utility>

#include "tiers/ssd_hash/log.h"

namespace embstore::ssd_hash {

bool Log::next_record_shares_block_with_rows() const {
  if (active_ == nullptr || active_->records == active_->capacity) return false;
  const uint64_t block = round_down_to_block(shape_.offset_of(active_->records));
  for (uint32_t record = active_->records; record > 0 && shape_.offset_of(record) > block; --record) {
    if (active_->is_live(record - 1)) return true;
  }
  return false;
}

void Log::append_void_record(AppendBuffer& buffer) {
  LogFile& file = *active_;
  const uint32_t number = file.records;
  std::byte* at = buffer.at_offset(shape_.offset_of(number));
  RecordHeader header{};
  header.kind = kVoid;
  header.sequence = next_sequence_++;
  std::memset(at, 0, shape_.record.bytes);
  std::memcpy(at, &header, sizeof header);
  seal_record(at, shape_.record);
  file.records.store(number + 1, std::memory_order_release);
  buffer.count.fetch_add(1, std::memory_order_release);
}

void Log::begin_block_without_rows() {
  for (;;) {
    while (copying_ > 0) copied_.wait(mutex_);
    if (!next_record_shares_block_with_rows()) return;
    AppendBuffer& buffer = writable_buffer();
    if (copying_ == 0 && next_record_shares_block_with_rows()) append_void_record(buffer);
  }
}

Snapshot Log::take_snapshot() {
  const MutexLock lock(mutex_);
  ++snapshots_under_way_;
  Snapshot snapshot;
  try {
    begin_block_without_rows();
    for (const auto& file : files_) {
      if (file->live_rows() == 0) continue;
      const uint32_t records = file->records;
      auto rows = std::make_shared<const RecordBits>(file->live_records(records));
      snapshot.rows += count_records(*rows);
      snapshot.files.push_back({file, records, std::move(rows)});
      file->reserve_hold();
    }
  } catch (...) {
    --snapshots_under_way_;
    copied_.notify_all();
    throw;
  }
  for (const FileSnapshot& part : snapshot.files) part.file->hold(part.rows);
  --snapshots_under_way_;
  copied_.notify_all();
  return snapshot;
}

void Log::hold(const Snapshot& snapshot) {
  const MutexLock lock(mutex_);
  for (const FileSnapshot& part : snapshot.files) part.file->reserve_hold();
  for (const FileSnapshot& part : snapshot.files) part.file->hold(part.rows);
}

void Log::let_go(const Snapshot& snapshot) noexcept {
  const MutexLock lock(mutex_);
  for (const FileSnapshot& part : snapshot.files) part.file->let_go(part.rows);
}

// The lock isn't held while the medium is waited for, but where it refused a file.
void Log::bring_to_medium(const Snapshot& snapshot) {
  {
    const MutexLock lock(mutex_);
    for (const FileSnapshot& part : snapshot.files) {
      while (active_ == part.file && buffer_ != nullptr &&
             buffer_->first_record + buffer_written_ < part.records) {
        flush_buffer();
      }
    }
  }
  for (const FileSnapshot& part : snapshot.files) {
    files::File& file = part.file->file();
    try {
      file.sync_if_written();
      continue;
    } catch (const files::FileError&) {
      if (!file.in_doubt()) throw;
    }
    const MutexLock lock(mutex_);
    make_sound(*part.file);  // unless another thread did that meanwhile
  }
}

void Log::make_live(const Snapshot& snapshot) {
  for (const FileSnapshot& part : snapshot.files) part.file->make_live(*part.rows);
  add_live_rows(snapshot.rows);
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
