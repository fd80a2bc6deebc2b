#include "tiers/log/row_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "access/phase.h"
#include "errors/error.h"
#include "memory/page_vector.h"
#include "platform/prefetch.h"
#include "tiers/medium/aligned_bytes.h"
#include "tiers/medium/io_uring_pool.h"

namespace embstore::log {
namespace {

// Rows this close to each other are read in one request: copying the bytes between them costs less than a
// call.
constexpr uint64_t kMaxGapBytes = 2048;
constexpr uint64_t kMaxSpanBytes = 64 << 10;
constexpr size_t kMaxRequests = 128;
constexpr size_t kStagingBytes = 512 << 10;

// This many mapped rows are prefetched at once, while those before them are copied. Each lies on a page of
// its own, and only prefetches that are close to each other overlap their address translations.
constexpr size_t kRowsFetchedTogether = 8;
constexpr size_t kPrefetchBytes = 320;

bool is_auto(const LogShape& shape) { return shape.options.io_scheme == medium::IoScheme::kAuto; }

constexpr size_t kMaxIdleScratch = 8;
constexpr size_t kMaxIdleRows = size_t{1} << 16;  // of the largest batch that it served

}  // namespace

struct RowReader::Batch {
  const LogView& seen;
  RowBatch& rows;
  RowPart part;
  std::span<const Place> places = rows.places();

  const std::shared_ptr<LogFile>& file_of(Slot slot, const LogShape& shape) const {
    return (*seen.files)[shape.index_of(slot)];
  }
};

// The working memory of one batch; kept for the next.
struct RowReader::Scratch {
  struct Span {
    uint64_t offset;
    size_t first, last;  // in `to_read`
  };
  enum Way : uint8_t { kUnknown, kMapped, kRead };

