// The log: records are appended to its end, gathered in a buffer, and written out to its last file, the
// active one, until that is full and sealed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "threads/mutex.h"
#include "tiers/ssd_hash/append_buffer.h"
#include "tiers/ssd_hash/log_file.h"
#include "tiers/ssd_hash/log_shape.h"
#include "tiers/ssd_hash/sequence_note.h"
#include "tiers/ssd_hash/snapshot.h"

namespace embstore::ssd_hash {

using LogFiles = std::vector<std::shared_ptr<LogFile>>;  // by index; null where there is none

// What a batch of reads sees. Never changed; the log replaces it.
struct LogView {
  std::shared_ptr<const LogFiles> files;
  std::shared_ptr<const AppendBuffer> buffer;  // null where every record is written out
};

// Thread-safe but for adopt(), and for what ends it. Throws Error(kStorage) where the operating system refuses
// something: then what was written before is readable as it was, and the call may be made again.
class Log {
 public:
  // `note` may be null, and outlives the log. `shape` does too.
  Log(const LogShape& shape, SequenceNote* note);

  std::shared_ptr<const LogView> view() const;

  // Appends up to `count` records, as many as the buffer takes, and says how many. fill(file, record, bytes,
  // i, sequence) makes the i-th of them, and runs under the log's lock.
  template <class Fill>
  size_t append(size_t count, const Fill& fill);
  bool buffer_is_full() const;

  // Copies of records, with their sequence numbers, whose rows are about to be referred to there. They
  // count as live, and aren't written out before end_copies().
  struct Copies {
    std::shared_ptr<AppendBuffer> buffer;
    std::byte* bytes;
    Slot first;
    uint32_t count;  // those that the buffer took
  };
  Copies append_copies(std::span<const std::byte> records);
  // The numbers of those that nobody refers to: they become void before they go out. On a medium they could
  // outlive the newer record of their key.
  void end_copies(const Copies& copies, std::span<const uint32_t> refused);

  // Writes out what is gathered.
  void flush();
  void seal(const LogFile& file);  // if it's the active one

  std::vector<std::shared_ptr<LogFile>> files() const;  // the oldest first
  // What took the place of rows in files that are about to go is written out, and on the medium where that
  // is asked for.
  void secure_newer_rows();
  // REQUIRES: sealed files without live rows; secure_newer_rows(). Says which couldn't be removed, and why.
  struct NotRemoved {
    std::shared_ptr<LogFile> file;
    std::string reason;
  };
  std::vector<NotRemoved> remove(std::span<const std::shared_ptr<LogFile>> emptied);
  // Makes every record of `file` void but for the live ones. REQUIRES: it's sealed; secure_newer_rows().
  void void_dead_records(LogFile& file);

  // Numbers that weren't given out yet.
  struct NextNumbers {
    uint64_t file = 1;
    uint64_t sequence = 1;
  };
  NextNumbers next_numbers() const;
  // Files that an earlier process left, the oldest first. REQUIRES: nothing was appended yet.
  void adopt(std::deque<std::shared_ptr<LogFile>> files, uint64_t live_rows, const NextNumbers& next);

  // What is live now, and held from now on: its files stay, and no block that it lies in is written again once
  // bring_to_medium() has returned. REQUIRES: rows neither come nor go meanwhile, but for copies.
  Snapshot take_snapshot();
  void hold(const Snapshot& snapshot);
  void let_go(const Snapshot& snapshot) noexcept;
  // Not the names of its files. Others may append and read meanwhile.
  void bring_to_medium(const Snapshot& snapshot);
  // REQUIRES: it's held, and nothing is live.
  void make_live(const Snapshot& snapshot);
  // Of files that stay for checkpoints alone.
  uint64_t held_bytes() const;

  // The ends of a log: everything is on the medium, or every file is gone. May be called again after an error.
  void keep_all();
  void remove_all();
  void forget_all();  // REQUIRES: one of them

  // REQUIRES: the record was live. Rows that move are counted by nobody.
  bool drop(const LogView& seen, Slot slot) const;  // false where it was dropped before
  void add_live_rows(uint64_t rows) { live_rows_.fetch_add(rows, std::memory_order_relaxed); }
  void subtract_live_rows(uint64_t rows) { live_rows_.fetch_sub(rows, std::memory_order_relaxed); }

  uint64_t live_rows() const { return live_rows_.load(std::memory_order_relaxed); }
  uint64_t live_bytes() const { return live_rows() * shape_.record.bytes; }
  uint64_t file_bytes() const { return file_bytes_.load(std::memory_order_relaxed); }
  uint64_t file_bytes_peak() const { return file_bytes_peak_.load(std::memory_order_relaxed); }
  uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }
  uint64_t reused_indexes() const { return reused_indexes_.load(std::memory_order_acquire); }
  uint64_t rewritten_files() const { return rewritten_files_.load(std::memory_order_relaxed); }
  uint64_t lost_records() const { return lost_records_.load(std::memory_order_relaxed); }
  uint64_t file_count() const;
  uint64_t unwritten_records() const;

