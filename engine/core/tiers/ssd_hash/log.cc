#include "tiers/ssd_hash/log.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors/error.h"
#include "tiers/ssd_hash/file_header.h"
#include "tiers/ssd_hash/record_scan.h"

namespace embstore::ssd_hash {
namespace {

// A file's index comes into use again only after this many others: whoever still has a place of the file
// that is gone then finds no file, rather than another's rows.
constexpr size_t kIndexesAtRest = 1024;

constexpr size_t kCopyBytes = 1 << 20;

}  // namespace

Log::Log(const LogShape& shape, SequenceNote* note)
    : shape_(shape),
      note_(note),
      buffer_memory_(
          std::make_shared<BufferMemory>(round_up_to_block(shape.flush_bytes + shape.record.bytes))),
      next_sequence_(note == nullptr ? 1 : note->handed_out() + 1),
      files_by_index_(std::make_shared<LogFiles>()),
      view_(std::make_shared<LogView>(LogView{std::make_shared<LogFiles>(), nullptr})) {}

std::shared_ptr<const LogView> Log::view() const {
  const MutexLock lock(view_mutex_);
  return view_;
}

void Log::publish_view() {
  auto next = std::make_shared<const LogView>(LogView{files_by_index_, buffer_});
  const MutexLock lock(view_mutex_);
  view_.swap(next);  // the old one is let go of after the lock
}

void Log::publish_files() {
  auto changed = std::make_shared<LogFiles>(next_index_);
  for (const auto& file : files_) (*changed)[file->index] = file;
  files_by_index_ = std::move(changed);
  publish_view();
}

uint32_t Log::take_file_index() {
  if (next_index_ < shape_.max_files && free_indexes_.size() < kIndexesAtRest) return next_index_++;
  if (free_indexes_.empty()) {
    throw Error(ErrorKind::kStoreFull,
                shape_.directory + ": holds " + std::to_string(shape_.max_files) + " files of up to " +
                    std::to_string(shape_.records_per_file) +
                    " records, all that can be addressed; split the variable into more partitions");
  }
  const uint32_t index = free_indexes_.front();
  free_indexes_.pop_front();
  reused_indexes_.fetch_add(1, std::memory_order_release);
  return index;
}

void Log::add_file_bytes(uint64_t bytes) {
  const uint64_t now = file_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (now > file_bytes_peak_.load(std::memory_order_relaxed)) {
    file_bytes_peak_.store(now, std::memory_order_relaxed);
  }
  bytes_written_.fetch_add(bytes, std::memory_order_relaxed);
}

// -- appending --------------------------------------------------------------------------------------------

// Under its own name only once its header is there, so that no kill leaves a file without one, nor, where files are
// kept, a power cut.
std::shared_ptr<LogFile> Log::make_file(const std::string& path, uint32_t index, uint32_t capacity) {
  for (bool is_first = true;; is_first = false) {
    auto file = std::make_shared<LogFile>(
        std::make_unique<files::File>(*shape_.calls, path + ".new", shape_.open_flags() | O_CREAT | O_TRUNC,
                                      shape_.file_use()),
        next_number_, index, capacity);
    try {
      write_file_header(file->file(), *file, shape_);
      if (shape_.keeps == Keeps::kFiles) file->file().sync();
      file->file().rename_to(path);
      return file;
    } catch (...) {
      shape_.calls->unlink(file->file().path().c_str());
      // What a sync that failed was to bring to the medium belongs into a new file.
      if (!is_first || !file->file().in_doubt()) throw;
    }
  }
}

void Log::open_file() {
  // An eighth of the live rows, so that compaction never has much in its hands.
  const uint64_t wanted_bytes = std::max<uint64_t>(live_bytes() / 8, shape_.flush_bytes);
  const auto capacity = static_cast<uint32_t>(
      std::clamp<uint64_t>(wanted_bytes / shape_.record.bytes, 1, shape_.records_per_file));
  const uint32_t index = take_file_index();
  const std::string path = shape_.path_of(next_number_);
  std::shared_ptr<LogFile> file;
  try {
    file = make_file(path, index, capacity);
  } catch (...) {
    free_indexes_.push_front(index);
    throw;
  }
  has_new_names_ = true;
  if (shape_.maps_files) file->map(round_up_to_block(shape_.offset_of(capacity)));
  file->written_bytes = kHeaderBytes;
  add_file_bytes(kHeaderBytes);
  ++next_number_;
  files_.push_back(file);
  active_ = std::move(file);
  open_buffer();
  publish_files();
}

void Log::open_buffer() {
  auto next = std::make_shared<AppendBuffer>(buffer_memory_, active_);
  const uint32_t records = active_->records;
  const uint64_t offset = shape_.offset_of(records);
  next->first_record = records;
  next->base_offset = round_down_to_block(offset);
  const size_t bytes = shape_.record.bytes;
  const uint64_t fitting = (next->base_offset + shape_.flush_bytes - offset + bytes - 1) / bytes;
  next->capacity = static_cast<uint32_t>(std::min<uint64_t>(fitting, active_->capacity - records));
  // The block that the records before end in goes out once more, with the records after.
  if (buffer_ != nullptr) {
    std::memcpy(next->bytes.data(), buffer_->at_offset(next->base_offset), offset - next->base_offset);
  }
  buffer_ = std::move(next);
  buffer_written_ = 0;
  publish_view();
}

void Log::flush_buffer() {
  while (buffer_ != nullptr && copying_ > 0) copied_.wait(mutex_);
  if (buffer_ == nullptr) return;
  const uint32_t count = buffer_->count.load(std::memory_order_relaxed);
  if (count == buffer_written_) return;
  make_sound(*active_);
  const uint64_t end_of_records = shape_.offset_of(buffer_->first_record + count);
  const uint64_t from = round_down_to_block(shape_.offset_of(buffer_->first_record + buffer_written_));
  const uint64_t to = round_up_to_block(end_of_records);
  std::memset(buffer_->at_offset(end_of_records), 0, to - end_of_records);
  active_->file().write_at(buffer_->at_offset(from), to - from, from);
  buffer_written_ = count;
  // Records get their numbers in the order in which they are written out.
  if (note_ != nullptr) note_->write_out(next_sequence_ - 1);
  const uint64_t added = to - active_->written_bytes;
  bytes_written_.fetch_add(to - from - added, std::memory_order_relaxed);
  add_file_bytes(added);
  active_->written_bytes = to;
  // Up to the last block that is full: the others change as more is written.
  active_->mapped_bytes.store(round_down_to_block(end_of_records), std::memory_order_release);
}

void Log::seal_active_file() {
  const std::shared_ptr<LogFile> file = active_;
  flush_buffer();
  if (active_ != file) return;  // another thread was faster
  file->sealed = true;
  // A checkpoint may need the file: its header isn't written over.
  if (shape_.keeps != Keeps::kCheckpoints) {
    try {
      make_sound(*file);
      write_file_header(file->file(), *file, shape_);
      if (shape_.syncs) bring_to_medium(*file);
    } catch (...) {
      file->sealed = false;
      throw;
    }
  }
  file->mapped_bytes.store(file->written_bytes, std::memory_order_release);
  active_ = nullptr;
  buffer_ = nullptr;
  publish_view();
}

AppendBuffer& Log::writable_buffer() {
  for (;;) {
    if (active_ == nullptr) {
      open_file();
    } else if (buffer_ == nullptr) {
      open_buffer();
    } else if (!buffer_->full()) {
      return *buffer_;
    } else if (active_->records == active_->capacity) {
      seal_active_file();
    } else {
      const std::shared_ptr<AppendBuffer> full = buffer_;
      flush_buffer();
      if (buffer_ == full) open_buffer();
    }
  }
}

bool Log::buffer_is_full() const {
  const MutexLock lock(mutex_);
  return buffer_ != nullptr && buffer_->full();
}

Log::Copies Log::append_copies(std::span<const std::byte> records) {
  const size_t bytes = shape_.record.bytes;
  const MutexLock lock(mutex_);
  while (snapshots_under_way_ > 0) copied_.wait(mutex_);
  AppendBuffer& buffer = writable_buffer();
  const uint32_t before = buffer.count.load(std::memory_order_relaxed);
  const uint32_t first = active_->records;
  const auto count =
      static_cast<uint32_t>(std::min<size_t>(records.size() / bytes, buffer.capacity - before));
  const Copies copies{buffer_, buffer.at_offset(shape_.offset_of(first)), shape_.slot_of(*active_, first),
                      count};
  std::memcpy(copies.bytes, records.data(), count * bytes);
  for (uint32_t i = 0; i < count; ++i) {
    if (header_of(copies.bytes + i * bytes).kind != kTombstones) active_->set_live(first + i);
  }
  active_->records.store(first + count, std::memory_order_release);
  buffer.count.store(before + count, std::memory_order_release);
  ++copying_;
  return copies;
}

void Log::end_copies(const Copies& copies, std::span<const uint32_t> refused) {
  const MutexLock lock(mutex_);
  for (const uint32_t number : refused) {
    std::byte* record = copies.bytes + number * shape_.record.bytes;
    RecordHeader header = header_of(record);
    header.kind = kVoid;
    std::memcpy(record, &header, sizeof header);
    seal_record(record, shape_.record);
    copies.buffer->file->clear_live(shape_.record_of(copies.first + number));
  }
  --copying_;
  copied_.notify_all();
}

void Log::flush() {
  const MutexLock lock(mutex_);
  flush_buffer();
}

void Log::seal(const LogFile& file) {
  const MutexLock lock(mutex_);
  if (active_.get() == &file) seal_active_file();
}

bool Log::drop(const LogView& seen, Slot slot) const {
  const uint64_t index = slot / shape_.records_per_file;
  if (index >= seen.files->size()) return false;
  const std::shared_ptr<LogFile>& file = (*seen.files)[index];
  const uint32_t record = shape_.record_of(slot);
  return file != nullptr && record < file->capacity && file->clear_live(record);
}

// -- files ------------------------------------------------------------------------------------------------

std::vector<std::shared_ptr<LogFile>> Log::files() const {
  const MutexLock lock(mutex_);
  return {files_.begin(), files_.end()};
}

uint64_t Log::file_count() const {
  const MutexLock lock(mutex_);
  return files_.size();
}

uint64_t Log::unwritten_records() const {
  const MutexLock lock(mutex_);
  return buffer_ == nullptr ? 0 : buffer_->count - buffer_written_;
}

void Log::secure_newer_rows() {
  const MutexLock lock(mutex_);
  flush_buffer();
  if (!shape_.syncs) return;
  for (const auto& file : files_) make_sound(*file);
  if (active_ != nullptr) bring_to_medium(*active_);
  if (!has_new_names_) return;
  files::sync_directory(*shape_.calls, shape_.directory);
  has_new_names_ = false;
}

std::vector<Log::NotRemoved> Log::remove(std::span<const std::shared_ptr<LogFile>> emptied) {
  const MutexLock lock(mutex_);
  std::vector<NotRemoved> stay;
  for (const auto& file : emptied) {
    try {
      file->file().remove();
    } catch (const files::FileError& error) {
      stay.push_back({file, error.what()});
      if (shape_.keeps == Keeps::kFiles) break;  // none goes before an older one
      continue;
    }
    file_bytes_.fetch_sub(file->written_bytes, std::memory_order_relaxed);
    free_indexes_.push_back(file->index);
    std::erase(files_, file);
  }
  publish_files();
  return stay;
}

void Log::void_dead_records(LogFile& file) {
  const size_t bytes = shape_.record.bytes;
  const auto records_a_chunk = static_cast<uint32_t>(std::max<size_t>(1, kCopyBytes / bytes));
  const AlignedBytes chunk(round_up_to_block(records_a_chunk * bytes) + 2 * kBlockBytes);
  const MutexLock lock(mutex_);
  for (uint32_t first = 0; first < file.records; first += records_a_chunk) {
    const uint32_t last = std::min<uint32_t>(file.records, first + records_a_chunk);
    const uint64_t begin = round_down_to_block(shape_.offset_of(first));
    const uint64_t end = round_up_to_block(shape_.offset_of(last));
    const size_t got = file.file().read_at(chunk.data(), end - begin, begin);
    bool changed = false;
    for (uint32_t record = first; record < last; ++record) {
      const uint64_t position = shape_.offset_of(record) - begin;
      std::byte* at = chunk.data() + position;
      if (position + bytes > got || file.is_live(record)) continue;
      const RecordHeader header{.checksum = 0,
                                .kind = kVoid,
                                .count = 0,
                                .sequence = header_of(at).sequence,
                                .key = 0,
                                .frequency = 0,
                                .version = 0,
                                .served = 0,
                                .stamp = 0,
                                .save_span = 0,
                                .slots_checksum = 0};
      std::memcpy(at, &header, sizeof header);
      seal_record(at, shape_.record);
      changed = true;
    }
    if (changed) file.file().write_at(chunk.data(), round_down_to_block(got), begin);
  }
  if (shape_.syncs) bring_to_medium(file);
}

Log::NextNumbers Log::next_numbers() const {
  const MutexLock lock(mutex_);
  return {.file = next_number_, .sequence = next_sequence_};
}

void Log::adopt(std::deque<std::shared_ptr<LogFile>> files, uint64_t live_rows, const NextNumbers& next) {
  const MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& file : files) bytes += file->written_bytes;
  next_index_ = static_cast<uint32_t>(files.size());
  next_number_ = next.file;
  next_sequence_ = next.sequence;
  live_rows_.store(live_rows, std::memory_order_relaxed);
  file_bytes_.store(bytes, std::memory_order_relaxed);
  file_bytes_peak_.store(bytes, std::memory_order_relaxed);
  files_ = std::move(files);
  publish_files();
}

