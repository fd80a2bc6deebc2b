// Keeps the files within twice the live records plus one buffer: moves the live records of a file to the end
// of the log and removes the file. The file with the smallest share of live records comes first.
//
// Let L be the bytes of live records, F those of the files, B the buffer (at least eight records), of which
// B/8 is written at once. If F exceeds the soft bound, 7/4 L + B/4, a writer compacts one file for each
// buffer that it writes; if F would exceed the hard bound, 15/8 L + 5/8 B, it compacts before it writes. A
// file is L/8 or B/8 long, whichever is more, so the copies that lie beside their originals for a while fit
// below 2 L + B. Files without live rows that a checkpoint needs come on top: they don't count, aren't
// compacted again, and are removed when the checkpoint is dropped. A live row that a checkpoint needs as well
// may move; the checkpoint keeps its old place.
//
// A file that can't be compacted, because some of its records are damaged or unreadable or because it can't
// be removed, doesn't stop the others: it's set aside for a while, and the bound holds for the rest.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "threads/mutex.h"
#include "tiers/log/record_log.h"
#include "tiers/tier.h"

namespace embstore::log {

// Thread-safe except for start() and stop(), which only the owner calls. Only drain() throws.
class Compaction {
 public:
  Compaction(RecordLog& log, const LogShape& shape);
  ~Compaction() { stop(); }
  Compaction(const Compaction&) = delete;
  Compaction& operator=(const Compaction&) = delete;

  // Nothing is compacted before this call. `relocator` must live until stop().
  void start(Relocator& relocator);
  void stop();

  // Makes room for another buffer, before it's written.
  void make_room();
  // Compacts after erasures. Costs two loads if there is nothing to do.
  void compact();
  // Returns when the files are within their bound. Throws Error(kStorage), which says what couldn't be done,
  // once for each problem.
  void drain();
  // Removes the files that no checkpoint and no live row needs, after a checkpoint was dropped. Moves
  // nothing, and doesn't wait for a compaction that is under way: that one removes the files, or the next
  // does.
  void remove_unneeded();

  // The right to compact, which one thread has at a time: a thread that has it and doesn't compact keeps rows
  // from being moved. REQUIRES: the thread holds no lock that relocate() takes, and writes nothing to the
  // tier meanwhile.
  class Turn {
   public:
    // With `wait`, waits while another thread has the turn; without, goes without it.
    Turn(Compaction& compaction, bool wait);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const { return is_held_; }

   private:
    Compaction& compaction_;
    bool is_held_ = false;
  };

  uint64_t compacted_files() const { return compacted_files_.load(std::memory_order_relaxed); }
  uint64_t damaged_records() const;
  std::string error() const;  // the first problem that persists; else empty

 private:
  using Clock = std::chrono::steady_clock;

  // Why a file is set aside.
  struct Problem {
    std::string text;
    uint64_t file_bytes;
    uint32_t rows_left;  // damaged rows that couldn't be moved
    bool reported;
    Clock::time_point retry_at;
  };
  struct RowsLeft {
    uint32_t count = 0;
    std::string first_reason;
  };

  bool is_over(uint64_t bound, uint64_t more_bytes) const;
  bool is_over_soft_bound(uint64_t more_bytes) const;
  bool is_over_hard_bound(uint64_t more_bytes) const;
  uint64_t bound_file_bytes() const;  // bytes of the files that the bound holds for

  struct Round {
    uint64_t more_bytes = 0;  // bytes that are about to be written
    size_t max_files = SIZE_MAX;
    bool wait = true;             // for another thread's round; else do nothing
    bool retry_problems = false;  // compact files that were set aside, whatever the bound says
  };
  // Compacts the files that exist now, each at most once, as long as they exceed the soft bound.
  void run(const Round& round);
  // Calls work(), and stores the error that it throws.
  template <class Work>
  void note_failure(const Work& work);
  void compact_files(const Round& round);
  std::shared_ptr<LogFile> next_victim(std::span<const uint64_t> taken, uint64_t last_number) const;
  // Sets the file aside if some rows stay.
  void move_rows_out(const std::shared_ptr<LogFile>& victim);
  struct Moving;
  void move_records(LogFile& victim, const Moving& moving, RowsLeft& left);
  void remove_emptied_files();

  void set_aside(const LogFile& file, std::string text, uint32_t rows_left);
  void forget_problem(uint64_t file_number);
  bool has_problem(const LogFile& file) const;
  bool is_set_aside(const LogFile& file) const;
  bool retry_all();  // false if no problem is known
  void update_set_aside_bytes() REQUIRES(problems_mutex_);

  void wake_thread();
  void run_thread();

  RecordLog& log_;
  const LogShape& shape_;
  const bool has_thread_;
  std::atomic<Relocator*> relocator_{nullptr};

  // A flag instead of a held mutex, since relocate() runs meanwhile. No lock of this class is held while
  // another one, or the log's, is taken.
  Mutex turn_mutex_;
  Condition turn_ended_;
  bool compacting_ GUARDED_BY(turn_mutex_) = false;

  mutable Mutex problems_mutex_;
  std::map<uint64_t, Problem> problems_ GUARDED_BY(problems_mutex_);  // by file number
  std::string failure_ GUARDED_BY(problems_mutex_);  // the error that ended the last compaction, if any
  bool failure_reported_ GUARDED_BY(problems_mutex_) = false;
  std::atomic<uint64_t> set_aside_bytes_{0};
  std::atomic<Clock::rep> next_retry_{0};

  std::thread thread_;
  Mutex wake_mutex_;
  Condition wake_;
  bool is_requested_ GUARDED_BY(wake_mutex_) = false;
  bool stopping_ GUARDED_BY(wake_mutex_) = false;

  std::atomic<uint64_t> compacted_files_{0};
  std::atomic<uint64_t> moved_damaged_records_{0};
};

}  // namespace embstore::log
