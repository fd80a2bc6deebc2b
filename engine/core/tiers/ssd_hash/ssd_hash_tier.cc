#include "tiers/ssd_hash/ssd_hash_tier.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "errors/error.h"
#include "platform/prefetch.h"

namespace embstore {

using ssd_hash::AlignedBytes;
using ssd_hash::Buffer;
using ssd_hash::BufferMemory;
using ssd_hash::Files;
using ssd_hash::IoScheme;
using ssd_hash::kBlockBytes;
using ssd_hash::LogFile;
using ssd_hash::ReadRequest;
using ssd_hash::record_offset;
using ssd_hash::RecordHeader;
using ssd_hash::round_down_to_block;
using ssd_hash::round_up_to_block;
using ssd_hash::View;

namespace {

// The index has 30 bits for a slot.
constexpr uint64_t kMaxSlots = (uint64_t{1} << 30) - 2;

// A file's index comes into use again only after this many others: whoever still has a place of the file
// that is gone then finds no file, rather than another's rows.
constexpr size_t kIndexesAtRest = 1024;

// Below that, headers of files would take more than the bound leaves.
constexpr uint64_t kMinBufferBytes = 128 << 10;
constexpr uint64_t kMaxBufferBytes = 1 << 30;

// Rows this close to each other are read at once: copying the bytes between them costs less than a call.
constexpr uint64_t kMaxGapBytes = 2048;
constexpr uint64_t kMaxSpanBytes = 64 << 10;
constexpr size_t kMaxRequests = 128;
constexpr size_t kStagingBytes = 512 << 10;

// So many mapped rows are fetched from memory at once, while those before them are copied. Each lies on a
// page of its own, and only fetches that are close to each other wait for their addresses together.
constexpr size_t kRowsAhead = 8;
constexpr size_t kPrefetchBytes = 320;

size_t flush_bytes_for(const SsdHashOptions& options, size_t record_bytes) {
  return std::max<size_t>(round_up_to_block(options.buffer_bytes / 8), round_up_to_block(record_bytes));
}

}  // namespace

// What one batch of reads works with; kept for the next.
struct SsdHashTier::ReadContext {
  struct Span {
    std::shared_ptr<LogFile> const* file;
    uint64_t offset;
    size_t first, last;  // in `order`
  };

  ReadContext(std::unique_ptr<ssd_hash::BatchReader> batch_reader, size_t staging_bytes)
      : reader(std::move(batch_reader)), staging(staging_bytes) {}

