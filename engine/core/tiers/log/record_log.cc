#include "tiers/log/record_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors/error.h"
#include "tiers/log/file_names.h"
#include "tiers/log/record_scan.h"

namespace embstore::log {
namespace {

// A file's index is reused only after this many others: so a thread that still has a place of a removed file
// finds no file there, rather than another file's rows.
constexpr size_t kIndexesAtRest = 1024;
constexpr size_t kMaxSpareBuffers = 2;

}  // namespace

RecordLog::RecordLog(const LogShape& shape)
    : shape_(shape),
      spare_memory_(std::make_shared<AppendBuffer::SpareMemory>(kMaxSpareBuffers)),
      files_by_index_(std::make_shared<LogFiles>()),
      view_(std::make_shared<LogView>(LogView{std::make_shared<LogFiles>(), nullptr})) {}

std::shared_ptr<const LogView> RecordLog::view() const {
  const MutexLock lock(view_mutex_);
  return view_;
}

void RecordLog::publish(std::shared_ptr<const LogFiles> files, std::shared_ptr<AppendBuffer> buffer) {
  auto next = std::make_shared<const LogView>(LogView{files, buffer});
  files_by_index_ = std::move(files);
  buffer_ = std::move(buffer);
  const MutexLock lock(view_mutex_);
  view_.swap(next);  // the old view is released after the lock
}

void RecordLog::publish_files() {
  auto changed = std::make_shared<LogFiles>(next_index_);
  for (const auto& file : files_) (*changed)[file->index] = file;
  publish(std::move(changed), buffer_);
}

uint32_t RecordLog::take_file_index() {
  if (next_index_ < shape_.max_files() && free_indexes_.size() < kIndexesAtRest) return next_index_++;
  if (free_indexes_.empty()) {
    throw Error(ErrorKind::kStoreFull,
                shape_.directory + ": holds " + std::to_string(shape_.max_files()) + " files of up to " +
                    std::to_string(shape_.records_per_file) +
                    " records, all that can be addressed; split the variable into more partitions");
  }
  const uint32_t index = free_indexes_.front();
  free_indexes_.pop_front();
  reused_indexes_.fetch_add(1, std::memory_order_release);
  return index;
}

void RecordLog::add_file_bytes(uint64_t bytes) {
  const uint64_t now = file_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (now > file_bytes_peak_.load(std::memory_order_relaxed)) {
    file_bytes_peak_.store(now, std::memory_order_relaxed);
  }
  bytes_written_.fetch_add(bytes, std::memory_order_relaxed);
}

// -- appending --------------------------------------------------------------------------------------------

void RecordLog::write_header(files::File& to, const LogFile& file) const {
  const FileHeader header = make_header(kRowsMagic, shape_.table, file.number, file.capacity,
                                        static_cast<uint32_t>(shape_.record.stride));
  const medium::AlignedBytes block(kHeaderBytes);
  std::memset(block.data(), 0, block.size());
  std::memcpy(block.data(), &header, sizeof header);
  to.write_at(block.data(), block.size(), 0);
}

void RecordLog::open_file() {
  // An eighth of the live rows, so that a compaction never moves many at once.
  const uint64_t wanted_bytes = std::max<uint64_t>(live_bytes() / 8, shape_.flush_bytes);
  const auto capacity = static_cast<uint32_t>(
      std::clamp<uint64_t>(wanted_bytes / shape_.record.stride, 1, shape_.records_per_file));
  const std::string path = shape_.path_of(next_number_);
  const uint32_t index = take_file_index();
  std::shared_ptr<LogFile> file;
  try {
    auto bytes = shape_.open(path, O_CREAT | O_TRUNC);
    file = std::make_shared<LogFile>(std::move(bytes), next_number_, index, capacity,
                                     shape_.options.keeps_checkpoints ? RecordReferences::Checkpoints::kSome
                                                                      : RecordReferences::Checkpoints::kNone);
    write_header(file->file(), *file);
    file->written_bytes = kHeaderBytes;
    if (shape_.maps_files()) file->map(shape_.record.file_bytes(capacity));
    files_.push_back(file);
    publish_files();
  } catch (...) {
    std::erase(files_, file);
    if (file != nullptr) shape_.options.file_calls->unlink(path.c_str());
    free_indexes_.push_front(index);
    throw;
  }
  add_file_bytes(kHeaderBytes);
  ++next_number_;
  active_ = std::move(file);
}

void RecordLog::open_buffer() {
  auto next = std::make_shared<AppendBuffer>(
      spare_memory_, medium::round_up_to_block(shape_.flush_bytes + shape_.record.stride), active_);
  const uint32_t records = active_->records;
  const uint64_t offset = shape_.record.offset(records);
  next->first_record = records;
  next->base_offset = medium::round_down_to_block(offset);
  const size_t stride = shape_.record.stride;
  const uint64_t fitting = (next->base_offset + shape_.flush_bytes - offset + stride - 1) / stride;
  next->capacity = static_cast<uint32_t>(std::min<uint64_t>(fitting, active_->capacity - records));
  // The block in which the earlier records end is written again with the new records, unless they begin in
  // another block.
  const uint64_t before = offset - next->base_offset;
  if (buffer_ == nullptr) {
    std::memset(next->bytes.data(), 0, before);
  } else {
    std::memcpy(next->bytes.data(), buffer_->at_offset(next->base_offset), before);
  }
  publish(files_by_index_, std::move(next));
  buffer_written_ = 0;
}

void RecordLog::flush_buffer() {
  while (buffer_ != nullptr && copying_ > 0) copied_.wait(mutex_);
  if (buffer_ == nullptr) return;
  const uint32_t count = buffer_->count.load(std::memory_order_relaxed);
  if (count == buffer_written_) return;
  rewrite_if_sync_failed(*active_);
  const uint64_t end_of_records = shape_.record.offset(buffer_->first_record + count);
  const uint64_t from =
      medium::round_down_to_block(shape_.record.offset(buffer_->first_record + buffer_written_));
  const uint64_t to = medium::round_up_to_block(end_of_records);
  std::memset(buffer_->at_offset(end_of_records), 0, to - end_of_records);
  active_->file().write_at(buffer_->at_offset(from), to - from, from);
  buffer_written_ = count;
  const uint64_t added = to - active_->written_bytes;
  bytes_written_.fetch_add(to - from - added, std::memory_order_relaxed);
  add_file_bytes(added);
  active_->written_bytes = to;
  // Up to the last full block: later blocks change as more is written.
  active_->mapped_bytes.store(medium::round_down_to_block(end_of_records), std::memory_order_release);
}

void RecordLog::seal_active_file() {
  const std::shared_ptr<LogFile> file = active_;
  flush_buffer();
  if (active_ != file) return;  // another thread sealed it while this one waited
  publish(files_by_index_, nullptr);
  file->sealed = true;
  file->mapped_bytes.store(file->written_bytes, std::memory_order_release);
  active_ = nullptr;
}

AppendBuffer& RecordLog::writable_buffer() {
  for (;;) {
    if (active_ == nullptr) {
      open_file();
    } else if (buffer_ != nullptr && !buffer_->full()) {
      return *buffer_;
    } else if (active_->records == active_->capacity) {
      seal_active_file();
    } else if (buffer_ == nullptr) {
      open_buffer();
    } else {
      const std::shared_ptr<AppendBuffer> full = buffer_;
      flush_buffer();
      if (buffer_ == full) open_buffer();
    }
  }
}

size_t RecordLog::append(const RowBatch& rows, size_t first, std::span<Slot> slots) {
  const MutexLock lock(mutex_);
  AppendBuffer& buffer = writable_buffer();
  LogFile& file = *active_;
  const uint32_t before = buffer.count.load(std::memory_order_relaxed);
  const uint32_t first_record = file.records.load(std::memory_order_relaxed);
  const auto count = static_cast<uint32_t>(std::min<size_t>(rows.size() - first, buffer.capacity - before));
  std::byte* at = buffer.at_offset(shape_.record.offset(first_record));
  for (uint32_t i = 0; i < count; ++i, at += shape_.record.stride) {
    const uint32_t record = first_record + i;
    RecordHeader header = RecordHeader::of(rows.header(first + i), epoch_, record);
    shape_.record.seal(header, rows.row(first + i));
    std::memcpy(at, &header, sizeof header);
    std::memcpy(at + sizeof header, rows.row(first + i), shape_.record.row_bytes);
    file.rows.add_live(record);
    slots[first + i] = shape_.slot_of(file, record);
    served_.set(slots[first + i], 0);
  }
  file.records.store(first_record + count, std::memory_order_release);
  buffer.count.store(before + count, std::memory_order_release);
  live_rows_.fetch_add(count, std::memory_order_relaxed);
  return count;
}

bool RecordLog::buffer_is_full() const {
  const MutexLock lock(mutex_);
  return buffer_ != nullptr && buffer_->full();
}

void RecordLog::erase(std::span<const Place> places) {
  const auto seen = view();
  uint64_t erased = 0;
  for (const Place& place : places) {
    const uint32_t index = shape_.index_of(place.slot);
    if (index >= seen->files->size()) continue;
    const std::shared_ptr<LogFile>& file = (*seen->files)[index];
    const uint32_t record = shape_.record_of(place.slot);
    if (file != nullptr && record < file->capacity && file->rows.remove_live(record)) ++erased;
  }
  live_rows_.fetch_sub(erased, std::memory_order_relaxed);
}

RecordLog::Copies RecordLog::append_copies(std::span<const std::byte> records, std::span<const Slot> from) {
  const size_t stride = shape_.record.stride;
  const MutexLock lock(mutex_);
  while (is_checkpoint_beginning_) copied_.wait(mutex_);
  AppendBuffer& buffer = writable_buffer();
  const uint32_t before = buffer.count.load(std::memory_order_relaxed);
  const uint32_t first = active_->records;
  const auto count = static_cast<uint32_t>(std::min<size_t>(from.size(), buffer.capacity - before));
  std::byte* at = buffer.at_offset(shape_.record.offset(first));
  std::memcpy(at, records.data(), count * stride);
  for (uint32_t i = 0; i < count; ++i, at += stride) {
    RecordHeader header = header_of(at);
    if (header.is_whole() && header.record == shape_.record_of(from[i])) {
      header.epoch = epoch_;
      header.record = first + i;
      header.checksum = header.computed_checksum();
      std::memcpy(at, &header, sizeof header);
    }
    active_->rows.add_live(first + i);
  }
  active_->records.store(first + count, std::memory_order_release);
  buffer.count.store(before + count, std::memory_order_release);
  ++copying_;
  return {buffer_, shape_.slot_of(*active_, first), count};
}

void RecordLog::end_copies(const Copies& copies, std::span<const Relocator::Relocation> relocations) {
  const MutexLock lock(mutex_);
  for (const Relocator::Relocation& row : relocations) {
    if (!row.done) copies.buffer->file->rows.remove_live(shape_.record_of(row.to));
  }
  --copying_;
  copied_.notify_all();
}

void RecordLog::seal(const LogFile& file) {
  const MutexLock lock(mutex_);
  if (active_.get() == &file) seal_active_file();
}

// -- files ------------------------------------------------------------------------------------------------

LogFiles RecordLog::files() const {
  const MutexLock lock(mutex_);
  return {files_.begin(), files_.end()};
}

uint64_t RecordLog::file_count() const {
  const MutexLock lock(mutex_);
  return files_.size();
}

std::vector<RecordLog::Removal> RecordLog::remove(std::span<const std::shared_ptr<LogFile>> emptied) {
  const MutexLock lock(mutex_);
  std::vector<Removal> removals;
  for (const auto& file : emptied) {
    removals.push_back({file, {}});
    try {
      file->file().remove();
    } catch (const files::FileError& error) {
      removals.back().failure = error.what();
      continue;
    }
    file_bytes_.fetch_sub(file->written_bytes, std::memory_order_relaxed);
    free_indexes_.push_back(file->index);
    served_.discard(shape_.slot_of(*file, 0), shape_.slot_of(*file, file->capacity));
    std::erase(files_, file);
  }
  publish_files();
  return removals;
}

void RecordLog::remove_unneeded_files() {
  const MutexLock lock(mutex_);
  for (const auto& file : files_) {
    if (!file->rows.has_any()) file->file().remove();
  }
}

void RecordLog::forget_all() {
  const MutexLock lock(mutex_);
  files_.clear();
  active_ = nullptr;
  buffer_ = nullptr;
  publish_files();
  live_rows_.store(0, std::memory_order_relaxed);
  file_bytes_.store(0, std::memory_order_relaxed);
}

// -- checkpoints ----------------------------------------------------------------------------------------

void RecordLog::adopt_kept(std::deque<std::shared_ptr<LogFile>> files, uint64_t next_number,
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

// Starts the next record in a new block. The numbers of records that would begin in the current one are
// skipped.
void RecordLog::start_new_block() {
  if (buffer_ == nullptr) return;  // nothing was appended since the last time
  const uint64_t end = shape_.record.offset(active_->records);
  const uint64_t stride = shape_.record.stride;
  const uint64_t skipped = (medium::round_up_to_block(end) - end + stride - 1) / stride;
  publish(files_by_index_, nullptr);
  active_->records = static_cast<uint32_t>(std::min<uint64_t>(active_->records + skipped, active_->capacity));
}

void RecordLog::begin_checkpoint(uint64_t number) {
  const MutexLock lock(mutex_);
  is_checkpoint_beginning_ = true;
  try {
    flush_buffer();  // waits for copies
    start_new_block();
    for (const auto& file : files_) {
      if (file->rows.live() > 0) file->rows.begin(number);
    }
    epoch_ = number + 1;
  } catch (...) {
    is_checkpoint_beginning_ = false;
    copied_.notify_all();
    throw;
  }
  is_checkpoint_beginning_ = false;
  copied_.notify_all();
}

LogFiles RecordLog::files_of(uint64_t checkpoint) const {
  LogFiles files = this->files();
  std::erase_if(files, [checkpoint](const auto& file) { return !file->rows.has(checkpoint); });
  return files;
}

// Holds the lock while it waits for the medium only if the medium refused a file.
void RecordLog::make_durable(const LogFiles& files) {
  for (const auto& log_file : files) {
    files::File& file = log_file->file();
    try {
      file.sync_if_written();
      continue;
    } catch (const files::FileError&) {
      if (!file.sync_failed()) throw;
    }
    const MutexLock lock(mutex_);
    rewrite_if_sync_failed(*log_file);  // does nothing if another thread did it meanwhile
  }
}

void RecordLog::drop_checkpoint(uint64_t number) noexcept {
  const MutexLock lock(mutex_);
  for (const auto& file : files_) {
    if (file->rows.has(number)) file->rows.drop(number, [](std::span<const Slot>) {});
  }
}

void RecordLog::make_live(uint64_t checkpoint) {
  served_.clear();
  for (const auto& file : files_of(checkpoint)) {
    file->rows.make_live(checkpoint);
    live_rows_.fetch_add(file->rows.live(), std::memory_order_relaxed);
  }
}

uint64_t RecordLog::held_bytes() const {
  const std::shared_ptr<const LogView> seen = view();
  uint64_t bytes = 0;
  for (const auto& file : *seen->files) {
    if (file != nullptr && file->rows.has_any() && file->rows.live() == 0) bytes += file->written_bytes;
  }
  return bytes;
}

// -- a medium that doesn't take what is written -----------------------------------------------------------

void RecordLog::rewrite_if_sync_failed(LogFile& file) {
  if (file.file().sync_failed()) rewrite(file);
}

// Copies the rows into a new file, which gets the old name once it's on the medium. The rows keep their
// places.
void RecordLog::rewrite(LogFile& file) {
  const std::string path = file.file().path();
  auto fresh = shape_.open(path + std::string(kUnfinished), O_CREAT | O_TRUNC);
  try {
    write_header(*fresh, file);
    copy_rows(file, *fresh);
    fresh->sync();
    fresh->rename_to(path);
  } catch (...) {
    shape_.options.file_calls->unlink(fresh->path().c_str());
    throw;
  }
  bytes_written_.fetch_add(file.written_bytes, std::memory_order_relaxed);
  rewritten_files_.fetch_add(1, std::memory_order_relaxed);
  file.replace_file(std::move(fresh));
}

// Copies the records that are live or that checkpoints need. Unreadable live ones are left out: the threads
// that read those rows get an error.
void RecordLog::copy_rows(const LogFile& from, files::File& to) {
  // Enough records that each chunk begins at a block, since a record is a multiple of 16 bytes long.
  constexpr uint32_t kRecords = medium::kBlockBytes / 16;
  const size_t stride = shape_.record.stride;
  const medium::AlignedBytes chunk(kRecords * stride);
  RecordScan scan(from, shape_, chunk.size());
  const auto is_wanted = [&from](uint32_t record) {
    return from.rows.is_live(record) || from.rows.any_has(record);
  };
  const bool has_buffer = active_.get() == &from && buffer_ != nullptr;
  const uint32_t in_buffer = has_buffer ? buffer_->first_record : from.records.load();
  const uint32_t end = has_buffer ? in_buffer + buffer_written_ : in_buffer;
  uint64_t lost = 0;
  for (uint32_t first = 0; shape_.record.offset(first) < from.written_bytes; first += kRecords) {
    const uint64_t begin = shape_.record.offset(first);
    std::memset(chunk.data(), 0, chunk.size());
    scan.visit(first, std::min(first + kRecords, in_buffer), is_wanted, [&](const ScannedRecord& record) {
      const std::string fault = fault_of(record, /*all_floats=*/true, shape_.record);
      if (!fault.empty() && from.rows.any_has(record.number)) {
        throw Error(ErrorKind::kStorage, shape_.name_of(from, record.number) + " " + fault +
                                             ", and a checkpoint needs it: the file stays as it is");
      }
      lost += fault.empty() ? 0 : 1;
      if (record.bytes == nullptr) return;
      std::memcpy(chunk.data() + (record.number - first) * stride, record.bytes, stride);
    });
    const uint32_t last = std::min(first + kRecords, end);
    for (uint32_t record = std::max(first, in_buffer); record < last; ++record) {
      std::memcpy(chunk.data() + (record - first) * stride, buffer_->at_offset(shape_.record.offset(record)),
                  stride);
    }
    to.write_at(chunk.data(), std::min<uint64_t>(chunk.size(), from.written_bytes - begin), begin);
  }
  lost_records_.fetch_add(lost, std::memory_order_relaxed);
}

}  // namespace embstore::log