  std::vector<Way> ways;                   // by file
  PageVector<const std::byte*> addresses;  // of mapped records, by position in the batch; null for others
  PageVector<uint64_t> to_read;            // slot << 32 | position in the batch
  std::vector<medium::ReadRequest> requests;
  std::vector<Span> spans;  // one for each request
  std::optional<medium::AlignedBytes> staging;
  std::unique_ptr<medium::BatchReader> pread_reader;
};

RowReader::RowReader(const LogShape& shape)
    : shape_(shape),
      scheme_(is_auto(shape) ? medium::resolve_auto_io_scheme().scheme : shape.options.io_scheme),
      scheme_reason_(is_auto(shape) ? medium::resolve_auto_io_scheme().reason : ""),
      idle_scratch_(kMaxIdleScratch) {
  if (shape.options.io_scheme == medium::IoScheme::kIoUring) medium::IoUringPool::of_process().borrow();
}

RowReader::~RowReader() = default;

void RowReader::read(const LogView& seen, RowBatch& rows, RowPart part) const {
  rows.start_reading(part == RowPart::kAll || shape_.record.row_bytes == shape_.record.weights_bytes);
  const Batch batch{seen, rows, part};
  std::unique_ptr<Scratch> scratch = idle_scratch_.take_or([] { return std::make_unique<Scratch>(); });
  if (sort_places(batch, *scratch)) copy_mapped(batch, *scratch);
  if (!scratch->to_read.empty()) read_files(batch, *scratch);
  if (scratch->addresses.capacity() <= kMaxIdleRows) idle_scratch_.give_back(std::move(scratch));
}

bool RowReader::sort_places(const Batch& batch, Scratch& scratch) const {
  const LogFiles& files = *batch.seen.files;
  const AppendBuffer* buffer = batch.seen.buffer.get();
  const uint64_t buffer_begin = buffer == nullptr ? 0 : shape_.slot_of(*buffer->file, buffer->first_record);
  const uint64_t buffer_end = buffer == nullptr ? 0 : buffer_begin + buffer->capacity;
  scratch.ways.assign(files.size(), Scratch::kUnknown);
  scratch.addresses.assign(batch.places.size(), nullptr);
  scratch.to_read.clear();
  uint64_t mapped = 0;
  for (size_t i = 0; i < batch.places.size(); ++i) {
    const Slot slot = batch.places[i].slot;
    if (slot >= buffer_begin && slot < buffer_end) {
      const auto record = static_cast<uint32_t>(slot - buffer_begin);
      if (record >= buffer->count.load(std::memory_order_acquire)) continue;  // erased
      const std::byte* at = buffer->at_offset(shape_.record.offset(buffer->first_record + record));
      batch.rows.header(i) = header_of(at).row();
      std::memcpy(batch.rows.row(i), at + sizeof(RecordHeader), shape_.record.row_bytes);
      continue;
    }
    const uint32_t index = shape_.index_of(slot);
    if (index >= files.size() || files[index] == nullptr) continue;  // erased
    const LogFile& file = *files[index];
    const uint32_t record = shape_.record_of(slot);
    if (record >= file.capacity) continue;  // erased
    const medium::Mapping* mapping = file.mapping();
    Scratch::Way& way = scratch.ways[index];
    if (way == Scratch::kUnknown) {
      const bool is_resident = mapping != nullptr && mapping->is_resident(file.mapped_bytes);
      way = is_resident ? Scratch::kMapped : Scratch::kRead;
    }
    const uint64_t offset = shape_.record.offset(record);
    if (way == Scratch::kMapped && mapping != nullptr && offset + shape_.record.stride <= file.mapped_bytes) {
      scratch.addresses[i] = mapping->data() + offset;
      ++mapped;
    } else {
      scratch.to_read.push_back(uint64_t{slot} << 32 | i);
    }
  }
  if (mapped > 0) mapped_rows_.fetch_add(mapped, std::memory_order_relaxed);
  return mapped > 0;
}

// -- mapped files -----------------------------------------------------------------------------------------

struct RowReader::MappedCopy {
  const RowReader& reader;
  const Batch& batch;
  Scratch& scratch;
  volatile size_t next = 0;  // the row that is being copied
};

bool RowReader::copy_if_whole(const Batch& batch, const std::byte* bytes, size_t row) const {
  const bool all = batch.part == RowPart::kAll;
  const Place& place = batch.places[row];
  const RecordHeader header = header_of(bytes);
  const std::byte* const floats = bytes + sizeof header;
  if (fault_of(header, shape_.record_of(place.slot), floats, all, shape_.record) != nullptr) return false;
  // A whole row of another key: the place was erased, and the index of its file was reused.
  if (header.key != place.key) return true;
  batch.rows.header(row) = header.row();
  std::memcpy(batch.rows.row(row), floats, all ? shape_.record.row_bytes : shape_.record.weights_bytes);
  return true;
}

// Copies the mapped rows. Clears the address of each row that was whole, and leaves the others.
void RowReader::copy_mapped_guarded(void* mapped_copy, medium::GuardedRange& range) {
  auto& copy = *static_cast<MappedCopy*>(mapped_copy);
  const RowReader& reader = copy.reader;
  PageVector<const std::byte*>& addresses = copy.scratch.addresses;
  const RecordShape& record = reader.shape_.record;
  const size_t wanted_bytes =
      sizeof(RecordHeader) + (copy.batch.part == RowPart::kAll ? record.row_bytes : record.weights_bytes);
  const size_t fetched_bytes = std::min(wanted_bytes, kPrefetchBytes);
  const auto fetch = [&](size_t begin) {
    for (size_t i = begin; i < std::min(begin + kRowsFetchedTogether, addresses.size()); ++i) {
      if (addresses[i] != nullptr) prefetch_bytes(addresses[i], fetched_bytes);
    }
  };
  const size_t first = copy.next;
  fetch(first);
  for (size_t i = first; i < addresses.size(); ++i) {
    if ((i - first) % kRowsFetchedTogether == 0) fetch(i + kRowsFetchedTogether);
    const std::byte* const at = addresses[i];
    if (at == nullptr) continue;
    copy.next = i;
    range.begin = at;
    range.end = at + wanted_bytes;
    if (reader.copy_if_whole(copy.batch, at, i)) addresses[i] = nullptr;
  }
}

void RowReader::copy_mapped(const Batch& batch, Scratch& scratch) const {
  PageVector<const std::byte*>& addresses = scratch.addresses;
  const auto read_instead = [&](size_t row) {
    const Slot slot = batch.places[row].slot;
    addresses[row] = nullptr;
    mapped_rows_.fetch_sub(1, std::memory_order_relaxed);
    if (batch.file_of(slot, shape_)->rows.is_live(shape_.record_of(slot))) {
      scratch.to_read.push_back(uint64_t{slot} << 32 | row);
    }
  };
  MappedCopy copy{*this, batch, scratch};
  while (!medium::guarded_copy(&copy_mapped_guarded, &copy)) {
    // The file's rows are read by calls from now on, whose errors say what is wrong with it.
    const std::shared_ptr<LogFile>& file = batch.file_of(batch.places[copy.next].slot, shape_);
    if (const medium::Mapping* mapping = file->mapping()) mapping->give_up();
    for (size_t row = copy.next; row < addresses.size(); ++row) {
      if (addresses[row] == nullptr) continue;
      if (batch.file_of(batch.places[row].slot, shape_) == file) read_instead(row);
    }
  }
  for (size_t row = 0; row < addresses.size(); ++row) {
    if (addresses[row] != nullptr) read_instead(row);
  }
}

// -- calls ------------------------------------------------------------------------------------------------

void RowReader::read_files(const Batch& batch, Scratch& scratch) const {
  std::sort(scratch.to_read.begin(), scratch.to_read.end());
  if (!scratch.staging) {
    scratch.staging.emplace(std::max<size_t>(
        kStagingBytes, medium::round_up_to_block(shape_.record.stride) + 2 * medium::kBlockBytes));
  }
  std::optional<medium::IoUringPool::Loan> ring;
  if (scheme_ == medium::IoScheme::kIoUring) {
    try {
      ring.emplace(medium::IoUringPool::of_process().borrow());
    } catch (const Error&) {
      if (!is_auto(shape_)) throw;
    }
  }
  if (scratch.pread_reader == nullptr) scratch.pread_reader = medium::make_pread_reader();
  medium::BatchReader& reader = ring ? **ring : *scratch.pread_reader;
  Phase phase(*shape_.meter);
  for (size_t next = 0; next < scratch.to_read.size();) {
    next = make_requests(batch, scratch, next);
    reader.read(scratch.requests);
    uint64_t bytes = 0;
    for (const medium::ReadRequest& request : scratch.requests) bytes += request.bytes;
    const size_t requests = scratch.requests.size();
    phase.count_in_rounds(Access::kFileRead, requests, bytes, reader.rounds_of(requests));
    for (size_t request = 0; request < scratch.requests.size(); ++request) take_rows(batch, scratch, request);
  }
}

size_t RowReader::make_requests(const Batch& batch, Scratch& scratch, size_t next) const {
  const PageVector<uint64_t>& to_read = scratch.to_read;
  const size_t record_bytes = shape_.record.stride;
  const auto slot_at = [&](size_t n) { return static_cast<Slot>(to_read[n] >> 32); };
  const auto offset_at = [&](size_t n) { return shape_.record.offset(shape_.record_of(slot_at(n))); };
  scratch.requests.clear();
  scratch.spans.clear();
  size_t staged = 0;
  while (next < to_read.size() && scratch.requests.size() < kMaxRequests) {
    const size_t first = next;
    const uint32_t index = shape_.index_of(slot_at(first));
    uint64_t begin = offset_at(first);
    uint64_t end = begin + record_bytes;
    for (++next; next < to_read.size() && shape_.index_of(slot_at(next)) == index; ++next) {
      const uint64_t offset = offset_at(next);
      if (offset > end + kMaxGapBytes || offset + record_bytes > begin + kMaxSpanBytes) break;
      end = offset + record_bytes;
    }
    if (shape_.options.direct) {
      begin = medium::round_down_to_block(begin);
      end = medium::round_up_to_block(end);
    }
    if (staged + (end - begin) > scratch.staging->size()) {
      next = first;
      break;
    }
    const LogFile& file = *batch.file_of(slot_at(first), shape_);
    scratch.requests.push_back({.file = &file.file(),
                                .offset = begin,
                                .data = scratch.staging->data() + staged,
                                .bytes = end - begin,
                                .bytes_read = 0,
                                .failure = {}});
    scratch.spans.push_back({.offset = begin, .first = first, .last = next});
    staged += end - begin;
  }
  read_requests_.fetch_add(scratch.requests.size(), std::memory_order_relaxed);
  return next;
}

void RowReader::take_rows(const Batch& batch, const Scratch& scratch, size_t request_number) const {
  const medium::ReadRequest& request = scratch.requests[request_number];
  const Scratch::Span& span = scratch.spans[request_number];
  if (!request.failure.empty() && span.last - span.first > 1) {
    // The error may be in one of the rows, or in the bytes between them.
    for (size_t n = span.first; n < span.last; ++n) take_row_alone(batch, scratch.to_read[n]);
    return;
  }
  for (size_t n = span.first; n < span.last; ++n) {
    const auto slot = static_cast<Slot>(scratch.to_read[n] >> 32);
    const uint32_t record = shape_.record_of(slot);
    const uint64_t position = shape_.record.offset(record) - span.offset;
    const bool is_there = position + shape_.record.stride <= request.bytes_read;
    take_row(batch, *batch.file_of(slot, shape_),
             {record, is_there ? request.data + position : nullptr, request.failure},
             scratch.to_read[n] & 0xffffffffU);
  }
}

void RowReader::take_row_alone(const Batch& batch, uint64_t slot_and_row) const {
  const auto slot = static_cast<Slot>(slot_and_row >> 32);
  const LogFile& file = *batch.file_of(slot, shape_);
  const uint32_t record = shape_.record_of(slot);
  read_requests_.fetch_add(1, std::memory_order_relaxed);
  RecordScan(file, shape_, shape_.record.stride)
      .visit(
          record, record + 1, [](uint32_t) { return true; },
          [&](const ScannedRecord& scanned) { take_row(batch, file, scanned, slot_and_row & 0xffffffffU); });
}

void RowReader::take_row(const Batch& batch, const LogFile& file, const ScannedRecord& record,
                         size_t row) const {
  if (record.bytes != nullptr && copy_if_whole(batch, record.bytes, row)) return;
  // A row that is live now was live during the read, too.
  if (!file.rows.is_live(record.number)) return;
  batch.rows.add_damaged(row, shape_.name_of(file, record.number) + " (key " +
                                  std::to_string(batch.places[row].key) + ") " +
                                  fault_of(record, batch.part == RowPart::kAll, shape_.record));
}

}  // namespace embstore::log