 private:
  void publish_view() REQUIRES(mutex_);   // after buffer_ changed
  void publish_files() REQUIRES(mutex_);  // after files_ changed
  uint32_t take_file_index() REQUIRES(mutex_);
  std::shared_ptr<LogFile> make_file(const std::string& path, uint32_t index, uint32_t capacity)
      REQUIRES(mutex_);
  void open_file() REQUIRES(mutex_);
  void open_buffer() REQUIRES(mutex_);
  // These let go of the lock while copies are being made.
  AppendBuffer& writable_buffer() REQUIRES(mutex_);
  void flush_buffer() REQUIRES(mutex_);
  void seal_active_file() REQUIRES(mutex_);

  bool next_record_shares_block_with_rows() const REQUIRES(mutex_);
  void append_void_record(AppendBuffer& buffer) REQUIRES(mutex_);
  // Lets go of the lock while copies are being made; there are none on return.
  void begin_block_without_rows() REQUIRES(mutex_);

  void add_file_bytes(uint64_t bytes) REQUIRES(mutex_);
  // A file whose sync failed is written anew first.
  void make_sound(LogFile& file) REQUIRES(mutex_);
  void bring_to_medium(LogFile& file) REQUIRES(mutex_);
  void write_anew(LogFile& file) REQUIRES(mutex_);
  void copy_bytes(const LogFile& from, files::File& to) REQUIRES(mutex_);
  // Throws where one is damaged that a checkpoint needs.
  void count_lost_records(const LogFile& file) REQUIRES(mutex_);

  const LogShape& shape_;
  SequenceNote* const note_;
  const std::shared_ptr<BufferMemory> buffer_memory_;

  // Guards what is appended and which files there are. Held while a buffer is written out, never while a row
  // is read or moved to another place. Taken after Compaction's, before view_mutex_ and those of files/.
  mutable Mutex mutex_;
  Condition copied_;
  std::deque<std::shared_ptr<LogFile>> files_ GUARDED_BY(mutex_);  // oldest first
  std::shared_ptr<LogFile> active_ GUARDED_BY(mutex_);             // the last of files_, or null
  std::shared_ptr<AppendBuffer> buffer_ GUARDED_BY(mutex_);        // of active_, or null
  uint32_t buffer_written_ GUARDED_BY(mutex_) = 0;  // records of buffer_ that are in the file as well
  uint32_t copying_ GUARDED_BY(mutex_) = 0;         // Copies that haven't ended; buffer_ stays meanwhile
  uint32_t snapshots_under_way_ GUARDED_BY(mutex_) =
      0;  // which copies wait for, or they'd be waited for long
  uint64_t next_sequence_ GUARDED_BY(mutex_) = 1;
  uint64_t next_number_ GUARDED_BY(mutex_) = 1;
  uint32_t next_index_ GUARDED_BY(mutex_) = 0;            // indexes from here on were never used
  std::deque<uint32_t> free_indexes_ GUARDED_BY(mutex_);  // the longest free first
  std::shared_ptr<const LogFiles> files_by_index_ GUARDED_BY(mutex_);
  bool has_new_names_ GUARDED_BY(mutex_) = false;  // that the directory hasn't on its medium yet

  // Innermost of all: guards the pointer, not what it points to.
  mutable Mutex view_mutex_;
  std::shared_ptr<const LogView> view_ GUARDED_BY(view_mutex_);

  std::atomic<uint64_t> live_rows_{0};
  std::atomic<uint64_t> file_bytes_{0};
  std::atomic<uint64_t> file_bytes_peak_{0};
  std::atomic<uint64_t> bytes_written_{0};
  std::atomic<uint64_t> reused_indexes_{0};
  std::atomic<uint64_t> rewritten_files_{0};
  std::atomic<uint64_t> lost_records_{0};  // live ones, of files that were written anew
};

template <class Fill>
size_t Log::append(size_t count, const Fill& fill) {
  const MutexLock lock(mutex_);
  AppendBuffer& buffer = writable_buffer();
  LogFile& file = *active_;
  const uint32_t before = buffer.count.load(std::memory_order_relaxed);
  const uint32_t first = file.records.load(std::memory_order_relaxed);
  const auto appended = static_cast<uint32_t>(std::min<size_t>(count, buffer.capacity - before));
  std::byte* at = buffer.at_offset(shape_.offset_of(first));
  for (uint32_t i = 0; i < appended; ++i, at += shape_.record.bytes) {
    fill(file, first + i, at, i, next_sequence_++);
    seal_record(at, shape_.record);
  }
  file.records.store(first + appended, std::memory_order_release);
  buffer.count.store(before + appended, std::memory_order_release);
  if (note_ != nullptr) note_->hand_out(next_sequence_ - 1);
  return appended;
}

}  // namespace embstore::ssd_hash
