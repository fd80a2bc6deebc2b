// The directory: taking it, reading rows back from what lies there, and leaving it.
#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "tiers/ssd_hash/ssd_hash_tier.h"

namespace embstore {

using ssd_hash::AlignedBytes;
using ssd_hash::File;
using ssd_hash::FileHeader;
using ssd_hash::LogFile;
using ssd_hash::record_offset;
using ssd_hash::RecordHeader;
using ssd_hash::round_down_to_block;
using ssd_hash::round_up_to_block;

namespace {

namespace fs = std::filesystem;

constexpr size_t kScanBytes = 1 << 20;

bool is_record_file(const std::string& name) {
  constexpr std::string_view kPrefix = "rows-";
  constexpr std::string_view kSuffix = ".ssdhash";
  return name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) &&
         name.ends_with(kSuffix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end() - kSuffix.size(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_unfinished_file(const std::string& name) {
  constexpr std::string_view kSuffix = ".new";
  return name.ends_with(kSuffix) && is_record_file(name.substr(0, name.size() - kSuffix.size()));
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kStorage, path + ": " + why);
}

FileHeader read_header(ssd_hash::FileCalls& calls, const std::string& path) {
  const File file(calls, path, O_RDONLY);
  FileHeader header{};
  if (file.read_at(&header, sizeof header, 0) < sizeof header || file.size_bytes() < ssd_hash::kHeaderBytes) {
    refuse(path, "is truncated: shorter than its header");
  }
  if (std::memcmp(header.magic, ssd_hash::kMagic, sizeof header.magic) != 0) {
    refuse(path, "isn't a file of SSDHASH rows; remove it, or choose another storage_path");
  }
  if (header.format_version != ssd_hash::kFormatVersion) {
    refuse(path, "has format version " + std::to_string(header.format_version) +
                     "; this engine reads version " + std::to_string(ssd_hash::kFormatVersion));
  }
  if (header.checksum != ssd_hash::checksum_of_header(header)) {
    refuse(path, "is damaged: its header's checksum is wrong");
  }
  return header;
}

bool is_all_zero(const std::byte* bytes, size_t count) {
  return std::all_of(bytes, bytes + count, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

void SsdHashTier::open_directory() {
  std::error_code code;
  made_directory_ = fs::create_directories(directory_, code);
  if (code) refuse(directory_, "can't be created: " + code.message());
  directory_descriptor_ = calls_.open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (directory_descriptor_ < 0) {
    refuse(directory_, "can't be opened: " + std::generic_category().message(errno));
  }
  if (flock(directory_descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    calls_.close(directory_descriptor_);
    refuse(directory_, reason == EWOULDBLOCK
                           ? "is in use by another variable; give each its own name or storage_path"
                           : "can't be locked: " + std::generic_category().message(reason));
  }
}

// Rather here than when the first row leaves memory. A file that a kill leaves has no rows by its name.
void SsdHashTier::check_direct_io() {
  if (!options_.direct) return;
  const std::string path = path_of(0) + ".new";
  struct Remove {
    SsdHashTier& tier;
    const std::string& file;
    ~Remove() { tier.calls_.unlink(file.c_str()); }  // there even where it can't be opened
  } const remove{*this, path};
  File(calls_, path, open_flags() | O_CREAT | O_TRUNC);
}

void SsdHashTier::open_note() {
  const bool was_there = ssd_hash::SequenceNote::exists(directory_);
  if (!options_.keep_files && unrecovered_.empty()) {
    if (was_there) ssd_hash::SequenceNote::remove(calls_, directory_);
    return;
  }
  if (!options_.keep_files && !was_there) return;
  note_ = std::make_unique<ssd_hash::SequenceNote>(calls_, directory_, variable_name_, options_.optimizer);
  next_sequence_ = note_->handed_out() + 1;
}

void SsdHashTier::find_old_files() {
  std::vector<std::string> scratch;
  std::error_code code;
  for (fs::directory_iterator at(directory_, code), end; !code && at != end; at.increment(code)) {
    const std::string path = at->path().string();
    const std::string name = at->path().filename().string();
    if (is_unfinished_file(name)) {
      scratch.push_back(path);
    } else if (is_record_file(name)) {
      const FileHeader header = read_header(calls_, path);
      if ((header.flags & ssd_hash::kKept) == 0) {
        scratch.push_back(path);
      } else {
        unrecovered_.push_back({path, header});
      }
    }
  }
  if (code) refuse(directory_, "can't be listed: " + code.message());
  for (const OldFile& old : unrecovered_) {
    const FileHeader& header = old.header;
    if (header.variable_hash != ssd_hash::hash_of_name(variable_name_)) {
      refuse(old.path, "holds rows of another variable than \"" + variable_name_ +
                           "\", or of another number of partitions; give each its own storage_path");
    }
    if (header.dim != static_cast<uint32_t>(layout_.dim()) ||
        header.slot_count != static_cast<uint32_t>(layout_.slot_count()) ||
        header.row_bytes != layout_.row_bytes() || header.record_bytes != record_bytes_ ||
        header.header_bytes != ssd_hash::kHeaderBytes || header.record_capacity == 0) {
      refuse(old.path, "holds rows of dim " + std::to_string(header.dim) + " with " +
                           std::to_string(header.slot_count) + " optimizer slots; the variable has dim " +
                           std::to_string(layout_.dim()) + " with " + std::to_string(layout_.slot_count()));
    }
    records_per_file_ = std::max<uint64_t>(records_per_file_, header.record_capacity);
  }
  for (const std::string& path : scratch) {
    if (calls_.unlink(path.c_str()) != 0) {
      refuse(path, "can't be removed: " + std::generic_category().message(errno));
    }
    made_directory_ = true;  // by the tier that left the file
  }
  std::sort(unrecovered_.begin(), unrecovered_.end(),
            [](const OldFile& a, const OldFile& b) { return a.header.file_number < b.header.file_number; });
}

// Visits records 0 to records-1 with their bytes, of which the last may be cut off.
template <class Visit>
void SsdHashTier::scan(const LogFile& file, uint32_t records, const Visit& visit) const {
  const auto records_a_chunk = static_cast<uint32_t>(std::max<size_t>(1, kScanBytes / record_bytes_));
  const AlignedBytes chunk(round_up_to_block(records_a_chunk * record_bytes_) + 2 * ssd_hash::kBlockBytes);
  for (uint64_t first = 0; first < records; first += records_a_chunk) {
    const uint64_t last = std::min<uint64_t>(records, first + records_a_chunk);
    const uint64_t begin = round_down_to_block(record_offset(first, record_bytes_));
    const uint64_t end = round_up_to_block(record_offset(last, record_bytes_));
    const size_t got = file.file.read_at(chunk.data(), end - begin, begin);
    for (uint64_t record = first; record < last; ++record) {
      const uint64_t position = record_offset(record, record_bytes_) - begin;
      const size_t available = got > position ? std::min<size_t>(record_bytes_, got - position) : 0;
      visit(static_cast<uint32_t>(record), chunk.data() + position, available);
    }
  }
}

RecoveryReport SsdHashTier::recover(const Found& found) {
  if (closed_.load(std::memory_order_acquire)) {
    throw Error(ErrorKind::kClosed, directory_ + ": the tier is closed");
  }
  RecoveryReport report;
  report.earlier_run = !is_ready() || (note_ != nullptr && note_->was_there());
  struct Entry {
    int64_t key;
    uint64_t sequence;
    Slot slot;
    bool is_row;
  };
  std::vector<Entry> entries;
  std::unique_lock lock(log_mutex_);
  if (!log_.empty()) {
    throw Error(ErrorKind::kInvalidArgument, directory_ + ": recover() comes before any write");
  }
  if (unrecovered_.size() > max_files_) {
    throw Error(ErrorKind::kStoreFull, directory_ + ": holds more files than can be addressed");
  }
  std::deque<std::shared_ptr<LogFile>> files;
  uint64_t last_sequence = 0;
  for (const OldFile& old : unrecovered_) {
    const auto index = static_cast<uint32_t>(files.size());
    auto file = std::make_shared<LogFile>(calls_, old.path, open_flags(), old.header.file_number, index,
                                          old.header.record_capacity);
    file->written_bytes = round_up_to_block(file->file.size_bytes());
    file->sealed = old.header.sealed != 0;
    const uint64_t bytes = file->file.size_bytes() - ssd_hash::kHeaderBytes;
    const uint32_t expected = file->sealed
                                  ? std::min(old.header.sealed_records, file->capacity)
                                  : static_cast<uint32_t>(std::min<uint64_t>(
                                        (bytes + record_bytes_ - 1) / record_bytes_, file->capacity));
    const auto note_damage = [&](uint32_t record) {
      ++(file->sealed ? report.damaged : report.torn);
      if (report.first_damage.empty()) {
        report.first_damage =
            file->file.path() + ": the record at " + std::to_string(record_offset(record, record_bytes_));
      }
    };
    uint32_t damaged_since_whole = 0;
    uint32_t zeros_since_whole = 0;  // blocks are filled up with zeros at the end of what was written
    scan(*file, expected, [&](uint32_t record, const std::byte* at, size_t available) {
      if (available < record_bytes_ || !ssd_hash::is_whole(at, record_shape_)) {
        if (!file->sealed && is_all_zero(at, available)) {
          ++zeros_since_whole;
          return;
        }
        note_damage(record);
        ++damaged_since_whole;
        // A torn end isn't sealed into the file: it would count as damage from then on.
        if (file->sealed) file->records = record + 1;
        return;
      }
      if (!file->sealed) {
        // Not the end of what a killed process wrote after all.
        report.torn -= damaged_since_whole;
        report.damaged += damaged_since_whole + zeros_since_whole;
      }
      damaged_since_whole = 0;
      zeros_since_whole = 0;
      file->records = record + 1;
      const RecordHeader header = ssd_hash::header_of(at);
      last_sequence = std::max(last_sequence, header.sequence);
      if (header.kind == ssd_hash::kRow) {
        entries.push_back({header.key, header.sequence, slot_of(*file, record), true});
      } else if (header.kind == ssd_hash::kTombstones) {
        for (uint16_t i = 0; i < header.count; ++i) {
          int64_t key;
          std::memcpy(&key, at + sizeof header + i * sizeof key, sizeof key);
          entries.push_back({key, header.sequence, 0, false});
        }
      }
    });
    files.push_back(std::move(file));
  }

  // Of a row and its copy by compaction, which have one sequence number, the copy.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    if (a.key != b.key) return a.key < b.key;
    if (a.sequence != b.sequence) return a.sequence < b.sequence;
    return a.slot < b.slot;
  });
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].is_row) continue;
    if (i + 1 < entries.size() && entries[i + 1].key == entries[i].key) {
      ++report.superseded;
      continue;
    }
    files[entries[i].slot / records_per_file_]->set_live(
        static_cast<uint32_t>(entries[i].slot % records_per_file_));
    ++report.rows;
  }
  entries = {};

