#include "tiers/log/ssd_hash_tier.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "errors/error.h"
#include "tiers/log/file_names.h"
#include "tiers/log/record_scan.h"
#include "tiers/log/restore_rows.h"

namespace embstore {

using log::LogFile;
using log::LogShape;
using medium::IoScheme;
using medium::kBlockBytes;

namespace {

// With less, file headers would take more than the bound leaves.
constexpr uint64_t kMinBufferBytes = 128 << 10;
constexpr uint64_t kMaxBufferBytes = 1 << 30;
constexpr uint64_t kMinFileBytes = 2 * medium::kBlockBytes;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 40;

// Slots are numbered so that there may be at least this many files, whatever the length of one. The first
// files are short: it takes about fifty until they have their full length, and each has the slots of a full
// one.
constexpr uint32_t kMinFiles = 512;

LogShape checked_shape(log::TableIdentity table, std::string directory, const SsdHashOptions& options,
                       TierMeter& meter) {
  if (options.buffer_bytes < kMinBufferBytes || options.buffer_bytes > kMaxBufferBytes) {
    throw Error(ErrorKind::kInvalidArgument, "buffer_bytes is " + std::to_string(options.buffer_bytes) +
                                                 "; it must be from 128 KiB to 1 GiB");
  }
  if (options.file_bytes < kMinFileBytes || options.file_bytes > kMaxFileBytes) {
    throw Error(ErrorKind::kInvalidArgument,
                "file_bytes is " + std::to_string(options.file_bytes) + "; it must be from 8192 to 2^40");
  }
  if (!options.keeps_checkpoints) table.uuid = {};
  const log::RecordShape record(table.layout, /*stride_unit=*/8);
  // Throws now if a name doesn't fit, instead of when the first row leaves memory.
  log::make_header(log::kRowsMagic, table, 0, 0, static_cast<uint32_t>(record.stride));
  return {.options = options,
          .table = std::move(table),
          .directory = std::move(directory),
          .record = record,
          .flush_bytes = std::max<size_t>(medium::round_up_to_block(options.buffer_bytes / 8),
                                          medium::round_up_to_block(record.stride)),
          .records_per_file = static_cast<uint32_t>(std::clamp<uint64_t>(
              (options.file_bytes - log::kHeaderBytes) / record.stride, 1, RowRef::kMaxSlots / kMinFiles)),
          .meter = &meter};
}

constexpr size_t kScanBytes = 1 << 20;  // read at once by a restore

const char* name_of(IoScheme scheme) { return scheme == IoScheme::kIoUring ? "io_uring" : "pread"; }

// Opens a file with records that checkpoints need. It's never written again.
std::shared_ptr<LogFile> open_extent(const LogShape& shape, const ExtentRows& extent, size_t index) {
  const std::string path = shape.path_of(extent.extent);
  const log::FileHeader header = log::read_extent_header(*shape.options.file_calls, path, shape.table,
                                                         extent.extent, shape.record.stride);
  auto file = std::make_shared<LogFile>(shape.open(path), header.number, static_cast<uint32_t>(index),
                                        static_cast<uint32_t>(header.capacity),
                                        log::RecordReferences::Checkpoints::kSome);
  const uint64_t size = file->file().size_bytes();
  file->written_bytes = medium::round_up_to_block(size);
  file->sealed = true;
  if (shape.maps_files()) {
    file->map(size);
    file->mapped_bytes = size;
  }
  return file;
}

void hold(LogFile& file, const LogShape& shape, uint64_t checkpoint, const ExtentRows& extent) {
  const uint64_t records = log::end_of_rows(extent.rows);
  const uint64_t size = file.file().size_bytes();
  if (file.capacity != extent.capacity || size < shape.record.offset(records)) {
    log::refuse_needed(file.file().path(), "has room for " + std::to_string(file.capacity) + " records and " +
                                               std::to_string(size) + " bytes, not for " +
                                               std::to_string(extent.capacity) + " and " +
                                               std::to_string(shape.record.offset(records)));
  }
  file.records = std::max(file.records.load(), static_cast<uint32_t>(records));
  file.rows.load(checkpoint, extent.rows);
}

}  // namespace

SsdHashTier::SsdHashTier(log::TableIdentity table, std::string directory, const SsdHashOptions& options)
    : shape_(checked_shape(std::move(table), std::move(directory), options, meter())),
      reader_(shape_),
      directory_(shape_.directory, *shape_.options.file_calls),
      log_(shape_),
      compaction_(log_, shape_) {
  if (shape_.options.direct) directory_.check_direct_io(shape_.open_flags());
  found_ = directory_.find(shape_.table, shape_.options.keeps_checkpoints);
  if (shape_.options.keeps_checkpoints) return;
  directory_.remove(found_.paths);
  found_ = {};
  is_ready_ = true;
}

SsdHashTier::~SsdHashTier() {
  try {
    close();
  } catch (...) {
    // A caller that wants the error calls close().
  }
}

void SsdHashTier::check_open() const {
  if (closed_.load(std::memory_order_acquire)) {
    throw Error(ErrorKind::kClosed, shape_.directory + ": the tier is closed");
  }
}

void SsdHashTier::check_usable() const {
  check_open();
  if (!is_ready_.load(std::memory_order_acquire)) {
    throw Error(ErrorKind::kInvalidArgument, shape_.directory + ": adopt_kept() comes before anything else");
  }
}

void SsdHashTier::write(const RowBatch& rows, std::span<Slot> slots) {
  if (rows.row_floats() != shape_.table.layout.row_floats() || slots.size() != rows.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                "rows of " + std::to_string(rows.row_floats()) + " floats and " +
                    std::to_string(slots.size()) + " slots for " + std::to_string(rows.size()) +
                    " rows were given to a tier with rows of " +
                    std::to_string(shape_.table.layout.row_floats()) + " floats");
  }
  check_usable();
  size_t done = 0;
  try {
    while (done < rows.size()) {
      if (log_.buffer_is_full()) compaction_.make_room();
      done += log_.append(rows, done, slots);
    }
  } catch (...) {
    for (size_t i = 0; i < done; ++i) {
      const Place place{rows.header(i).key, slots[i]};
      log_.erase({&place, 1});
    }
    throw;
  }
}

