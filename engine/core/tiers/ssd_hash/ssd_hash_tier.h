// Rows in log-structured files of fixed-size records.
//
// Rows are appended to one log, gathered in a buffer that goes out in whole blocks. A row is read by its
// place alone: the index that says where a key is belongs to the table. The files can also be read
// without it, by recover(), since a record carries its key, a sequence number and a checksum.
//
// Compaction moves what is live in a file to the end of the log and removes the file: the one with the
// least live rows, or the oldest where files are to be kept. With the oldest first, for each key an older
// record goes before a newer one, and what recover() finds is never older than what was written out,
// without a word about rows that were merely promoted. With files of up to twice the live rows, a whole
// round writes at most as much as it wins either way.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tiers/ssd_hash/log.h"
#include "tiers/ssd_hash/options.h"
#include "tiers/ssd_hash/sequence_note.h"
#include "tiers/tier.h"

namespace embstore {

struct SsdHashStats {
  std::string io_scheme;         // "io_uring" or "pread"
  std::string io_scheme_reason;  // why `auto` came to pread; else empty
  bool direct;
  uint64_t live_rows;
  uint64_t unwritten_records;  // in the buffer alone: what a killed process loses
  uint64_t record_bytes;       // of one row with its header
  uint64_t files;
  uint64_t file_bytes;
  uint64_t file_bytes_peak;  // the most that the files ever took
  uint64_t bytes_written;    // to files, by whatever cause
  uint64_t mapped_rows;      // read from the page cache's pages
  uint64_t read_requests;    // to files, neighbours being read at once
  uint64_t bytes_read;
  uint64_t compacted_files;
  uint64_t moved_rows;
  uint64_t damaged_records;      // seen by compaction
  std::string compaction_error;  // that had no caller to go to; empty once compaction went well
};

// Thread-safe but for the constructor, recover(), start_compaction() and close(), which are the owner's.
class SsdHashTier final : public Tier {
 public:
  // Takes `directory` (made where it is missing) for itself alone; each tier has its own. Files of a
  // killed process that weren't to be kept are removed; kept ones stay, for recover().
  // Throws Error(kInvalidArgument) for options that make no sense; Error(kStorage) where the directory
  // can't be used, holds files of another format, version, layout, variable or optimizer, or is in use; and
  // where the I/O that is asked for can't be had.
  SsdHashTier(std::string variable_name, const RowLayout& layout, std::string directory,
              const SsdHashOptions& options = {});
  ~SsdHashTier() override;

  void write(const RowBatch& rows, std::span<Slot> slots) override;
  void read_rows(std::span<const Place> places, RowPart part, RowBatch& rows,
                 std::vector<DamagedRow>& damaged) const override;
  uint64_t reused_places() const override { return reused_places_.load(std::memory_order_acquire); }
  // Only counts: safe and cheap under the index's locks. The space comes back by compact().
  void erase(std::span<const Place> places) override;
  TierStats stats() const override;

  bool keeps_rows() const override { return options_.keep_files; }
  void bury(std::span<const int64_t> keys) override;
  // Where files are kept, to be called before anything is written even if there are none.
  RecoveryReport recover(const Found& found) override;
  // False where the directory holds rows that must be recovered before anything is written.
  bool is_ready() const { return unrecovered_.empty(); }

  // Rows may be moved from now on. Without it nothing is compacted. `relocator` must stay until close().
  void start_compaction(Relocator& relocator) override;

  // To be called after erasures, without locks: brings the files within their bound, or, with a thread of
  // its own, has that done. Costs two loads where there is nothing to do. write() does the same for itself.
  void compact() override;

  // Returns when the files are within their bound.
  void drain() override;

  void flush() override;

  // Removes the files, or writes everything out where they are to be kept; throws Error(kStorage) if that
  // fails, and may be called again. Later calls of other methods throw Error(kClosed).
  void close() override;

  SsdHashStats detailed_stats() const;

 private:
  struct ReadContext;
  struct OldFile {
    std::string path;
    ssd_hash::FileHeader header;
  };

  // The end of the log. Those from publish_view() on REQUIRE log_mutex_, which `lock` holds; it's let go of
  // only to wait for relocations.
  std::string path_of(uint64_t number) const;
  int open_flags() const;
  // O_DIRECT is there to spare the page cache, and who names a scheme means it.
  bool maps_files() const { return options_.io_scheme == ssd_hash::IoScheme::kAuto && !options_.direct; }
  std::shared_ptr<const ssd_hash::View> view() const;
  void publish_view();   // after buffer_ changed
  void publish_files();  // after log_ changed
  uint32_t take_file_index();
  void open_file();
  void open_buffer();
  void write_header(ssd_hash::LogFile& file);
  ssd_hash::Buffer& writable_buffer(std::unique_lock<std::mutex>& lock);
  void flush_buffer(std::unique_lock<std::mutex>& lock);
  void seal_active_file(std::unique_lock<std::mutex>& lock);
  void add_file_bytes(uint64_t bytes);
  void check_usable() const;
  // Appends records until `count` are done or the buffer is full, making room first; says how many.
  template <class Fill>
  size_t append_some(size_t count, const Fill& fill);
  Slot slot_of(const ssd_hash::LogFile& file, uint32_t record) const {
    return static_cast<Slot>(file.index * records_per_file_ + record);
  }
  // False where it was dropped before; otherwise live_rows_ is left to the caller.
  bool drop(const ssd_hash::View& seen, Slot slot);