void Log::keep_all() {
  const MutexLock lock(mutex_);
  if (active_ != nullptr && active_->records > 0) seal_active_file();
  for (const auto& file : files_) bring_to_medium(*file);
  if (!files_.empty()) files::sync_directory(*shape_.calls, shape_.directory);
}

void Log::remove_all() {
  const MutexLock lock(mutex_);
  for (; !files_.empty(); files_.pop_front()) files_.front()->file().remove();
}

void Log::forget_all() {
  const MutexLock lock(mutex_);
  files_.clear();
  active_ = nullptr;
  buffer_ = nullptr;
  publish_files();
  live_rows_.store(0, std::memory_order_relaxed);
  file_bytes_.store(0, std::memory_order_relaxed);
}

// -- the medium -------------------------------------------------------------------------------------------

void Log::make_sound(LogFile& file) {
  if (file.file().in_doubt()) write_anew(file);
}

void Log::bring_to_medium(LogFile& file) {
  if (!file.file().in_doubt()) {
    try {
      file.file().sync();
      return;
    } catch (const files::FileError&) {
      if (!file.file().in_doubt()) throw;
    }
  }
  write_anew(file);
}

// The file's bytes go into a new file, which takes its name once the medium has it. Rows keep their places.
void Log::write_anew(LogFile& file) {
  const std::string path = file.file().path();
  auto fresh = std::make_unique<files::File>(*shape_.calls, path + ".new",
                                             shape_.open_flags() | O_CREAT | O_TRUNC, shape_.file_use());
  try {
    count_lost_records(file);
    write_file_header(*fresh, file, shape_);
    copy_bytes(file, *fresh);
    fresh->sync();
    fresh->rename_to(path);
  } catch (...) {
    shape_.calls->unlink(fresh->path().c_str());
    throw;
  }
  has_new_names_ = true;
  bytes_written_.fetch_add(file.written_bytes, std::memory_order_relaxed);
  rewritten_files_.fetch_add(1, std::memory_order_relaxed);
  file.replace_file(std::move(fresh));
}

