#include "tiers/ssd_hash/ssd_hash_tier.h"

#include <algorithm>
#include <utility>

#include "errors/error.h"

namespace embstore {

using ssd_hash::IoScheme;
using ssd_hash::kBlockBytes;
using ssd_hash::kMaxSlots;
using ssd_hash::LogShape;

namespace {

// Below that, headers of files would take more than the bound leaves.
constexpr uint64_t kMinBufferBytes = 128 << 10;
constexpr uint64_t kMaxBufferBytes = 1 << 30;
constexpr uint64_t kMinFileBytes = 2 * kBlockBytes;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 40;

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
  // Rather now than when the first row leaves memory: throws where a name doesn't fit.
  log::make_header(log::kRowsMagic, table, 0, 0, static_cast<uint32_t>(record.stride));
  const auto records_per_file = static_cast<uint32_t>(
      std::clamp<uint64_t>((options.file_bytes - log::kHeaderBytes) / record.stride, 1, kMaxSlots));
  return {.table = std::move(table),
          .directory = std::move(directory),
          .record = record,
          .flush_bytes = std::max<size_t>(ssd_hash::round_up_to_block(options.buffer_bytes / 8),
                                          ssd_hash::round_up_to_block(record.stride)),
          .records_per_file = records_per_file,
          .max_files = kMaxSlots / records_per_file,
          .keeps_checkpoints = options.keeps_checkpoints,
          .direct = options.direct,
          // O_DIRECT is there to spare the page cache, and who names a scheme means it.
          .maps_files = options.io_scheme == IoScheme::kAuto && !options.direct,
          .calls = options.file_calls != nullptr ? options.file_calls : &files::system_file_calls(),
          .meter = &meter};
}

}  // namespace

SsdHashTier::SsdHashTier(log::TableIdentity table, std::string directory, const SsdHashOptions& options)
    : shape_(checked_shape(std::move(table), std::move(directory), options, meter())),
      reader_(shape_, options.io_scheme),
      directory_(shape_.directory, *shape_.calls),
      log_(shape_),
      compaction_(log_, shape_, options.compaction) {
  if (shape_.direct) directory_.check_direct_io(shape_.open_flags());
  found_ = directory_.find(shape_.table, shape_.keeps_checkpoints);
  if (shape_.keeps_checkpoints) return;
  directory_.remove(found_.paths);
  found_ = {};
  is_ready_ = true;
}

SsdHashTier::~SsdHashTier() {
  try {
    close();
  } catch (...) {
    // Whoever wants to know calls close().
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
    throw Error(ErrorKind::kInvalidArgument, shape_.directory + ": take_up() comes before anything else");
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
  stats.io_scheme = reader_.scheme() == IoScheme::kIoUring ? "io_uring" : "pread";
  return stats;
}

SsdHashStats SsdHashTier::detailed_stats() const {
  return {.io_scheme = reader_.scheme() == IoScheme::kIoUring ? "io_uring" : "pread",
          .io_scheme_reason = reader_.scheme_reason(),
          .direct = shape_.direct,
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

}  // namespace embstore
