// What the tier has of its table's checkpoints. engine/FORMAT.md, section LOG, has the bytes, and why they survive a power
// cut.
#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "access/safe_point.h"
#include "errors/error.h"
#include "threads/shared_work.h"
#include "tiers/ssd_hash/record_scan.h"
#include "tiers/ssd_hash/ssd_hash_tier.h"

namespace embstore {

using ssd_hash::HeldRows;
using ssd_hash::kMaxSlots;
using ssd_hash::LogFile;
using ssd_hash::LogShape;

namespace {

constexpr size_t kScanBytes = 1 << 20;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kStorage, path + ": " + why +
                                       ", and a checkpoint needs it; put it back as it was, or remove the "
                                       "files of the variable to start without their rows");
}

// A file with records that checkpoints need. It's never written again.
std::shared_ptr<LogFile> open_extent(const LogShape& shape, const ExtentRows& extent, size_t index) {
  const std::string path = shape.path_of(extent.extent);
  std::error_code code;
  if (!std::filesystem::exists(path, code)) refuse(path, "is missing");
  const log::FileHeader header = ssd_hash::read_header(*shape.calls, path);
  log::check_header(path, header, log::kRowsMagic, shape.table);
  if (header.uuid != shape.table.uuid || header.number != extent.extent || header.capacity > kMaxSlots ||
      header.stride != shape.record.stride) {
    refuse(path, "is another file than the one that was written");
  }
  auto file = std::make_shared<LogFile>(
      std::make_unique<files::File>(*shape.calls, path, shape.open_flags(), shape.file_use()), header.number,
      static_cast<uint32_t>(index), static_cast<uint32_t>(header.capacity));
  const uint64_t size = file->file().size_bytes();
  file->written_bytes = ssd_hash::round_up_to_block(size);
  file->sealed = true;
  if (shape.maps_files) {
    file->map(size);
    file->mapped_bytes = size;
  }
  return file;
}

void hold(LogFile& file, const LogShape& shape, uint64_t checkpoint, const ExtentRows& extent) {
  const uint64_t records = log::end_of_rows(extent.rows);
  const uint64_t size = file.file().size_bytes();
  if (file.capacity != extent.capacity || size < shape.record.offset(records)) {
    refuse(file.file().path(), "has room for " + std::to_string(file.capacity) + " records and " +
                                   std::to_string(size) + " bytes, not for " +
                                   std::to_string(extent.capacity) + " and " +
                                   std::to_string(shape.record.offset(records)));
  }
  file.records = std::max(file.records.load(), static_cast<uint32_t>(records));
  file.hold(checkpoint, extent.rows);
}

// Records of one file that are read together.
struct Piece {
  const HeldRows* held;
  uint32_t first;
  uint32_t last;
};

}  // namespace

void SsdHashTier::check_keeps_checkpoints() const {
  if (shape_.keeps_checkpoints) return;
  throw Error(ErrorKind::kInvalidArgument, shape_.directory + ": the tier keeps no checkpoints");
}

void SsdHashTier::take_up(std::span<const TierRows> kept) {
  check_keeps_checkpoints();
  check_open();
  if (is_ready_) throw Error(ErrorKind::kInvalidArgument, shape_.directory + ": take_up() comes once");
  std::map<uint64_t, std::shared_ptr<LogFile>> files;  // by number
  std::set<std::string> needed;
  uint32_t records_per_file = shape_.records_per_file;
  for (const TierRows& checkpoint : kept) {
    for (const ExtentRows& extent : checkpoint.extents) {
      std::shared_ptr<LogFile>& file = files[extent.extent];
      if (file == nullptr) file = open_extent(shape_, extent, files.size() - 1);
      hold(*file, shape_, checkpoint.checkpoint, extent);
      needed.insert(file->file().path());
      records_per_file = std::max(records_per_file, file->capacity);
    }
  }
  const uint32_t max_files = kMaxSlots / records_per_file;
  if (files.size() > max_files) {
    throw Error(ErrorKind::kStoreFull, shape_.directory + ": holds more records than can be addressed");
  }
  std::erase_if(found_.paths, [&](const std::string& path) { return needed.contains(path); });
  // Nothing has changed so far.
  directory_.remove(found_.paths);
  shape_.records_per_file = records_per_file;
  shape_.max_files = max_files;
  std::deque<std::shared_ptr<LogFile>> oldest_first;
  for (auto& [number, file] : files) oldest_first.push_back(std::move(file));
  log_.take_up(std::move(oldest_first), found_.last_number + 1, kept.empty() ? 0 : kept.back().checkpoint);
  found_ = {};
  is_ready_.store(true, std::memory_order_release);
}

void SsdHashTier::begin_checkpoint(uint64_t number) {
  check_keeps_checkpoints();
  check_usable();
  log_.begin_checkpoint(number);
}

std::vector<ExtentRows> SsdHashTier::bring_to_medium(uint64_t number) {
  check_keeps_checkpoints();
  check_usable();
  std::vector<HeldRows> rows = log_.rows_of(number);
  log_.bring_to_medium(rows);
  files::sync_directory(*shape_.calls, shape_.directory);
  if (!directory_is_on_medium_.load(std::memory_order_acquire)) {
    const std::filesystem::path directory = std::filesystem::canonical(shape_.directory);
    files::sync_directory(*shape_.calls, directory.parent_path().string());
    directory_is_on_medium_.store(true, std::memory_order_release);
  }
  std::vector<ExtentRows> extents;
  for (HeldRows& held : rows)
    extents.push_back({held.file->number, held.file->capacity, std::move(held.rows)});
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
  // A compaction that goes on from before would take rows that come back in their old places for those that it was
  // about to move.
  const ssd_hash::Compaction::Turn turn(compaction_, /*wait=*/true);
  if (log_.live_rows() > 0) {
    throw Error(ErrorKind::kInvalidArgument,
                shape_.directory + ": rows are live; a checkpoint is restored when all were erased");
  }
  const std::vector<HeldRows> rows = log_.rows_of(number);
  const auto records_at_once = static_cast<uint32_t>(std::max<size_t>(1, kScanBytes / shape_.record.stride));
  std::vector<Piece> pieces;
  for (const HeldRows& held : rows) {
    const auto end = static_cast<uint32_t>(log::end_of_rows(held.rows));
    for (uint32_t first = 0; first < end; first += records_at_once) {
      pieces.push_back({&held, first, std::min(end, first + records_at_once)});
    }
  }
  share_work(pieces.size(), threads, [&](const auto& next) {
    std::vector<RowHeader> headers;
    std::vector<Slot> slots;
    for (size_t i = next(); i < pieces.size(); i = next()) {
      const Piece& piece = pieces[i];
      const LogFile& file = *piece.held->file;
      const auto is_needed = [&](uint32_t record) { return log::contains(piece.held->rows, record); };
      headers.clear();
      slots.clear();
      ssd_hash::RecordScan scan(file, shape_, kScanBytes);
      scan.visit(piece.first, piece.last, is_needed, [&](const ssd_hash::ScannedRecord& record) {
        const std::string fault = fault_of(record, [&](const log::RecordHeader& header) {
          return log::fault_of_header(header, record.number, number);
        });
        if (!fault.empty()) {
          throw Error(ErrorKind::kStorage, shape_.name_of(file, record.number) + " " + fault);
        }
        headers.push_back(log::header_of(record.bytes).row());
        slots.push_back(shape_.slot_of(file, record.number));
      });
      if (!slots.empty()) visit(headers, slots);
    }
    safe_point();
  });
  log_.make_live(rows);
}

}  // namespace embstore