// Rows that are still in the buffer come from there, the others from what the system has of the file. What
// can't be read is left out: whoever reads the row is told.
void Log::copy_bytes(const LogFile& from, files::File& to) {
  const AlignedBytes chunk(kCopyBytes);
  for (uint64_t begin = kHeaderBytes; begin < from.written_bytes; begin += kCopyBytes) {
    const size_t bytes = std::min<uint64_t>(kCopyBytes, from.written_bytes - begin);
    std::memset(chunk.data(), 0, bytes);
    try {
      from.file().read_at(chunk.data(), bytes, begin);
    } catch (const files::FileError&) {
      for (size_t block = 0; block < bytes; block += kBlockBytes) {
        try {
          from.file().read_at(chunk.data() + block, kBlockBytes, begin + block);
        } catch (const files::FileError&) {
          std::memset(chunk.data() + block, 0, kBlockBytes);
        }
      }
    }
    if (active_.get() == &from && buffer_ != nullptr && buffer_written_ > 0) {
      const uint64_t known_end = shape_.offset_of(buffer_->first_record + buffer_written_);
      const uint64_t first = std::max(begin, buffer_->base_offset);
      const uint64_t last = std::min(begin + bytes, known_end);
      if (first < last) std::memcpy(chunk.data() + (first - begin), buffer_->at_offset(first), last - first);
    }
    to.write_at(chunk.data(), bytes, begin);
  }
}

void Log::count_lost_records(const LogFile& file) {
  RecordScan scan(file, shape_, kCopyBytes);
  const bool is_active = active_.get() == &file && buffer_ != nullptr;
  const uint32_t written = is_active ? buffer_->first_record : file.records.load();
  uint64_t lost = 0;
  scan.visit(0, written, [&](const ScannedRecord& record) {
    const bool whole = record.available == shape_.record.bytes && is_whole(record.bytes, shape_.record);
    if (whole) return;
    if (file.is_needed(record.number)) {
      throw Error(ErrorKind::kStorage, shape_.name_of(file, record.number) +
                                           " is damaged, and a checkpoint needs it: the file stays as it is");
    }
    lost += file.is_live(record.number) ? 1 : 0;
  });
  lost_records_.fetch_add(lost, std::memory_order_relaxed);
}

}  // namespace embstore::ssd_hash