  std::unique_ptr<ssd_hash::BatchReader> reader;
  AlignedBytes staging;
  enum Way : uint8_t { kUnknown, kMapped, kRead };
  std::vector<Way> ways;                    // by file
  std::vector<const std::byte*> addresses;  // of mapped records, by number in the batch; else null
  std::vector<uint64_t> order;              // of the rest: slot << 32 | number in the batch
  std::vector<ReadRequest> requests;
  std::vector<Span> spans;
};

SsdHashTier::SsdHashTier(std::string variable_name, const RowLayout& layout, std::string directory,
                         const SsdHashOptions& options)
    : variable_name_(std::move(variable_name)),
      layout_(layout),
      directory_(std::move(directory)),
      options_(options),
      calls_(options.file_calls != nullptr ? *options.file_calls : ssd_hash::system_file_calls()),
      record_shape_(layout),
      record_bytes_(record_shape_.bytes),
      flush_bytes_(flush_bytes_for(options, record_bytes_)),
      io_scheme_(options.io_scheme == IoScheme::kAuto ? ssd_hash::resolve_auto_io_scheme().scheme
                                                      : options.io_scheme),
      buffer_memory_(std::make_shared<BufferMemory>(round_up_to_block(flush_bytes_ + record_bytes_))),
      files_(std::make_shared<Files>()),
      view_(std::make_shared<View>(View{files_, nullptr})) {
  if (options.buffer_bytes < kMinBufferBytes || options.buffer_bytes > kMaxBufferBytes) {
    throw Error(ErrorKind::kInvalidArgument, "buffer_bytes is " + std::to_string(options.buffer_bytes) +
                                                 "; it must be from 128 KiB to 1 GiB");
  }
  if (options.file_bytes < 2 * kBlockBytes || options.file_bytes > uint64_t{1} << 40) {
    throw Error(ErrorKind::kInvalidArgument,
                "file_bytes is " + std::to_string(options.file_bytes) + "; it must be from 8192 to 2^40");
  }
  if (options.io_scheme == IoScheme::kAuto) {
    io_scheme_reason_ = ssd_hash::resolve_auto_io_scheme().reason;
  } else if (options.io_scheme == IoScheme::kIoUring) {
    ssd_hash::make_io_uring_reader();  // throws where there is none
  }
  records_per_file_ = std::max<uint64_t>(1, (options.file_bytes - ssd_hash::kHeaderBytes) / record_bytes_);
  open_directory();
  try {
    check_direct_io();
    find_old_files();
    open_note();
  } catch (...) {
    calls_.close(directory_descriptor_);
    throw;
  }
  records_per_file_ = std::min(records_per_file_, kMaxSlots);
  max_files_ = static_cast<uint32_t>(kMaxSlots / records_per_file_);
}

SsdHashTier::~SsdHashTier() {
  try {
    close();
  } catch (const Error&) {
    // Whoever wants to know calls close().
    calls_.close(directory_descriptor_);
  }
}

// -- the end of the log -----------------------------------------------------------------------------------

std::string SsdHashTier::path_of(uint64_t number) const {
  std::string digits = std::to_string(number);
  if (digits.size() < 10) digits.insert(0, 10 - digits.size(), '0');
  return directory_ + "/rows-" + digits + ".ssdhash";
}

int SsdHashTier::open_flags() const { return O_RDWR | (options_.direct ? O_DIRECT : 0); }

std::shared_ptr<const View> SsdHashTier::view() const {
  const std::lock_guard lock(view_mutex_);
  return view_;
}

void SsdHashTier::publish_view() {
  auto next = std::make_shared<const View>(View{files_, buffer_});
  const std::lock_guard lock(view_mutex_);
  view_.swap(next);  // the old one is let go of after the lock
}

void SsdHashTier::publish_files() {
  auto changed = std::make_shared<Files>(next_index_);
  for (const auto& file : log_) (*changed)[file->index] = file;
  files_ = std::move(changed);
  publish_view();
}

uint32_t SsdHashTier::take_file_index() {
  if (next_index_ < max_files_ && free_indexes_.size() < kIndexesAtRest) return next_index_++;
  if (free_indexes_.empty()) {
    throw Error(ErrorKind::kStoreFull,
                directory_ + ": holds " + std::to_string(max_files_) + " files of up to " +
                    std::to_string(records_per_file_) +
                    " records, all that can be addressed; split the variable into more partitions");
  }
  const uint32_t index = free_indexes_.front();
  free_indexes_.pop_front();
  reused_places_.fetch_add(1, std::memory_order_release);
  return index;
}

void SsdHashTier::write_header(LogFile& file) {
  ssd_hash::FileHeader header{};
  std::memcpy(header.magic, ssd_hash::kMagic, sizeof header.magic);
  header.format_version = ssd_hash::kFormatVersion;
  header.header_bytes = ssd_hash::kHeaderBytes;
  header.file_number = file.number;
  header.variable_hash = ssd_hash::hash_of_name(variable_name_);
  header.dim = static_cast<uint32_t>(layout_.dim());
  header.slot_count = static_cast<uint32_t>(layout_.slot_count());
  header.row_bytes = static_cast<uint32_t>(layout_.row_bytes());
  header.record_bytes = static_cast<uint32_t>(record_bytes_);
  header.record_capacity = file.capacity;
  header.flags = options_.keep_files ? ssd_hash::kKept : 0;
  header.sealed = file.sealed ? 1 : 0;
  header.sealed_records = file.sealed ? file.records : 0;
  header.checksum = ssd_hash::checksum_of_header(header);
  const AlignedBytes block(ssd_hash::kHeaderBytes);
  std::memset(block.data(), 0, block.size());
  std::memcpy(block.data(), &header, sizeof header);
  file.file.write_at(block.data(), block.size(), 0);
}

void SsdHashTier::add_file_bytes(uint64_t bytes) {
  const uint64_t now = file_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (now > file_bytes_peak_.load(std::memory_order_relaxed)) {
    file_bytes_peak_.store(now, std::memory_order_relaxed);  // only ever under log_mutex_
  }
  bytes_written_.fetch_add(bytes, std::memory_order_relaxed);
}

void SsdHashTier::open_file() {
  // An eighth of the live rows, so that compaction never has much in its hands.
  const uint64_t wanted_bytes = std::max<uint64_t>(live_bytes() / 8, flush_bytes_);
  const auto capacity =
      static_cast<uint32_t>(std::clamp<uint64_t>(wanted_bytes / record_bytes_, 1, records_per_file_));
  const uint32_t index = take_file_index();
  std::shared_ptr<LogFile> file;
  try {
    // Under its own name only once its header is there, so that no kill leaves a file without one.
    file = std::make_shared<LogFile>(calls_, path_of(next_number_) + ".new", open_flags() | O_CREAT | O_TRUNC,
                                     next_number_, index, capacity);
    try {
      write_header(*file);
      file->file.rename_to(path_of(next_number_));
    } catch (...) {
      calls_.unlink(file->file.path().c_str());
      throw;
    }
  } catch (...) {
    free_indexes_.push_front(index);
    throw;
  }
  posix_fadvise(file->file.descriptor(), 0, 0, POSIX_FADV_RANDOM);
  if (maps_files()) file->map(round_up_to_block(record_offset(capacity, record_bytes_)));
  file->written_bytes = ssd_hash::kHeaderBytes;
  add_file_bytes(ssd_hash::kHeaderBytes);
  ++next_number_;
  log_.push_back(file);
  active_ = std::move(file);
  open_buffer();
  publish_files();
}

void SsdHashTier::open_buffer() {
  auto next = std::make_shared<Buffer>(buffer_memory_, active_);
  const uint64_t offset = record_offset(active_->records, record_bytes_);
  next->first_record = active_->records;
  next->base_offset = round_down_to_block(offset);
  const uint64_t fitting = (next->base_offset + flush_bytes_ - offset + record_bytes_ - 1) / record_bytes_;
  next->capacity = static_cast<uint32_t>(std::min<uint64_t>(fitting, active_->capacity - active_->records));
  // The block that the records before end in goes out once more, with the records after.
  const size_t shared_bytes = offset - next->base_offset;
  if (buffer_ != nullptr) {
    std::memcpy(next->bytes.data(), buffer_->bytes.data() + (next->base_offset - buffer_->base_offset),
                shared_bytes);
  }
  buffer_ = std::move(next);
  publish_view();
}

void SsdHashTier::flush_buffer(std::unique_lock<std::mutex>& lock) {
  relocated_.wait(lock, [this] { return buffer_ == nullptr || buffer_->relocating == 0; });
  if (buffer_ == nullptr) return;
  const uint32_t count = buffer_->count.load(std::memory_order_relaxed);
  if (count == buffer_->written) return;
  const auto position = [&](uint32_t record) {
    return record_offset(buffer_->first_record + record, record_bytes_) - buffer_->base_offset;
  };
  const uint64_t from = round_down_to_block(position(buffer_->written));
  const uint64_t to = round_up_to_block(position(count));
  std::memset(buffer_->bytes.data() + position(count), 0, to - position(count));
  active_->file.write_at(buffer_->bytes.data() + from, to - from, buffer_->base_offset + from);
  buffer_->written = count;
  // Records get their numbers in the order in which they are written out.
  if (note_ != nullptr) note_->write_out(next_sequence_ - 1);
  const uint64_t end = buffer_->base_offset + to;
  bytes_written_.fetch_add(to - from - (end - active_->written_bytes), std::memory_order_relaxed);
  add_file_bytes(end - active_->written_bytes);
  active_->written_bytes = end;
  // Up to the last block that is full: the others change as more is written.
  active_->mapped_bytes.store(
      round_down_to_block(record_offset(buffer_->first_record + count, record_bytes_)),
      std::memory_order_release);
}

void SsdHashTier::seal_active_file(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<LogFile> file = active_;
  flush_buffer(lock);
  if (active_ != file) return;  // another thread was faster
  file->sealed = true;
  try {
    write_header(*file);
    if (options_.sync) file->file.sync();
  } catch (...) {
    file->sealed = false;
    throw;
  }
  file->mapped_bytes.store(file->written_bytes, std::memory_order_release);
  active_ = nullptr;
  buffer_ = nullptr;
  publish_view();
}

Buffer& SsdHashTier::writable_buffer(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    if (active_ == nullptr) {
      open_file();
    } else if (buffer_ == nullptr) {
      open_buffer();
    } else if (!buffer_->full()) {
      return *buffer_;
    } else if (active_->records == active_->capacity) {
      seal_active_file(lock);
    } else {
      const std::shared_ptr<Buffer> full = buffer_;
      flush_buffer(lock);
      if (buffer_ == full) open_buffer();
    }
  }
}

