// Keeps the files within twice the live records plus one buffer, by moving what is live in a file to the end
// of the log and removing the file: the one of which the least share is live.
//
// Let L be the bytes of live records, F those of the files, B the buffer (at least eight records), of which
// B/8 goes out at once. Writers start to compact where F passes the soft bound, 7/4 L + B/4, a file for
// each buffer; where F would pass the hard bound, 15/8 L + 5/8 B, they compact before they write. A file
// is L/8 or B/8 long, whichever is more, so the copies that lie beside their originals for a while fit
// below 2 L + B. Files without live rows that a checkpoint needs come on top: they don't count, nor are they
// compacted again, and go when it's dropped. Live rows that a checkpoint needs as well may move; it keeps the place
// where they were.
//
// A file that can't be compacted, since records in it are damaged or unreadable, or since it can't be
// removed, concerns nobody else: it's set aside for a while, and the bound holds for the others.
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

// Thread-safe but for start() and stop(), which are the owner's. Nothing but drain() throws.
class Compaction {
 public:
  Compaction(RecordLog& log, const LogShape& shape);
  ~Compaction() { stop(); }
  Compaction(const Compaction&) = delete;
  Compaction& operator=(const Compaction&) = delete;

  // Without it nothing is compacted. `relocator` must stay until stop().
  void start(Relocator& relocator);
  void stop();

  // Before another buffer is written out.
  void make_room();
  // After erasures. Costs two loads where there is nothing to do.
  void compact();
  // Returns when the files are within their bound. Throws Error(kStorage) that says what couldn't be done,
  // once for each that wasn't told of before.
  void drain();
  // After a checkpoint was dropped: files that nobody needs go. Moves nothing, and doesn't wait for a compaction that is
  // under way: that one removes them, or the next does.
  void remove_unneeded();

  // One thread's at a time, which alone may compact meanwhile: whoever doesn't keeps rows from being moved. REQUIRES: no
  // lock is held that relocate() takes; and who has it writes nothing to the tier.
  class Turn {
   public:
    // wait: for that of another, rather than go without.
    Turn(Compaction& compaction, bool wait);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const { return mine_; }

   private:
    Compaction& compaction_;
    bool mine_ = false;
  };

  uint64_t compacted_files() const { return compacted_files_.load(std::memory_order_relaxed); }
  uint64_t damaged_records() const;
  std::string error() const;  // the first that still holds; else empty

 private:
  using Clock = std::chrono::steady_clock;

  // Why a file is set aside.
  struct Problem {
    std::string text;
    uint64_t file_bytes;
    uint32_t rows_left;  // damaged ones that couldn't be moved
    bool told;
    Clock::time_point retry_at;
  };
  struct RowsLeft {
    uint32_t count = 0;
    std::string first_reason;
  };

  bool is_over(uint64_t bound, uint64_t more_bytes) const;
  bool is_over_soft_bound(uint64_t more_bytes) const;
  bool is_over_hard_bound(uint64_t more_bytes) const;
  uint64_t bound_file_bytes() const;  // of the files that the bound holds for

  struct Round {
    uint64_t more_bytes = 0;  // that are about to be written
    size_t max_files = SIZE_MAX;
    bool wait = true;             // for a round that is under way, rather than leave it at that
    bool retry_problems = false;  // of files that were set aside, whatever the bound says
  };
  // As long as the soft bound is passed, of the files that there are now, each once.
  void run(const Round& round);
  // Notes what it throws.
  template <class Work>
  void note_failure(const Work& work);
  void compact_files(const Round& round);
  std::shared_ptr<LogFile> next_victim(std::span<const uint64_t> taken, uint64_t last_number) const;
  // Sets it aside where some stay.
  void move_rows_out(const std::shared_ptr<LogFile>& victim);
  struct Moving;
  void move_records(LogFile& victim, const Moving& moving, RowsLeft& left);
  void remove_emptied_files();

  void set_aside(const LogFile& file, std::string text, uint32_t rows_left);
  void forget_problem(uint64_t file_number);
  bool has_problem(const LogFile& file) const;
  bool is_set_aside(const LogFile& file) const;
  bool retry_all();  // false where no problem is known
  void update_set_aside_bytes() REQUIRES(problems_mutex_);

  void wake_thread();
  void run_thread();

  RecordLog& log_;
  const LogShape& shape_;
  const bool has_thread_;
  std::atomic<Relocator*> relocator_{nullptr};

  // A flag rather than a held mutex, since relocate() runs meanwhile. Of the locks here none is held while
  // another, or the log's, is taken.
  Mutex turn_mutex_;
  Condition turn_ended_;
  bool compacting_ GUARDED_BY(turn_mutex_) = false;

  mutable Mutex problems_mutex_;
  std::map<uint64_t, Problem> problems_ GUARDED_BY(problems_mutex_);  // by file number
  std::string failure_ GUARDED_BY(problems_mutex_);  // of no one file: what ended the last compaction
  bool failure_told_ GUARDED_BY(problems_mutex_) = false;
  std::atomic<uint64_t> set_aside_bytes_{0};
  std::atomic<Clock::rep> next_retry_{0};

  std::thread thread_;
  Mutex wake_mutex_;
  Condition wake_;
  bool wanted_ GUARDED_BY(wake_mutex_) = false;
  bool stopping_ GUARDED_BY(wake_mutex_) = false;

  std::atomic<uint64_t> compacted_files_{0};
  std::atomic<uint64_t> moved_damaged_records_{0};
};

}  // namespace embstore::log