  // reading
  std::unique_ptr<ReadContext> take_context() const;
  void give_back(std::unique_ptr<ReadContext> context) const;
  bool decode(const ssd_hash::LogFile& file, uint32_t record, const std::byte* bytes, size_t available,
              const Place& place, RowPart part, RowBatch& rows, size_t row) const;

  // compaction.cc
  uint64_t live_bytes() const;
  bool is_over_soft_bound(uint64_t more_bytes) const;
  bool is_over_hard_bound(uint64_t more_bytes) const;
  void make_room();
  void compact_while_over_soft_bound(uint64_t more_bytes, size_t max_files, bool wait);
  void compact_noting_errors(uint64_t more_bytes, size_t max_files);
  std::shared_ptr<ssd_hash::LogFile> next_to_compact(std::span<const uint64_t> taken, uint64_t last_number);
  void move_live_rows(ssd_hash::LogFile& victim, bool carry_tombstones);
  void move_records(ssd_hash::LogFile& victim, const std::vector<std::byte>& records,
                    std::span<const Slot> from);
  void remove_emptied_files();
  void wake_compaction_thread();
  void run_compaction_thread();
  void stop_compaction_thread();

  // recovery.cc
  void open_directory();
  void check_direct_io();
  void find_old_files();
  void open_note();
  template <class Visit>
  void scan(const ssd_hash::LogFile& file, uint32_t records, const Visit& visit) const;

  const std::string variable_name_;
  const RowLayout layout_;
  const std::string directory_;
  const SsdHashOptions options_;
  ssd_hash::FileCalls& calls_;
  const ssd_hash::RecordShape record_shape_;
  const size_t record_bytes_;  // record_shape_.bytes
  const size_t flush_bytes_;   // gathered before they go out
  const ssd_hash::IoScheme io_scheme_;
  std::string io_scheme_reason_;
  uint64_t records_per_file_;  // of slots; set by the constructor
  uint32_t max_files_;

  bool made_directory_ = false;
  int directory_descriptor_ = -1;  // holds the lock on the directory
  std::vector<OldFile> unrecovered_;
  std::unique_ptr<ssd_hash::SequenceNote> note_;  // null where no files are kept, nor were
  std::atomic<bool> closed_{false};

  // Guards the end of the log: what is appended, and which files there are. Held while a buffer is
  // written out, never while a file is read or relocate() runs.
  mutable std::mutex log_mutex_;
  std::condition_variable relocated_;
  std::deque<std::shared_ptr<ssd_hash::LogFile>> log_;  // guarded by log_mutex_; oldest first
  std::shared_ptr<ssd_hash::LogFile> active_;           // guarded by log_mutex_; the last of log_, or null
  std::shared_ptr<ssd_hash::Buffer> buffer_;            // guarded by log_mutex_; of active_, or null
  std::shared_ptr<ssd_hash::BufferMemory> buffer_memory_;
  uint64_t next_sequence_ = 1;         // guarded by log_mutex_
  uint64_t next_number_ = 1;           // guarded by log_mutex_
  uint32_t next_index_ = 0;            // guarded by log_mutex_; indexes from here on were never used
  std::deque<uint32_t> free_indexes_;  // guarded by log_mutex_; the longest free first
  std::shared_ptr<const ssd_hash::Files> files_;  // guarded by log_mutex_; log_ by index

  // Innermost of all: guards the pointer, not what it points to.
  mutable std::mutex view_mutex_;
  std::shared_ptr<const ssd_hash::View> view_;  // guarded by view_mutex_

  std::atomic<uint64_t> reused_places_{0};
  std::atomic<uint64_t> live_rows_{0};
  std::atomic<uint64_t> file_bytes_{0};
  std::atomic<uint64_t> file_bytes_peak_{0};

  // One compaction at a time. A flag rather than a held mutex, since relocate() runs meanwhile.
  mutable std::mutex compaction_mutex_;
  std::condition_variable compaction_ended_;
  bool compacting_ = false;       // guarded by compaction_mutex_
  std::string compaction_error_;  // guarded by compaction_mutex_
  std::atomic<Relocator*> relocator_{nullptr};

  std::thread compaction_thread_;
  std::mutex wake_mutex_;
  std::condition_variable wake_;
  bool wanted_ = false;    // guarded by wake_mutex_
  bool stopping_ = false;  // guarded by wake_mutex_

  mutable std::mutex contexts_mutex_;
  mutable std::vector<std::unique_ptr<ReadContext>> contexts_;  // guarded by contexts_mutex_; idle ones

  mutable std::atomic<uint64_t> mapped_rows_{0};
  mutable std::atomic<uint64_t> read_requests_{0};
  mutable std::atomic<uint64_t> bytes_read_{0};
  std::atomic<uint64_t> bytes_written_{0};
  std::atomic<uint64_t> compacted_files_{0};
  std::atomic<uint64_t> moved_rows_{0};
  std::atomic<uint64_t> damaged_records_{0};
};

}  // namespace embstore