void SsdHashTier::check_usable() const {
  if (closed_.load(std::memory_order_acquire)) {
    throw Error(ErrorKind::kClosed, directory_ + ": the tier is closed");
  }
  if (!is_ready()) {
    throw Error(ErrorKind::kStorage,
                directory_ + ": holds rows of an earlier run; recover them, or remove the directory");
  }
}

template <class Fill>
size_t SsdHashTier::append_some(size_t count, const Fill& fill) {
  std::unique_lock lock(log_mutex_);
  check_usable();
  if (buffer_ != nullptr && buffer_->full()) {
    lock.unlock();
    make_room();
    lock.lock();
  }
  Buffer& buffer = writable_buffer(lock);
  const uint32_t before = buffer.count.load(std::memory_order_relaxed);
  const auto appended = static_cast<uint32_t>(std::min<size_t>(count, buffer.capacity - before));
  std::byte* at = buffer.bytes.data() + (record_offset(active_->records, record_bytes_) - buffer.base_offset);
  for (uint32_t i = 0; i < appended; ++i, at += record_bytes_) {
    fill(*active_, active_->records + i, at, i);
    ssd_hash::seal_record(at, record_shape_);
  }
  active_->records += appended;
  buffer.count.store(before + appended, std::memory_order_release);
  if (note_ != nullptr) note_->hand_out(next_sequence_ - 1);
  return appended;
}