  RowBatch rows(layout_);
  std::vector<Slot> slots;
  std::vector<std::byte> batch;
  const auto tell = [&] {
    rows.resize(slots.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      const std::byte* at = batch.data() + i * record_bytes_;
      rows.header(i) = ssd_hash::header_of(at).row();
      std::memcpy(rows.row(i), at + sizeof(RecordHeader), layout_.row_bytes());
    }
    if (!slots.empty()) {
      // Others are turned away until this is over, and `found` has locks of its own.
      lock.unlock();
      found(rows, slots);
      lock.lock();
    }
    slots.clear();
    batch.clear();
  };
  uint64_t file_bytes = 0;
  for (const auto& file : files) {
    if (file->live_rows.load(std::memory_order_relaxed) > 0) {
      scan(*file, file->records, [&](uint32_t record, const std::byte* at, size_t) {
        if (!file->is_live(record)) return;
        batch.insert(batch.end(), at, at + record_bytes_);
        slots.push_back(slot_of(*file, record));
        if (batch.size() >= kScanBytes) tell();
      });
      tell();
    }
    if (!file->sealed) {
      file->sealed = true;
      write_header(*file);
    }
    if (maps_files()) {
      file->map(file->file.size_bytes());
      file->mapped_bytes.store(file->file.size_bytes(), std::memory_order_release);
    }
    file_bytes += file->written_bytes;
  }
  report.files = files.size();
  if (!files.empty()) next_number_ = files.back()->number + 1;
  next_index_ = static_cast<uint32_t>(files.size());
  next_sequence_ = last_sequence + 1;
  if (note_ != nullptr) {
    if (note_->was_there()) {
      const uint64_t handed_out = std::max(note_->handed_out(), last_sequence);
      report.unwritten = handed_out - std::max(note_->written_out(), last_sequence);
      next_sequence_ = handed_out + 1;
    }
    note_->hand_out(next_sequence_ - 1);
    note_->write_out(next_sequence_ - 1);
  }
  live_rows_.store(report.rows, std::memory_order_relaxed);
  file_bytes_.store(file_bytes, std::memory_order_relaxed);
  file_bytes_peak_.store(file_bytes, std::memory_order_relaxed);
  log_ = std::move(files);
  unrecovered_.clear();
  publish_files();
  return report;
}

void SsdHashTier::close() {
  if (closed_.load(std::memory_order_acquire)) return;
  stop_compaction_thread();
  std::unique_lock lock(log_mutex_);
  if (options_.keep_files || !is_ready()) {
    if (active_ != nullptr) {
      if (active_->records > 0) {
        const std::shared_ptr<LogFile> last = active_;
        seal_active_file(lock);
        last->file.sync();
      }
    }
    for (const auto& file : log_) file->file.sync();
    if (note_ != nullptr) note_->sync();
    if (!log_.empty()) ssd_hash::sync_directory(calls_, directory_);
  } else {
    for (; !log_.empty(); log_.pop_front()) log_.front()->file.remove();
    if (note_ != nullptr) ssd_hash::SequenceNote::remove(calls_, directory_);
  }
  log_.clear();
  active_ = nullptr;
  buffer_ = nullptr;
  publish_files();
  live_rows_.store(0, std::memory_order_relaxed);
  file_bytes_.store(0, std::memory_order_relaxed);
  closed_.store(true, std::memory_order_release);
  if (made_directory_ && !options_.keep_files) {
    std::error_code code;
    fs::remove(directory_, code);  // stays if others put something there
  }
  flock(directory_descriptor_, LOCK_UN);  // which a forked child's copy of the descriptor would hold on to
  calls_.close(directory_descriptor_);
}

}  // namespace embstore
