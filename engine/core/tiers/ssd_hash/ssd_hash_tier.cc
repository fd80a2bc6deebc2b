#include "tiers/ssd_hash/ssd_hash_tier.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "errors/error.h"
#include "tiers/ssd_hash/file_header.h"
#include "tiers/ssd_hash/recovery.h"

namespace embstore {

using ssd_hash::IoScheme;
using ssd_hash::kBlockBytes;
using ssd_hash::LogFile;
using ssd_hash::LogShape;
using ssd_hash::OldFile;
using ssd_hash::RecordHeader;
using ssd_hash::SequenceNote;

namespace {

// The index has 30 bits for a slot.
constexpr uint64_t kMaxSlots = (uint64_t{1} << 30) - 2;

// Below that, headers of files would take more than the bound leaves.
constexpr uint64_t kMinBufferBytes = 128 << 10;
constexpr uint64_t kMaxBufferBytes = 1 << 30;
constexpr uint64_t kMinFileBytes = 2 * kBlockBytes;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 40;

LogShape checked_shape(std::string variable_name, const RowLayout& layout, std::string directory,
                       const SsdHashOptions& options, TierMeter& meter) {
  if (options.buffer_bytes < kMinBufferBytes || options.buffer_bytes > kMaxBufferBytes) {
    throw Error(ErrorKind::kInvalidArgument, "buffer_bytes is " + std::to_string(options.buffer_bytes) +
                                                 "; it must be from 128 KiB to 1 GiB");
  }
  if (options.file_bytes < kMinFileBytes || options.file_bytes > kMaxFileBytes) {
    throw Error(ErrorKind::kInvalidArgument,
                "file_bytes is " + std::to_string(options.file_bytes) + "; it must be from 8192 to 2^40");
  }
  const ssd_hash::RecordShape record(layout);
  return {
      .variable_name = std::move(variable_name),
      .directory = std::move(directory),
      .layout = layout,
      .record = record,
      .flush_bytes = std::max<size_t>(ssd_hash::round_up_to_block(options.buffer_bytes / 8),
                                      ssd_hash::round_up_to_block(record.bytes)),
      .records_per_file = std::max<uint64_t>(1, (options.file_bytes - ssd_hash::kHeaderBytes) / record.bytes),
      .max_files = 0,
      .keeps = options.keeps,
      .syncs = options.sync && options.keeps != Keeps::kCheckpoints,
      .direct = options.direct,
      // O_DIRECT is there to spare the page cache, and who names a scheme means it.
      .maps_files = options.io_scheme == IoScheme::kAuto && !options.direct,
      .calls = options.file_calls != nullptr ? options.file_calls : &files::system_file_calls(),
      .meter = &meter};
}

}  // namespace

SsdHashTier::SsdHashTier(std::string variable_name, const RowLayout& layout, std::string directory,
                         const SsdHashOptions& options)
    : shape_(checked_shape(std::move(variable_name), layout, std::move(directory), options, meter())),
      reader_(shape_, options.io_scheme),
      directory_(shape_.directory, *shape_.calls) {
  if (shape_.direct) directory_.check_direct_io(shape_.path_of(0) + ".new", shape_.open_flags());
  find_files();
  shape_.records_per_file = std::min(shape_.records_per_file, kMaxSlots);
  shape_.max_files = static_cast<uint32_t>(kMaxSlots / shape_.records_per_file);
  open_note(options.optimizer);
  log_ = std::make_unique<ssd_hash::Log>(shape_, note_.get());
  compaction_ = std::make_unique<ssd_hash::Compaction>(*log_, shape_, options.compaction);
  if (shape_.keeps == Keeps::kCheckpoints) {
    checkpoints_ = std::make_unique<ssd_hash::Checkpoints>(*log_, shape_, options.optimizer);
  }
}

SsdHashTier::~SsdHashTier() {
  try {
    close();
  } catch (...) {
    // Whoever wants to know calls close().
  }
}

void SsdHashTier::find_files() {
  if (shape_.keeps == Keeps::kCheckpoints) {
    found_ = directory_.find_checkpoints(shape_.variable_name);
    ready_ = false;
    shape_.records_per_file = std::max<uint64_t>(shape_.records_per_file, found_.most_records);
    return;
  }
  unrecovered_ =
      directory_.take_over([&](const OldFile& old) { check_file_header(old.path, old.header, shape_); });
  ready_ = unrecovered_.empty();
  for (const OldFile& old : unrecovered_) {
    shape_.records_per_file = std::max<uint64_t>(shape_.records_per_file, old.header.record_capacity);
  }
}

void SsdHashTier::open_note(const std::string& optimizer) {
  if (shape_.keeps == Keeps::kCheckpoints) return;
  const bool was_there = SequenceNote::exists(shape_.directory);
  if (shape_.keeps != Keeps::kFiles && is_ready()) {
    if (was_there) SequenceNote::remove(*shape_.calls, shape_.directory);
  } else if (shape_.keeps == Keeps::kFiles || was_there) {
    note_ = std::make_unique<SequenceNote>(*shape_.calls, shape_.directory, shape_.variable_name, optimizer);
    if (!was_there) {  // what is kept there is kept only with the directory's own name
      files::sync_directory(*shape_.calls,
                            std::filesystem::absolute(shape_.directory).parent_path().string());
    }
  }
}

void SsdHashTier::check_open() const {
  if (closed_.load(std::memory_order_acquire)) {
    throw Error(ErrorKind::kClosed, shape_.directory + ": the tier is closed");
  }
}

void SsdHashTier::check_usable() const {
  check_open();
  if (!is_ready() && checkpoints_ != nullptr) {
    throw Error(ErrorKind::kInvalidArgument, shape_.directory + ": take_up() comes before anything else");
  }
  if (!is_ready()) {
    throw Error(ErrorKind::kStorage,
                shape_.directory + ": holds rows of an earlier run; recover them, or remove the directory");
  }
}

void SsdHashTier::write(const RowBatch& rows, std::span<Slot> slots) {
  if (rows.row_floats() != shape_.layout.row_floats() || slots.size() != rows.size()) {
    throw Error(ErrorKind::kInvalidArgument, "rows of " + std::to_string(rows.row_floats()) + " floats and " +
                                                 std::to_string(slots.size()) + " slots for " +
                                                 std::to_string(rows.size()) +
                                                 " rows were given to a tier with rows of " +
                                                 std::to_string(shape_.layout.row_floats()) + " floats");
  }
  check_usable();
  size_t done = 0;
  try {
    while (done < rows.size()) {
      if (log_->buffer_is_full()) compaction_->make_room();
      const size_t first = done;
      const auto fill = [&](LogFile& file, uint32_t record, std::byte* at, size_t i, uint64_t sequence) {
        const RecordHeader header = RecordHeader::of(sequence, rows.header(first + i));
        std::memcpy(at, &header, sizeof header);
        std::memcpy(at + sizeof header, rows.row(first + i), shape_.layout.row_bytes());
        file.set_live(record);
        slots[first + i] = shape_.slot_of(file, record);
      };
      done += log_->append(rows.size() - first, fill);
      log_->add_live_rows(done - first);
    }
  } catch (...) {
    const auto seen = log_->view();
    uint64_t dropped = 0;
    for (size_t i = 0; i < done; ++i) dropped += log_->drop(*seen, slots[i]) ? 1 : 0;
    log_->subtract_live_rows(dropped);
    throw;
  }
}

void SsdHashTier::bury(std::span<const int64_t> keys) {
  check_usable();
  if (checkpoints_ != nullptr) return;  // what they don't have isn't taken over
  const size_t keys_a_record = ssd_hash::tombstones_per_record(shape_.layout);
  const auto fill = [&](LogFile&, uint32_t, std::byte* at, size_t, uint64_t sequence) {
    const auto some = keys.first(std::min(keys_a_record, keys.size()));
    RecordHeader header{};
    header.kind = ssd_hash::kTombstones;
    header.count = static_cast<uint16_t>(some.size());
    header.sequence = sequence;
    std::memset(at, 0, shape_.record.bytes);
    std::memcpy(at, &header, sizeof header);
    std::memcpy(at + sizeof header, some.data(), some.size_bytes());
    keys = keys.subspan(some.size());
  };
  while (!keys.empty()) {
    if (log_->buffer_is_full()) compaction_->make_room();
    log_->append((keys.size() + keys_a_record - 1) / keys_a_record, fill);
  }
}

void SsdHashTier::read_rows(std::span<const Place> places, RowPart part, RowBatch& rows,
                            std::vector<DamagedRow>& damaged) const {
  check_open();
  reader_.read(*log_->view(), places, part, rows, damaged);
}

void SsdHashTier::erase(std::span<const Place> places) {
  const auto seen = log_->view();
  uint64_t dropped = 0;
  for (const Place& place : places) dropped += log_->drop(*seen, place.slot) ? 1 : 0;
  log_->subtract_live_rows(dropped);
}

RecoveryReport SsdHashTier::recover(const Found& found) {
  check_open();
  if (checkpoints_ != nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                shape_.directory + ": rows of checkpoints come back by restore()");
  }
  if (log_->file_count() > 0) {
    throw Error(ErrorKind::kInvalidArgument, shape_.directory + ": recover() comes before any write");
  }
  ssd_hash::RecoveredLog recovered = read_back(unrecovered_, shape_);
  tell_rows(recovered, shape_, found);
  finish_files(recovered, shape_);
  RecoveryReport report = std::move(recovered.report);
  report.earlier_run = !is_ready() || (note_ != nullptr && note_->was_there());
  uint64_t last_sequence = recovered.last_sequence;
  if (note_ != nullptr) {
    if (note_->was_there()) {
      const uint64_t handed_out = std::max(note_->handed_out(), last_sequence);
      report.unwritten = handed_out - std::max(note_->written_out(), last_sequence);
      last_sequence = handed_out;
    }
    note_->hand_out(last_sequence);
    note_->write_out(last_sequence);
  }
  const uint64_t next_number = recovered.files.empty() ? 1 : recovered.files.back()->number + 1;
  log_->adopt(std::move(recovered.files), report.rows, {.file = next_number, .sequence = last_sequence + 1});
  unrecovered_.clear();
  ready_.store(true, std::memory_order_release);
  return report;
}