void SsdHashTier::write(const RowBatch& rows, std::span<Slot> slots) {
  if (rows.row_floats() != layout_.row_floats() || slots.size() != rows.size()) {
    throw Error(ErrorKind::kInvalidArgument, "rows of " + std::to_string(rows.row_floats()) + " floats and " +
                                                 std::to_string(slots.size()) + " slots for " +
                                                 std::to_string(rows.size()) +
                                                 " rows were given to a tier with rows of " +
                                                 std::to_string(layout_.row_floats()) + " floats");
  }
  size_t done = 0;
  try {
    while (done < rows.size()) {
      const size_t first = done;
      done += append_some(rows.size() - done, [&](LogFile& file, uint32_t record, std::byte* at, size_t i) {
        const RecordHeader header = RecordHeader::of(next_sequence_++, rows.header(first + i));
        std::memcpy(at, &header, sizeof header);
        std::memcpy(at + sizeof header, rows.row(first + i), layout_.row_bytes());
        file.set_live(record);
        slots[first + i] = slot_of(file, record);
      });
      live_rows_.fetch_add(done - first, std::memory_order_relaxed);
    }
  } catch (...) {
    const std::shared_ptr<const View> seen = view();
    for (size_t i = 0; i < done; ++i) {
      if (drop(*seen, slots[i])) live_rows_.fetch_sub(1, std::memory_order_relaxed);
    }
    throw;
  }
}

