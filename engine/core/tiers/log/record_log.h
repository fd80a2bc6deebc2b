// The log: records are appended to its end, gathered in a buffer, and written out to its last file, the
// active one, until that is full and sealed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "row/row_batch.h"
#include "threads/mutex.h"
#include "tiers/log/append_buffer.h"
#include "tiers/log/log_file.h"
#include "tiers/log/log_shape.h"
#include "tiers/log/served_counts.h"
#include "tiers/tier.h"

namespace embstore::log {

using LogFiles = std::vector<std::shared_ptr<LogFile>>;

// What a batch of reads sees. Never changed; the log replaces it.
struct LogView {
  std::shared_ptr<const LogFiles> files;       // by index; null where there is none
  std::shared_ptr<const AppendBuffer> buffer;  // null where every record is written out
};

// Thread-safe but for take_up(), make_live(), and what ends it. Throws Error(kStorage) where the operating system
// refuses something: then what was written before is readable as it was, and the call may be made again.
class RecordLog {
 public:
  explicit RecordLog(const LogShape& shape);  // which outlives it

  std::shared_ptr<const LogView> view() const;

  // Appends rows from number `first` on, as many as the buffer takes, and says how many. slots[i] is where row i is.
  size_t append(const RowBatch& rows, size_t first, std::span<Slot> slots);
  bool buffer_is_full() const;
  // Those that were erased before are left alone.
  void erase(std::span<const Place> places);

  // Copies of records whose rows are about to be referred to there. They count as live, and aren't written out before
  // end_copies().
  struct Copies {
    std::shared_ptr<AppendBuffer> buffer;
    Slot first;
    uint32_t count;  // those that the buffer took
  };
  // records: one after another, as they are at `from`. A record that isn't the one of its place isn't made the one of
  // the new: whoever reads it is told.
  Copies append_copies(std::span<const std::byte> records, std::span<const Slot> from);
  // Those that aren't done are nobody's.
  void end_copies(const Copies& copies, std::span<const Relocator::Relocation> relocations);

  void seal(const LogFile& file);  // if it's the active one
  LogFiles files() const;          // the oldest first
  // REQUIRES: sealed files that nobody needs.
  struct Removal {
    std::shared_ptr<LogFile> file;
    std::string failure;  // empty: it's gone
  };
  std::vector<Removal> remove(std::span<const std::shared_ptr<LogFile>> emptied);

  // What an earlier process left, the oldest file first. New files get numbers from `next_number` on. REQUIRES: nothing
  // was appended yet.
  void take_up(std::deque<std::shared_ptr<LogFile>> files, uint64_t next_number, uint64_t newest_checkpoint);
  // What is live now is held for checkpoint `number`, and written out: no block that it lies in is written again.
  // Nothing has changed where this throws. REQUIRES: rows neither come nor go meanwhile, but for copies.
  void begin_checkpoint(uint64_t number);
  LogFiles files_of(uint64_t checkpoint) const;  // with rows that belong to it, the oldest first
  // The bytes of these files, not their names. Others may append and read meanwhile.
  void bring_to_medium(const LogFiles& files);
  void drop_checkpoint(uint64_t number) noexcept;
  // The rows of the checkpoint. REQUIRES: nothing is live.
  void make_live(uint64_t checkpoint);

  // The ends of a log: removes the files that no checkpoint needs, which may be called again after an error; and lets
  // go of all.
  void remove_unneeded_files();
  void forget_all();

  // Of live records; those of a new one are none.
  ServedCounts& served() { return served_; }
  const ServedCounts& served() const { return served_; }