void SsdHashTier::check_keeps_checkpoints() const {
  if (checkpoints_ != nullptr) return;
  throw Error(ErrorKind::kInvalidArgument,
              shape_.directory + ": keeps no checkpoints; open it with Keeps::kCheckpoints");
}

void SsdHashTier::take_up(std::span<const CheckpointName> kept) {
  check_keeps_checkpoints();
  check_open();
  if (is_ready()) throw Error(ErrorKind::kInvalidArgument, shape_.directory + ": take_up() comes once");
  checkpoints_->take_up(kept, directory_, found_);
  found_ = {};
  ready_.store(true, std::memory_order_release);
}

void SsdHashTier::begin_checkpoint(uint64_t number) {
  check_keeps_checkpoints();
  check_usable();
  checkpoints_->begin(number);
}

void SsdHashTier::commit_checkpoint(const CheckpointName& checkpoint) {
  check_keeps_checkpoints();
  check_usable();
  checkpoints_->commit(checkpoint);
}

void SsdHashTier::drop_checkpoint(uint64_t number) noexcept {
  if (checkpoints_ == nullptr || !is_ready() || closed_.load(std::memory_order_acquire)) return;
  checkpoints_->drop(number);
  compaction_->remove_unneeded();
}

uint64_t SsdHashTier::checkpoint_rows(uint64_t number) const {
  return checkpoints_ == nullptr ? 0 : checkpoints_->rows(number);
}