void SsdHashTier::bury(std::span<const int64_t> keys) {
  const size_t keys_a_record = ssd_hash::tombstones_per_record(layout_);
  for (size_t done = 0; done < keys.size();) {
    const size_t records = (keys.size() - done + keys_a_record - 1) / keys_a_record;
    append_some(records, [&](LogFile&, uint32_t, std::byte* at, size_t) {
      const auto some = keys.subspan(done, std::min(keys_a_record, keys.size() - done));
      RecordHeader header{};
      header.kind = ssd_hash::kTombstones;
      header.count = static_cast<uint16_t>(some.size());
      header.sequence = next_sequence_++;
      std::memset(at, 0, record_bytes_);
      std::memcpy(at, &header, sizeof header);
      std::memcpy(at + sizeof header, some.data(), some.size_bytes());
      done += some.size();
    });
  }
}

bool SsdHashTier::drop(const View& seen, Slot slot) {
  const uint64_t index = slot / records_per_file_;
  if (index >= seen.files->size()) return false;
  const std::shared_ptr<LogFile>& file = (*seen.files)[index];
  const auto record = static_cast<uint32_t>(slot % records_per_file_);
  return file != nullptr && record < file->capacity && file->clear_live(record);
}

void SsdHashTier::erase(std::span<const Place> places) {
  const std::shared_ptr<const View> seen = view();
  uint64_t dropped = 0;
  for (const Place& place : places) dropped += drop(*seen, place.slot);
  live_rows_.fetch_sub(dropped, std::memory_order_relaxed);
}

void SsdHashTier::flush() {
  std::unique_lock lock(log_mutex_);
  check_usable();
  flush_buffer(lock);
}

// -- reading ----------------------------------------------------------------------------------------------

std::unique_ptr<SsdHashTier::ReadContext> SsdHashTier::take_context() const {
  {
    const std::lock_guard lock(contexts_mutex_);
    if (!contexts_.empty()) {
      std::unique_ptr<ReadContext> context = std::move(contexts_.back());
      contexts_.pop_back();
      return context;
    }
  }
  return std::make_unique<ReadContext>(
      io_scheme_ == IoScheme::kIoUring ? ssd_hash::make_io_uring_reader() : ssd_hash::make_pread_reader(),
      std::max<size_t>(kStagingBytes, round_up_to_block(record_bytes_) + 2 * kBlockBytes));
}

void SsdHashTier::give_back(std::unique_ptr<ReadContext> context) const {
  const std::lock_guard lock(contexts_mutex_);
  contexts_.push_back(std::move(context));
}

// False where the place was erased. A damaged record of a live row is an error.
bool SsdHashTier::decode(const LogFile& file, uint32_t record, const std::byte* bytes, size_t available,
                         const Place& place, RowPart part, RowBatch& rows, size_t row) const {
  const bool all = part == RowPart::kAll;
  if (available >= record_bytes_ && (all ? ssd_hash::is_whole(bytes, record_shape_)
                                         : ssd_hash::is_whole_to_weights(bytes, record_shape_))) {
    const RecordHeader header = ssd_hash::header_of(bytes);
    // Another key's row, whole: the place was erased and its file's index used again.
    if (header.kind != ssd_hash::kRow || header.key != place.key) return false;
    rows.header(row) = header.row();
    std::memcpy(rows.row(row), bytes + sizeof header,
                (all ? record_bytes_ : record_shape_.weights_end) - sizeof header);
    return true;
  }
  // Live now means live all along.
  if (!file.is_live(record)) return false;
  throw Error(
      ErrorKind::kStorage,
      file.file.path() + ": the record at " + std::to_string(record_offset(record, record_bytes_)) +
          " (key " + std::to_string(place.key) + ") is " +
          (available < record_bytes_ ? "cut off: the file was truncated" : "damaged: its checksum is wrong"));
}