void SsdHashTier::read_rows(RowBatch& rows, RowPart part) const {
  check_open();
  reader_.read(*log_.view(), rows, part);
}

void SsdHashTier::update_rank(Slot slot, RowHeader& header) const {
  if (const uint32_t served = log_.served().count_of(slot)) header.served = served;
}

bool SsdHashTier::try_set_rank(Slot slot, const RowHeader& header) {
  if (header.served > std::numeric_limits<uint32_t>::max()) return false;
  log_.served().set(slot, static_cast<uint32_t>(header.served));
  return true;
}

void SsdHashTier::start_compaction(Relocator& relocator) { compaction_.start(relocator); }

void SsdHashTier::compact() {
  if (is_ready_ && !closed_.load(std::memory_order_acquire)) compaction_.compact();
}

void SsdHashTier::drain() {
  check_usable();
  compaction_.drain();
}

void SsdHashTier::close() {
  if (closed_.load(std::memory_order_acquire)) return;
  compaction_.stop();
  log_.remove_unneeded_files();
  log_.forget_all();
  closed_.store(true, std::memory_order_release);
  directory_.close();
}

TierStats SsdHashTier::stats() const {
  TierStats stats{};
  stats.name = "SSDHASH";
  stats.rows = log_.live_rows();
  stats.row_bytes = shape_.table.layout.row_bytes();
  stats.mapped_bytes = log_.file_bytes();
  stats.path = shape_.directory;
  stats.io_scheme = name_of(reader_.scheme());
  return stats;
}

SsdHashStats SsdHashTier::detailed_stats() const {
  return {.io_scheme = name_of(reader_.scheme()),
          .io_scheme_reason = reader_.scheme_reason(),
          .direct = shape_.options.direct,
          .live_rows = log_.live_rows(),
          .record_bytes = shape_.record.stride,
          .files = log_.file_count(),
          .file_bytes = log_.file_bytes(),
          .file_bytes_peak = log_.file_bytes_peak(),
          .bytes_written = log_.bytes_written(),
          .mapped_rows = reader_.mapped_rows(),
          .read_requests = reader_.read_requests(),
          .compacted_files = compaction_.compacted_files(),
          .damaged_records = compaction_.damaged_records(),
          .compaction_error = compaction_.error(),
          .rewritten_files = log_.rewritten_files(),
          .lost_records = log_.lost_records(),
          .held_bytes = log_.held_bytes()};
}

// -- checkpoints: engine/FORMAT.md, section LOG, has the bytes, and why they survive a power cut -----------

void SsdHashTier::check_keeps_checkpoints() const {
  if (shape_.options.keeps_checkpoints) return;
  throw Error(ErrorKind::kInvalidArgument, shape_.directory + ": the tier keeps no checkpoints");
}