void SsdHashTier::restore(const CheckpointName& checkpoint, int threads, const Restored& visit) {
  check_keeps_checkpoints();
  check_usable();
  // A compaction that goes on from before would take rows that come back in their old places for those that it was
  // about to move.
  const ssd_hash::Compaction::Turn turn(*compaction_, /*wait=*/true);
  checkpoints_->restore(checkpoint, threads, visit);
}

void SsdHashTier::start_compaction(Relocator& relocator) { compaction_->start(relocator); }

void SsdHashTier::compact() {
  if (is_ready() && !closed_.load(std::memory_order_acquire)) compaction_->compact();
}

void SsdHashTier::drain() {
  check_usable();
  compaction_->drain();
}

void SsdHashTier::flush() {
  check_usable();
  log_->flush();
}

void SsdHashTier::close() {
  if (closed_.load(std::memory_order_acquire)) return;
  compaction_->stop();
  const bool stays =
      !is_ready() || shape_.keeps == Keeps::kFiles || (checkpoints_ != nullptr && checkpoints_->any_kept());
  if (!stays) {
    if (checkpoints_ != nullptr) checkpoints_->drop_pending();
    log_->remove_all();
    if (note_ != nullptr) SequenceNote::remove(*shape_.calls, shape_.directory);
  } else if (checkpoints_ == nullptr) {
    log_->keep_all();
    if (note_ != nullptr) note_->sync();
  }
  log_->forget_all();
  closed_.store(true, std::memory_order_release);
  directory_.close(shape_.keeps == Keeps::kCheckpoints ? stays : shape_.keeps == Keeps::kFiles);
}

TierStats SsdHashTier::stats() const {
  TierStats stats{};
  stats.name = "SSDHASH";
  stats.rows = log_->live_rows();
  stats.row_bytes = shape_.layout.row_bytes();
  stats.mapped_bytes = log_->file_bytes();
  stats.path = shape_.directory;
  stats.io_scheme = reader_.scheme() == IoScheme::kIoUring ? "io_uring" : "pread";
  return stats;
}

SsdHashStats SsdHashTier::detailed_stats() const {
  return {.io_scheme = reader_.scheme() == IoScheme::kIoUring ? "io_uring" : "pread",
          .io_scheme_reason = reader_.scheme_reason(),
          .direct = shape_.direct,
          .live_rows = log_->live_rows(),
          .unwritten_records = log_->unwritten_records(),
          .record_bytes = shape_.record.bytes,
          .files = log_->file_count(),
          .file_bytes = log_->file_bytes(),
          .file_bytes_peak = log_->file_bytes_peak(),
          .bytes_written = log_->bytes_written(),
          .mapped_rows = reader_.mapped_rows(),
          .read_requests = reader_.read_requests(),
          .bytes_read = reader_.bytes_read() + compaction_->bytes_read(),
          .compacted_files = compaction_->compacted_files(),
          .moved_rows = compaction_->moved_rows(),
          .damaged_records = compaction_->damaged_records(),
          .compaction_error = compaction_->error(),
          .rewritten_files = log_->rewritten_files(),
          .lost_records = log_->lost_records(),
          .held_bytes = log_->held_bytes()};
}

}  // namespace embstore