void SsdHashTier::read_rows(std::span<const Place> places, RowPart part, RowBatch& rows,
                            std::vector<DamagedRow>&) const {
  if (closed_.load(std::memory_order_acquire)) {
    throw Error(ErrorKind::kClosed, directory_ + ": the tier is closed");
  }
  rows.resize(places.size());
  const std::shared_ptr<const View> seen = view();
  const Files& files = *seen->files;
  const Buffer* buffer = seen->buffer.get();
  const uint64_t buffer_begin = buffer == nullptr ? 0 : slot_of(*buffer->file, buffer->first_record);
  const uint64_t buffer_end = buffer == nullptr ? 0 : buffer_begin + buffer->capacity;

  std::unique_ptr<ReadContext> context = take_context();
  std::vector<uint64_t>& order = context->order;
  order.clear();
  context->ways.assign(files.size(), ReadContext::kUnknown);
  context->addresses.assign(places.size(), nullptr);
  uint64_t mapped = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const Slot slot = places[i].slot;
    if (slot >= buffer_begin && slot < buffer_end) {
      const auto record = static_cast<uint32_t>(slot - buffer_begin);
      if (record >= buffer->count.load(std::memory_order_acquire)) continue;  // erased
      const std::byte* at =
          buffer->bytes.data() +
          (record_offset(buffer->first_record + record, record_bytes_) - buffer->base_offset);
      const RecordHeader header = ssd_hash::header_of(at);
      rows.header(i) = header.row();
      std::memcpy(rows.row(i), at + sizeof header, layout_.row_bytes());
    } else if (const uint64_t index = slot / records_per_file_;
               index < files.size() && files[index] != nullptr) {
      const ssd_hash::Mapping* mapping = files[index]->mapping.load(std::memory_order_acquire);
      ReadContext::Way& way = context->ways[index];
      if (way == ReadContext::kUnknown) {
        const bool is_resident = mapping != nullptr && mapping->is_resident(files[index]->mapped_bytes);
        way = is_resident ? ReadContext::kMapped : ReadContext::kRead;
      }
      const uint64_t record = slot % records_per_file_;
      if (record >= files[index]->capacity) continue;  // erased
      const uint64_t offset = record_offset(record, record_bytes_);
      if (way == ReadContext::kMapped && offset + record_bytes_ <= files[index]->mapped_bytes) {
        context->addresses[i] = mapping->data() + offset;
        ++mapped;
      } else {
        order.push_back(uint64_t{slot} << 32 | i);
      }
    }
  }
  if (mapped > 0) {
    const auto& addresses = context->addresses;
    const size_t fetched_bytes =
        std::min(part == RowPart::kAll ? record_bytes_ : record_shape_.weights_end, kPrefetchBytes);
    const auto fetch = [&](size_t begin) {
      for (size_t i = begin; i < std::min(begin + kRowsAhead, places.size()); ++i) {
        if (addresses[i] == nullptr) continue;
        prefetch_bytes(addresses[i], fetched_bytes);
      }
    };
    fetch(0);
    for (size_t i = 0; i < places.size(); ++i) {
      if (i % kRowsAhead == 0) fetch(i + kRowsAhead);
      if (addresses[i] == nullptr) continue;
      decode(*files[places[i].slot / records_per_file_],
             static_cast<uint32_t>(places[i].slot % records_per_file_), addresses[i], record_bytes_,
             places[i], part, rows, i);
    }
    mapped_rows_.fetch_add(mapped, std::memory_order_relaxed);
  }
  std::sort(order.begin(), order.end());

  uint64_t requests_made = 0;
  uint64_t bytes_asked = 0;
  for (size_t next = 0; next < order.size();) {
    context->requests.clear();
    context->spans.clear();
    size_t staged = 0;
    while (next < order.size() && context->requests.size() < kMaxRequests) {
      const size_t first = next;
      const auto slot_at = [&](size_t n) { return order[n] >> 32; };
      const std::shared_ptr<LogFile>& file = files[slot_at(first) / records_per_file_];
      const auto offset_at = [&](size_t n) {
        return record_offset(slot_at(n) % records_per_file_, record_bytes_);
      };
      const uint64_t first_slot_after = (slot_at(first) / records_per_file_ + 1) * records_per_file_;
      uint64_t begin = offset_at(first);
      uint64_t end = begin + record_bytes_;
      for (++next; next < order.size() && slot_at(next) < first_slot_after; ++next) {
        const uint64_t offset = offset_at(next);
        if (offset > end + kMaxGapBytes || offset + record_bytes_ > begin + kMaxSpanBytes) break;
        end = offset + record_bytes_;
      }
      if (options_.direct) {
        begin = round_down_to_block(begin);
        end = round_up_to_block(end);
      }
      if (staged + (end - begin) > context->staging.size()) {
        next = first;
        break;
      }
      context->requests.push_back({.file = &file->file,
                                   .offset = begin,
                                   .data = context->staging.data() + staged,
                                   .bytes = end - begin,
                                   .bytes_read = 0});
      context->spans.push_back({.file = &file, .offset = begin, .first = first, .last = next});
      staged += end - begin;
    }
    context->reader->read(context->requests);
    requests_made += context->requests.size();
    bytes_asked += staged;
    for (size_t s = 0; s < context->spans.size(); ++s) {
      const ReadContext::Span& span = context->spans[s];
      const ReadRequest& request = context->requests[s];
      for (size_t n = span.first; n < span.last; ++n) {
        const auto record = static_cast<uint32_t>((order[n] >> 32) % records_per_file_);
        const uint64_t position = record_offset(record, record_bytes_) - span.offset;
        const size_t row = order[n] & 0xffffffffU;
        decode(**span.file, record, request.data + position,
               request.bytes_read > position ? request.bytes_read - position : 0, places[row], part, rows,
               row);
      }
    }
  }
  read_requests_.fetch_add(requests_made, std::memory_order_relaxed);
  bytes_read_.fetch_add(bytes_asked, std::memory_order_relaxed);
  give_back(std::move(context));
}

