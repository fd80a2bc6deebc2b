// The log. Records are appended to its end: gathered in a buffer, and written to its last file, the active
// one, until that file is full and sealed.
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

// The state of the log that a batch of reads sees. It's never changed; the log replaces it.
struct LogView {
  std::shared_ptr<const LogFiles> files;       // by index; null if there is none
  std::shared_ptr<const AppendBuffer> buffer;  // null if all records are written
};

// Thread-safe except for adopt_kept(), make_live(), and the functions that end the log. Functions throw
// Error(kStorage) if the operating system refuses something: then what was written before is readable as it
// was, and the call may be repeated.
class RecordLog {
 public:
  explicit RecordLog(const LogShape& shape);  // the shape outlives the log

  std::shared_ptr<const LogView> view() const;

  // Appends rows from number `first` on, as many as the buffer takes, and returns how many. Sets slots[i] to
  // the slot of row i.
  size_t append(const RowBatch& rows, size_t first, std::span<Slot> slots);
  bool buffer_is_full() const;
  // Erases rows; skips those that were erased before.
  void erase(std::span<const Place> places);

  // Copies of records whose rows are about to be referred to there. They count as live, and aren't written to
  // the file before end_copies().
  struct Copies {
    std::shared_ptr<AppendBuffer> buffer;
    Slot first;
    uint32_t count;  // as many as the buffer took
  };
  // Appends copies of the records that lie at `from`; `records` has their bytes, one after another. A record
  // that isn't the one of its place isn't adapted to the new place, so that its reader gets an error.
  Copies append_copies(std::span<const std::byte> records, std::span<const Slot> from);
  // Ends the copies. Copies of relocations that aren't done become garbage.
  void end_copies(const Copies& copies, std::span<const Relocator::Relocation> relocations);

  void seal(const LogFile& file);  // seals the file if it's active
  LogFiles files() const;          // oldest first
  // Removes files. REQUIRES: they are sealed and nothing needs them.
  struct Removal {
    std::shared_ptr<LogFile> file;
    std::string failure;  // empty: the file is removed
  };
  std::vector<Removal> remove(std::span<const std::shared_ptr<LogFile>> emptied);

  // Takes over the files of an earlier process, the oldest first. New files get numbers from `next_number`
  // on. REQUIRES: nothing was appended yet.
  void adopt_kept(std::deque<std::shared_ptr<LogFile>> files, uint64_t next_number,
                  uint64_t newest_checkpoint);
  // Holds all live records for checkpoint `number`, and writes them out: no block in which one lies is
  // written again. If this throws, nothing has changed. REQUIRES: rows neither come nor go meanwhile, except
  // copies.
  void begin_checkpoint(uint64_t number);
  LogFiles files_of(uint64_t checkpoint) const;  // with rows of it, oldest first
  // Makes the bytes of these files durable, not their names. Other threads may append and read meanwhile.
  void make_durable(const LogFiles& files);
  void drop_checkpoint(uint64_t number) noexcept;
  // Makes the rows of the checkpoint live. REQUIRES: nothing is live.
  void make_live(uint64_t checkpoint);

  // The functions that end a log: remove_unneeded_files() removes the files that no checkpoint needs, and may
  // be called again after an error; forget_all() closes the rest.
  void remove_unneeded_files();
  void forget_all();

  // Counts of live records; a new record has none.
  ServedCounts& served() { return served_; }
  const ServedCounts& served() const { return served_; }

  uint64_t live_rows() const { return live_rows_.load(std::memory_order_relaxed); }
  uint64_t live_bytes() const { return live_rows() * shape_.record.stride; }
  uint64_t file_count() const;
  uint64_t file_bytes() const { return file_bytes_.load(std::memory_order_relaxed); }
  uint64_t file_bytes_peak() const { return file_bytes_peak_.load(std::memory_order_relaxed); }
  uint64_t held_bytes() const;  // bytes of files kept only for checkpoints
  uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }
  uint64_t reused_indexes() const { return reused_indexes_.load(std::memory_order_acquire); }
  uint64_t rewritten_files() const { return rewritten_files_.load(std::memory_order_relaxed); }
  uint64_t lost_records() const { return lost_records_.load(std::memory_order_relaxed); }

 private:
  // Shows readers these files and this buffer from now on. If it throws, nothing has changed.
  void publish(std::shared_ptr<const LogFiles> files, std::shared_ptr<AppendBuffer> buffer) REQUIRES(mutex_);
  void publish_files() REQUIRES(mutex_);  // after files_ changed
  uint32_t take_file_index() REQUIRES(mutex_);
  void open_file() REQUIRES(mutex_);
  void open_buffer() REQUIRES(mutex_);
  // These release the lock while they wait for copies to end.
  AppendBuffer& writable_buffer() REQUIRES(mutex_);
  void flush_buffer() REQUIRES(mutex_);
  void seal_active_file() REQUIRES(mutex_);
  void start_new_block() REQUIRES(mutex_);

  void write_header(files::File& to, const LogFile& file) const;
  void add_file_bytes(uint64_t bytes) REQUIRES(mutex_);
  // Rewrites the file if its sync failed.
  void rewrite_if_sync_failed(LogFile& file) REQUIRES(mutex_);
  void rewrite(LogFile& file) REQUIRES(mutex_);
  // Throws if a record that a checkpoint needs is damaged.
  void copy_rows(const LogFile& from, files::File& to) REQUIRES(mutex_);

  const LogShape& shape_;
  const std::shared_ptr<AppendBuffer::SpareMemory> spare_memory_;

  // Guards what is appended and which files there are. Held while a buffer is written out, never while a row
  // is read or relocated. Taken after Compaction's mutexes, before view_mutex_ and those of files/.
  mutable Mutex mutex_;
  Condition copied_;
  std::deque<std::shared_ptr<LogFile>> files_ GUARDED_BY(mutex_);  // oldest first
  std::shared_ptr<LogFile> active_ GUARDED_BY(mutex_);             // the last of files_, or null
  std::shared_ptr<AppendBuffer> buffer_ GUARDED_BY(mutex_);        // of active_, or null
  uint32_t buffer_written_ GUARDED_BY(mutex_) = 0;  // records of buffer_ that are in the file as well
  uint32_t copying_ GUARDED_BY(mutex_) = 0;         // Copies that haven't ended; buffer_ stays until then
  bool is_checkpoint_beginning_ GUARDED_BY(mutex_) =
      false;                               // copies wait, so that the checkpoint begins soon
  uint64_t epoch_ GUARDED_BY(mutex_) = 1;  // first checkpoint that may have what is appended
  uint64_t next_number_ GUARDED_BY(mutex_) = 1;
  uint32_t next_index_ GUARDED_BY(mutex_) = 0;            // the first index never used
  std::deque<uint32_t> free_indexes_ GUARDED_BY(mutex_);  // longest free first
  std::shared_ptr<const LogFiles> files_by_index_ GUARDED_BY(mutex_);

  // The innermost lock: guards the pointer, not the object.
  mutable Mutex view_mutex_;
  std::shared_ptr<const LogView> view_ GUARDED_BY(view_mutex_);

  ServedCounts served_;
  std::atomic<uint64_t> live_rows_{0};  // a row that moves counts once
  std::atomic<uint64_t> file_bytes_{0};
  std::atomic<uint64_t> file_bytes_peak_{0};
  std::atomic<uint64_t> bytes_written_{0};
  std::atomic<uint64_t> reused_indexes_{0};
  std::atomic<uint64_t> rewritten_files_{0};
  std::atomic<uint64_t> lost_records_{0};  // live records lost when their file was rewritten
};

}  // namespace embstore::log
