// How the files stay within twice the live records plus one buffer.
//
// Let L be the bytes of live records, F those of the files, B the buffer (at least eight records), of which
// B/8 goes out at once. Writers start to compact where F passes the soft bound, 7/4 L + B/4, a file for
// each buffer; where F would pass the hard bound, 15/8 L + 5/8 B, they compact before they write. A file
// is L/8 or B/8 long, whichever is more, so the copies that lie beside their originals for a while fit
// below 2 L + B.
#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "errors/error.h"
#include "tiers/ssd_hash/ssd_hash_tier.h"

namespace embstore {

using ssd_hash::AlignedBytes;
using ssd_hash::Buffer;
using ssd_hash::LogFile;
using ssd_hash::record_offset;
using ssd_hash::RecordHeader;
using ssd_hash::round_down_to_block;
using ssd_hash::round_up_to_block;

uint64_t SsdHashTier::live_bytes() const {
  return live_rows_.load(std::memory_order_relaxed) * record_bytes_;
}

bool SsdHashTier::is_over_soft_bound(uint64_t more_bytes) const {
  return file_bytes_.load(std::memory_order_relaxed) + more_bytes > live_bytes() / 4 * 7 + 2 * flush_bytes_;
}

bool SsdHashTier::is_over_hard_bound(uint64_t more_bytes) const {
  return file_bytes_.load(std::memory_order_relaxed) + more_bytes > live_bytes() / 8 * 15 + 5 * flush_bytes_;
}

void SsdHashTier::start_compaction(Relocator& relocator) {
  relocator_.store(&relocator, std::memory_order_release);
  if (options_.compaction == CompactionMode::kOwnThread && !compaction_thread_.joinable()) {
    compaction_thread_ = std::thread([this] { run_compaction_thread(); });
  }
}

void SsdHashTier::make_room() {
  // A buffer with its last record and block, and the next file's header.
  const uint64_t more_bytes = flush_bytes_ + record_bytes_ + 2 * ssd_hash::kBlockBytes;
  if (!is_over_soft_bound(more_bytes)) return;
  if (is_over_hard_bound(more_bytes)) {
    compact_while_over_soft_bound(more_bytes, SIZE_MAX, /*wait=*/true);
  } else if (options_.compaction == CompactionMode::kOwnThread) {
    wake_compaction_thread();
  } else {
    // There is room still: a file that can't be compacted is no reason to turn rows away.
    compact_noting_errors(more_bytes, 1);
  }
}

void SsdHashTier::compact() {
  if (!is_over_soft_bound(0)) return;
  if (options_.compaction == CompactionMode::kOwnThread) {
    wake_compaction_thread();
  } else {
    compact_while_over_soft_bound(0, SIZE_MAX, /*wait=*/false);
  }
}

void SsdHashTier::drain() {
  if (is_over_soft_bound(0)) compact_while_over_soft_bound(0, SIZE_MAX, /*wait=*/true);
}

// Writers meet the error again where the bound can't be kept; until then stats() tells.
void SsdHashTier::compact_noting_errors(uint64_t more_bytes, size_t max_files) {
  try {
    compact_while_over_soft_bound(more_bytes, max_files, /*wait=*/false);
  } catch (const std::exception& error) {
    const std::lock_guard lock(compaction_mutex_);
    compaction_error_ = error.what();
  }
}

// Takes the files that there are now, each once at most.
void SsdHashTier::compact_while_over_soft_bound(uint64_t more_bytes, size_t max_files, bool wait) {
  if (relocator_.load(std::memory_order_acquire) == nullptr) return;
  {
    std::unique_lock lock(compaction_mutex_);
    if (compacting_ && !wait) return;
    compaction_ended_.wait(lock, [this] { return !compacting_; });
    compacting_ = true;
  }
  struct End {
    SsdHashTier& tier;
    ~End() {
      const std::lock_guard lock(tier.compaction_mutex_);
      tier.compacting_ = false;
      tier.compaction_ended_.notify_all();
    }
  } const end{*this};

  uint64_t last_number = 0;
  bool carry_tombstones = false;
  {
    const std::lock_guard lock(log_mutex_);
    check_usable();
    if (!log_.empty()) last_number = log_.back()->number;
  }
  std::vector<uint64_t> taken;  // their numbers
  for (size_t files = 0; files < max_files && is_over_soft_bound(more_bytes); ++files) {
    const std::shared_ptr<LogFile> victim = next_to_compact(taken, last_number);
    if (victim == nullptr) break;
    taken.push_back(victim->number);
    move_live_rows(*victim, carry_tombstones);
    compacted_files_.fetch_add(1, std::memory_order_relaxed);
    // What its tombstones speak of may be in the file that can't go.
    carry_tombstones = carry_tombstones || victim->has_stuck_row;
    remove_emptied_files();
  }
  const std::lock_guard lock(compaction_mutex_);
  compaction_error_.clear();
}

// The oldest file where files are kept, or else an older record could outlive a newer one of its key. Else
// the one that wins most for what is moved: rows that are seldom asked for lie in the oldest files, nearly
// all of them live.
std::shared_ptr<LogFile> SsdHashTier::next_to_compact(std::span<const uint64_t> taken, uint64_t last_number) {
  std::unique_lock lock(log_mutex_);
  for (;;) {
    std::shared_ptr<LogFile> best;
    double best_live_share = 0;
    for (const auto& file : log_) {
      if (file->number > last_number || std::find(taken.begin(), taken.end(), file->number) != taken.end()) {
        continue;
      }
      const double live_share =
          static_cast<double>(file->live_rows.load(std::memory_order_relaxed)) / std::max(1u, file->records);
      if (best == nullptr || live_share < best_live_share) {
        best = file;
        best_live_share = live_share;
      }
      if (options_.keep_files) break;
    }
    if (best == nullptr || best->sealed) return best;
    seal_active_file(lock);
  }
}

void SsdHashTier::move_live_rows(LogFile& victim, bool carry_tombstones) {
  const auto records_a_chunk = static_cast<uint32_t>(std::max<size_t>(1, flush_bytes_ / record_bytes_));
  const AlignedBytes chunk(round_up_to_block(flush_bytes_ + record_bytes_) + 2 * ssd_hash::kBlockBytes);
  std::vector<std::byte> records;
  std::vector<Slot> from;
  for (uint32_t first = 0; first < victim.records; first += records_a_chunk) {
    if (victim.live_rows.load(std::memory_order_acquire) == 0 && !carry_tombstones) return;
    const uint32_t last = std::min(victim.records, first + records_a_chunk);
    const auto is_wanted = [&](uint32_t record) { return carry_tombstones || victim.is_live(record); };
    uint32_t wanted = first;
    while (wanted < last && !is_wanted(wanted)) ++wanted;
    if (wanted == last) continue;

    const uint64_t begin = round_down_to_block(record_offset(first, record_bytes_));
    const uint64_t end = round_up_to_block(record_offset(last, record_bytes_));
    const size_t got = victim.file.read_at(chunk.data(), end - begin, begin);
    bytes_read_.fetch_add(got, std::memory_order_relaxed);
    records.clear();
    from.clear();
    for (uint32_t record = wanted; record < last; ++record) {
      const uint64_t position = record_offset(record, record_bytes_) - begin;
      const bool is_live = victim.is_live(record);
      if (!is_live && !carry_tombstones) continue;
      if (position + record_bytes_ > got) {
        if (!is_live) continue;
        throw Error(ErrorKind::kStorage, victim.file.path() + ": the record at " +
                                             std::to_string(record_offset(record, record_bytes_)) +
                                             " is cut off: the file was truncated");
      }
      const std::byte* at = chunk.data() + position;
      if (!is_live && ssd_hash::header_of(at).kind != ssd_hash::kTombstones) continue;
      records.insert(records.end(), at, at + record_bytes_);
      from.push_back(slot_of(victim, record));
    }
    move_records(victim, records, from);
  }
}

// Appends copies of `records` of `victim`, sequence numbers included, and has the index refer to them. A copy that it
// doesn't take is void before it goes out: on a medium it could outlive the newer record of its key.
void SsdHashTier::move_records(LogFile& victim, const std::vector<std::byte>& records,
                               std::span<const Slot> from) {
  Relocator& relocator = *relocator_.load(std::memory_order_acquire);
  std::vector<std::pair<std::byte*, Slot>> refused;
  std::vector<Relocator::Relocation> relocations;
  for (size_t done = 0; done < from.size();) {
    std::shared_ptr<Buffer> buffer;
    Slot first_to = 0;
    std::byte* copies = nullptr;
    uint32_t count = 0;
    {
      std::unique_lock lock(log_mutex_);
      writable_buffer(lock);
      buffer = buffer_;
      const uint32_t before = buffer->count.load(std::memory_order_relaxed);
      count = static_cast<uint32_t>(std::min<size_t>(from.size() - done, buffer->capacity - before));
      const uint32_t first = active_->records;
      copies = buffer->bytes.data() + (record_offset(first, record_bytes_) - buffer->base_offset);
      first_to = slot_of(*active_, first);
      std::memcpy(copies, records.data() + done * record_bytes_, count * record_bytes_);
      for (uint32_t i = 0; i < count; ++i) {
        if (ssd_hash::header_of(copies + i * record_bytes_).kind == ssd_hash::kTombstones) continue;
        active_->set_live(first + i);  // not counted: the row is there already
      }
      active_->records += count;
      buffer->count.store(before + count, std::memory_order_release);
      ++buffer->relocating;
    }
    refused.clear();
    {
      // Lets the buffer go out again, whatever relocate() does.
      struct Release {
        SsdHashTier& tier;
        Buffer& held;
        std::vector<std::pair<std::byte*, Slot>>& to_void;
        ~Release() {
          const std::lock_guard lock(tier.log_mutex_);
          for (const auto& [record, slot] : to_void) {
            RecordHeader header = ssd_hash::header_of(record);
            header.kind = ssd_hash::kVoid;
            std::memcpy(record, &header, sizeof header);
            ssd_hash::seal_record(record, tier.record_shape_);
          }
          --held.relocating;
          tier.relocated_.notify_all();
        }
      } const release{*this, *buffer, refused};
      relocations.clear();
      for (uint32_t i = 0; i < count; ++i) {
        const RecordHeader header = ssd_hash::header_of(copies + i * record_bytes_);
        if (header.kind == ssd_hash::kTombstones) continue;
        relocations.push_back({header.key, from[done + i], first_to + i});
      }
      relocator.relocate(relocations);
      for (const Relocator::Relocation& row : relocations) {
        std::byte* copy = copies + (row.to - first_to) * record_bytes_;
        // A damaged row moves as it is, so that whoever reads it is told; its key may be right.
        const bool whole = ssd_hash::is_whole(copy, record_shape_);
        if (!whole) damaged_records_.fetch_add(1, std::memory_order_relaxed);
        if (row.done) {
          victim.clear_live(static_cast<uint32_t>(row.from % records_per_file_));
          moved_rows_.fetch_add(1, std::memory_order_relaxed);
        } else {
          refused.emplace_back(copy, row.to);
          if (!whole) victim.has_stuck_row = true;
        }
      }
    }
    for (const auto& [record, slot] : refused) {
      buffer->file->clear_live(static_cast<uint32_t>(slot % records_per_file_));
    }
    done += count;
  }
}

// Removes files without live rows, the oldest first and, where files are kept, no later one before an
// earlier one. A file that keeps some (their owner is about to erase them, or has not told the index of them yet) stays for the
// next round.
void SsdHashTier::remove_emptied_files() {
  std::unique_lock lock(log_mutex_);
  const auto is_empty = [](const LogFile& file) {
    return file.sealed && file.live_rows.load(std::memory_order_acquire) == 0;
  };
  std::vector<std::shared_ptr<LogFile>> emptied;
  for (const auto& file : log_) {
    if (is_empty(*file)) {
      emptied.push_back(file);
    } else if (options_.keep_files && !file->has_stuck_row) {
      break;
    }
  }
  if (emptied.empty()) return;
  // What took the place of their rows first.
  flush_buffer(lock);
  if (options_.sync && active_ != nullptr) active_->file.sync();
  std::exception_ptr error;
  size_t removed = 0;
  for (; removed < emptied.size(); ++removed) {
    LogFile& file = *emptied[removed];
    try {
      file.file.remove();
    } catch (...) {
      error = std::current_exception();
      break;
    }
    file_bytes_.fetch_sub(file.written_bytes, std::memory_order_relaxed);
    free_indexes_.push_back(file.index);
    std::erase(log_, emptied[removed]);
  }
  if (removed > 0) publish_files();
  if (error != nullptr) std::rethrow_exception(error);
}

// -- a thread of its own ----------------------------------------------------------------------------------

void SsdHashTier::wake_compaction_thread() {
  const std::lock_guard lock(wake_mutex_);
  wanted_ = true;
  wake_.notify_one();
}

void SsdHashTier::run_compaction_thread() {
  for (;;) {
    {
      std::unique_lock lock(wake_mutex_);
      wake_.wait(lock, [this] { return wanted_ || stopping_; });
      if (stopping_) return;
      wanted_ = false;
    }
    compact_noting_errors(0, SIZE_MAX);
  }
}

void SsdHashTier::stop_compaction_thread() {
  if (!compaction_thread_.joinable()) return;
  {
    const std::lock_guard lock(wake_mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  compaction_thread_.join();
}

}  // namespace embstore