// -- the rest ---------------------------------------------------------------------------------------------

TierStats SsdHashTier::stats() const {
  TierStats stats{};
  stats.name = "SSDHASH";
  stats.rows = live_rows_.load(std::memory_order_relaxed);
  stats.row_bytes = layout_.row_bytes();
  stats.mapped_bytes = file_bytes_.load(std::memory_order_relaxed);
  stats.path = directory_;
  stats.io_scheme = io_scheme_ == IoScheme::kIoUring ? "io_uring" : "pread";
  return stats;
}

SsdHashStats SsdHashTier::detailed_stats() const {
  SsdHashStats stats{};
  stats.io_scheme = io_scheme_ == IoScheme::kIoUring ? "io_uring" : "pread";
  stats.io_scheme_reason = io_scheme_reason_;
  stats.direct = options_.direct;
  stats.live_rows = live_rows_.load(std::memory_order_relaxed);
  stats.record_bytes = record_bytes_;
  {
    const std::lock_guard lock(log_mutex_);
    stats.files = log_.size();
    if (buffer_ != nullptr) stats.unwritten_records = buffer_->count - buffer_->written;
  }
  stats.file_bytes = file_bytes_.load(std::memory_order_relaxed);
  stats.file_bytes_peak = file_bytes_peak_.load(std::memory_order_relaxed);
  stats.bytes_written = bytes_written_.load(std::memory_order_relaxed);
  stats.mapped_rows = mapped_rows_.load(std::memory_order_relaxed);
  stats.read_requests = read_requests_.load(std::memory_order_relaxed);
  stats.bytes_read = bytes_read_.load(std::memory_order_relaxed);
  stats.compacted_files = compacted_files_.load(std::memory_order_relaxed);
  stats.moved_rows = moved_rows_.load(std::memory_order_relaxed);
  stats.damaged_records = damaged_records_.load(std::memory_order_relaxed);
  {
    const std::lock_guard lock(compaction_mutex_);
    stats.compaction_error = compaction_error_;
  }
  return stats;
}

}  // namespace embstore