void SsdHashTier::adopt_kept(std::span<const TierRows> kept) {
  check_keeps_checkpoints();
  check_open();
  if (is_ready_) throw Error(ErrorKind::kInvalidArgument, shape_.directory + ": adopt_kept() comes once");
  std::map<uint64_t, std::shared_ptr<LogFile>> files;  // by number
  std::set<std::string> needed;
  uint32_t records_of_longest = 1;
  for (const TierRows& checkpoint : kept) {
    for (const ExtentRows& extent : checkpoint.extents) {
      std::shared_ptr<LogFile>& file = files[extent.extent];
      if (file == nullptr) file = open_extent(shape_, extent, files.size() - 1);
      hold(*file, shape_, checkpoint.checkpoint, extent);
      needed.insert(file->file().path());
      records_of_longest = std::max(records_of_longest, file->capacity);
    }
  }
  // New files are short enough to leave room for as many files as there are, and kMinFiles more.
  const auto records_per_file = std::max(
      records_of_longest, std::min(shape_.records_per_file,
                                   static_cast<uint32_t>(RowRef::kMaxSlots / (kMinFiles + files.size()))));
  if (files.size() > RowRef::kMaxSlots / records_per_file) {
    throw Error(ErrorKind::kStoreFull, shape_.directory + ": holds more records than can be addressed");
  }
  std::erase_if(found_.paths, [&](const std::string& path) { return needed.contains(path); });
  // Nothing was changed before this line.
  directory_.remove(found_.paths);
  shape_.records_per_file = records_per_file;
  std::deque<std::shared_ptr<LogFile>> oldest_first;
  for (auto& [number, file] : files) oldest_first.push_back(std::move(file));
  log_.adopt_kept(std::move(oldest_first), found_.last_number + 1, kept.empty() ? 0 : kept.back().checkpoint);
  found_ = {};
  is_ready_.store(true, std::memory_order_release);
}

void SsdHashTier::begin_checkpoint(uint64_t number) {
  check_keeps_checkpoints();
  check_usable();
  log_.begin_checkpoint(number);
}

std::vector<ExtentRows> SsdHashTier::make_durable(uint64_t number) {
  check_keeps_checkpoints();
  check_usable();
  const log::LogFiles files = log_.files_of(number);
  log_.make_durable(files);
  files::sync_directory(*shape_.options.file_calls, shape_.directory);
  if (!directory_is_on_medium_.load(std::memory_order_acquire)) {
    const std::filesystem::path directory = std::filesystem::canonical(shape_.directory);
    files::sync_directory(*shape_.options.file_calls, directory.parent_path().string());
    directory_is_on_medium_.store(true, std::memory_order_release);
  }
  std::vector<ExtentRows> extents;
  for (const auto& file : files)
    extents.push_back({file->number, file->capacity, file->rows.rows_of(number)});
  return extents;
}

void SsdHashTier::drop_checkpoint(uint64_t number) noexcept {
  if (!is_ready_.load(std::memory_order_acquire) || closed_.load(std::memory_order_acquire)) return;
  log_.drop_checkpoint(number);
  compaction_.remove_unneeded();
}

void SsdHashTier::restore(uint64_t number, int threads, const Restored& visit) {
  check_keeps_checkpoints();
  check_usable();
  // A compaction from before would confuse rows restored to their old places with those that it was about to
  // move.
  const log::Compaction::Turn turn(compaction_, /*wait=*/true);
  if (log_.live_rows() > 0) {
    throw Error(ErrorKind::kInvalidArgument,
                shape_.directory + ": rows are live; a checkpoint is restored when all were erased");
  }
  const log::LogFiles files = log_.files_of(number);
  std::vector<log::ExtentSlots> extents;
  for (const auto& file : files) {
    extents.push_back({.first = shape_.slot_of(*file, 0), .rows = file->rows.rows_of(number)});
  }
  const auto read = [&](size_t extent, std::span<const Slot> slots, std::vector<RowHeader>& headers) {
    const LogFile& file = *files[extent];
    const auto is_needed = [&](uint32_t record) { return log::contains(extents[extent].rows, record); };
    log::RecordScan scan(file, shape_, kScanBytes);
    scan.visit(shape_.record_of(slots.front()), shape_.record_of(slots.back()) + 1, is_needed,
               [&](const log::ScannedRecord& record) {
                 const std::string fault = fault_of(record, [&](const log::RecordHeader& header) {
                   return log::fault_of_header(header, record.number, number);
                 });
                 if (!fault.empty())
                   throw Error(ErrorKind::kStorage, shape_.name_of(file, record.number) + " " + fault);
                 headers.push_back(log::header_of(record.bytes).row());
               });
  };
  log::restore_rows(extents, kScanBytes / shape_.record.stride, threads, read, visit);
  log_.make_live(number);
}

}  // namespace embstore