  uint64_t live_rows() const { return live_rows_.load(std::memory_order_relaxed); }
  uint64_t live_bytes() const { return live_rows() * shape_.record.stride; }
  uint64_t file_count() const;
  uint64_t file_bytes() const { return file_bytes_.load(std::memory_order_relaxed); }
  uint64_t file_bytes_peak() const { return file_bytes_peak_.load(std::memory_order_relaxed); }
  uint64_t held_bytes() const;  // of files that stay for checkpoints alone
  uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }
  uint64_t reused_indexes() const { return reused_indexes_.load(std::memory_order_acquire); }
  uint64_t rewritten_files() const { return rewritten_files_.load(std::memory_order_relaxed); }
  uint64_t lost_records() const { return lost_records_.load(std::memory_order_relaxed); }

 private:
  // Has readers see these from now on. Nothing has changed where it throws.
  void publish(std::shared_ptr<const LogFiles> files, std::shared_ptr<AppendBuffer> buffer) REQUIRES(mutex_);
  void publish_files() REQUIRES(mutex_);  // after files_ changed
  uint32_t take_file_index() REQUIRES(mutex_);
  void open_file() REQUIRES(mutex_);
  void open_buffer() REQUIRES(mutex_);
  // These let go of the lock while copies are being made.
  AppendBuffer& writable_buffer() REQUIRES(mutex_);
  void flush_buffer() REQUIRES(mutex_);
  void seal_active_file() REQUIRES(mutex_);
  void begin_another_block() REQUIRES(mutex_);

  void write_header(files::File& to, const LogFile& file) const;
  void add_file_bytes(uint64_t bytes) REQUIRES(mutex_);
  // A file whose sync failed is written anew first.
  void make_sound(LogFile& file) REQUIRES(mutex_);
  void write_anew(LogFile& file) REQUIRES(mutex_);
  // Throws where one is damaged that a checkpoint needs.
  void copy_rows(const LogFile& from, files::File& to) REQUIRES(mutex_);

  const LogShape& shape_;
  const std::shared_ptr<AppendBuffer::SpareMemory> spare_memory_;

  // Guards what is appended and which files there are. Held while a buffer is written out, never while a row
  // is read or moved to another place. Taken after Compaction's, before view_mutex_ and those of files/.
  mutable Mutex mutex_;
  Condition copied_;
  std::deque<std::shared_ptr<LogFile>> files_ GUARDED_BY(mutex_);  // oldest first
  std::shared_ptr<LogFile> active_ GUARDED_BY(mutex_);             // the last of files_, or null
  std::shared_ptr<AppendBuffer> buffer_ GUARDED_BY(mutex_);        // of active_, or null
  uint32_t buffer_written_ GUARDED_BY(mutex_) = 0;  // records of buffer_ that are in the file as well
  uint32_t copying_ GUARDED_BY(mutex_) = 0;         // Copies that haven't ended; buffer_ stays meanwhile
  bool checkpoint_begins_ GUARDED_BY(mutex_) =
      false;                               // copies wait for it, or it would wait for them for long
  uint64_t epoch_ GUARDED_BY(mutex_) = 1;  // the first checkpoint that may have what is appended
  uint64_t next_number_ GUARDED_BY(mutex_) = 1;
  uint32_t next_index_ GUARDED_BY(mutex_) = 0;            // indexes from here on were never used
  std::deque<uint32_t> free_indexes_ GUARDED_BY(mutex_);  // the longest free first
  std::shared_ptr<const LogFiles> files_by_index_ GUARDED_BY(mutex_);

  // Innermost of all: guards the pointer, not what it points to.
  mutable Mutex view_mutex_;
  std::shared_ptr<const LogView> view_ GUARDED_BY(view_mutex_);

  ServedCounts served_;
  std::atomic<uint64_t> live_rows_{0};  // each once, also while it moves
  std::atomic<uint64_t> file_bytes_{0};
  std::atomic<uint64_t> file_bytes_peak_{0};
  std::atomic<uint64_t> bytes_written_{0};
  std::atomic<uint64_t> reused_indexes_{0};
  std::atomic<uint64_t> rewritten_files_{0};
  std::atomic<uint64_t> lost_records_{0};  // live ones, of files that were written anew
};

}  // namespace embstore::log
