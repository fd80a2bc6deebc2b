#include "tiers/ssd_hash/compaction.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "access/safe_point.h"
#include "errors/error.h"
#include "tiers/ssd_hash/record_scan.h"

namespace embstore::ssd_hash {
namespace {

constexpr auto kSetAsideFor = std::chrono::seconds(5);

}  // namespace

// Held for a whole compaction. False where another is under way and one doesn't wait for it.
Compaction::Turn::Turn(Compaction& compaction, bool wait) : compaction_(compaction) {
  const MutexLock lock(compaction_.turn_mutex_);
  if (compaction_.compacting_ && !wait) return;
  while (compaction_.compacting_) compaction_.turn_ended_.wait(compaction_.turn_mutex_);
  compaction_.compacting_ = mine_ = true;
}

Compaction::Turn::~Turn() {
  if (!mine_) return;
  const MutexLock lock(compaction_.turn_mutex_);
  compaction_.compacting_ = false;
  compaction_.turn_ended_.notify_all();
}

Compaction::Compaction(Log& log, const LogShape& shape, CompactionMode mode)
    : log_(log), shape_(shape), mode_(mode) {}

void Compaction::start(Relocator& relocator) {
  relocator_.store(&relocator, std::memory_order_release);
  if (mode_ == CompactionMode::kOwnThread && !thread_.joinable())
    thread_ = std::thread([this] { run_thread(); });
}

// -- when -------------------------------------------------------------------------------------------------

uint64_t Compaction::bound_file_bytes() const {
  uint64_t bytes = log_.file_bytes();
  if (shape_.keeps == Keeps::kCheckpoints) bytes -= std::min(bytes, log_.held_bytes());
  const uint64_t aside = set_aside_bytes_.load(std::memory_order_relaxed);
  if (aside == 0 || Clock::now().time_since_epoch().count() >= next_retry_.load(std::memory_order_relaxed)) {
    return bytes;
  }
  return bytes - std::min(bytes, aside);
}

// First with all files, which costs less to ask.
bool Compaction::is_over(uint64_t bound, uint64_t more_bytes) const {
  return log_.file_bytes() + more_bytes > bound && bound_file_bytes() + more_bytes > bound;
}

bool Compaction::is_over_soft_bound(uint64_t more_bytes) const {
  return is_over(log_.live_bytes() / 4 * 7 + 2 * shape_.flush_bytes, more_bytes);
}

bool Compaction::is_over_hard_bound(uint64_t more_bytes) const {
  return is_over(log_.live_bytes() / 8 * 15 + 5 * shape_.flush_bytes, more_bytes);
}

void Compaction::make_room() {
  // A buffer with its last record and block, and the next file's header.
  const uint64_t more_bytes = shape_.flush_bytes + shape_.record.bytes + 2 * kBlockBytes;
  if (!is_over_soft_bound(more_bytes)) return;
  if (is_over_hard_bound(more_bytes)) {
    run({.more_bytes = more_bytes});
  } else if (mode_ == CompactionMode::kOwnThread) {
    wake_thread();
  } else {
    run({.more_bytes = more_bytes, .max_files = 1, .wait = false});
  }
}

void Compaction::compact() {
  if (!is_over_soft_bound(0)) return;
  if (mode_ == CompactionMode::kOwnThread) {
    wake_thread();
  } else {
    run({.wait = false});
  }
}

void Compaction::drain() {
  if (retry_all() || is_over_soft_bound(0)) run({.retry_problems = true});
  std::string untold;
  size_t others = 0;
  const auto tell = [&](const std::string& text, bool& told) {
    if (text.empty() || std::exchange(told, true)) return;
    if (untold.empty()) {
      untold = text;
    } else {
      ++others;
    }
  };
  {
    const MutexLock lock(problems_mutex_);
    tell(failure_, failure_told_);
    for (auto& [number, problem] : problems_) tell(problem.text, problem.told);
  }
  if (untold.empty()) return;
  if (others > 0) untold += " (and " + std::to_string(others) + " more files)";
  throw Error(ErrorKind::kStorage, untold);
}

void Compaction::run(const Round& round) {
  if (relocator_.load(std::memory_order_acquire) == nullptr) return;
  const Turn turn(*this, round.wait);
  if (!turn) return;
  note_failure([&] { compact_files(round); });
}

void Compaction::remove_unneeded() {
  const Turn turn(*this, /*wait=*/false);
  if (turn) note_failure([&] { remove_emptied_files(); });
}

template <class Work>
void Compaction::note_failure(const Work& work) {
  std::string failure;
  try {
    work();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const MutexLock lock(problems_mutex_);
  if (failure != failure_) failure_told_ = false;
  failure_ = std::move(failure);
}

void Compaction::compact_files(const Round& round) {
  forget_gone_files();
  if (shape_.keeps == Keeps::kCheckpoints) remove_emptied_files();  // what dropped checkpoints needed
  uint64_t last_number = 0;
  for (const auto& file : log_.files()) last_number = file->number;
  std::vector<uint64_t> taken;  // their numbers
  if (round.retry_problems) {
    for (const auto& file : log_.files()) {
      if (!has_problem(*file)) continue;
      taken.push_back(file->number);
      settle(file, move_live_rows(*file));
    }
    if (!taken.empty()) remove_emptied_files();
  }
  while (taken.size() < round.max_files && is_over_soft_bound(round.more_bytes) && !is_blocked()) {
    const std::shared_ptr<LogFile> victim = next_victim(taken, last_number);
    if (victim == nullptr) break;
    log_.seal(*victim);
    taken.push_back(victim->number);
    settle(victim, move_live_rows(*victim));
    compacted_files_.fetch_add(1, std::memory_order_relaxed);
    remove_emptied_files();
  }
}

// Where files aren't to be kept, the one that wins most for what is moved: rows that are seldom asked for lie
// in the oldest files, nearly all of them live.
std::shared_ptr<LogFile> Compaction::next_victim(std::span<const uint64_t> taken,
                                                 uint64_t last_number) const {
  std::shared_ptr<LogFile> best;
  double best_live_share = 0;
  for (const auto& file : log_.files()) {
    if (file->number > last_number || std::find(taken.begin(), taken.end(), file->number) != taken.end() ||
        is_set_aside(*file) || (file->is_held() && file->live_rows() == 0)) {
      continue;
    }
    if (shape_.keeps == Keeps::kFiles) return file;
    const double live_share = static_cast<double>(file->live_rows()) / std::max(1u, file->records.load());
    if (best == nullptr || live_share < best_live_share) {
      best = file;
      best_live_share = live_share;
    }
  }
  return best;
}

// -- moving rows ------------------------------------------------------------------------------------------

Compaction::RowsLeft Compaction::move_live_rows(LogFile& victim) {
  RecordScan scan(victim, shape_, shape_.flush_bytes);
  RowsLeft left;
  std::vector<std::byte> records;
  std::vector<Slot> from;
  const uint32_t end = victim.records;
  for (uint32_t first = 0; first < end && victim.live_rows() > 0; first += scan.records_a_chunk()) {
    const uint32_t last = first + std::min(end - first, scan.records_a_chunk());
    uint32_t wanted = first;
    while (wanted < last && !victim.is_live(wanted)) ++wanted;
    if (wanted == last) continue;
    records.clear();
    from.clear();
    scan.visit(wanted, last, [&](const ScannedRecord& record) {
      if (!victim.is_live(record.number)) return;
      if (record.available == shape_.record.bytes) {
        records.insert(records.end(), record.bytes, record.bytes + record.available);
        from.push_back(shape_.slot_of(victim, record.number));
      } else if (left.count++ == 0) {
        left.first_reason = shape_.name_of(victim, record.number) +
                            (record.failure.empty() ? " is cut off: the file was truncated"
                                                    : " can't be read: " + record.failure);
      }
    });
    move_records(victim, records, from, left);
  }
  bytes_read_.fetch_add(scan.bytes_read(), std::memory_order_relaxed);
  return left;
}

// Appends copies of `records` of `victim`, sequence numbers included, and has the index refer to them.
void Compaction::move_records(LogFile& victim, std::span<const std::byte> records, std::span<const Slot> from,
                              RowsLeft& left) {
  Relocator& relocator = *relocator_.load(std::memory_order_acquire);
  const size_t bytes = shape_.record.bytes;
  std::vector<Relocator::Relocation> relocations;
  for (size_t done = 0; done < from.size();) {
    const Log::Copies copies = log_.append_copies(records.subspan(done * bytes));
    relocations.clear();
    for (uint32_t i = 0; i < copies.count; ++i) {
      relocations.push_back({header_of(copies.bytes + i * bytes).key, from[done + i], copies.first + i});
    }
    std::vector<uint32_t> refused;
    refused.reserve(copies.count);
    {
      // Lets the buffer go out again, also where relocate() throws in the middle.
      struct End {
        Compaction& compaction;
        LogFile& victim;
        const Log::Copies& copies;
        const std::vector<Relocator::Relocation>& relocations;
        std::vector<uint32_t>& refused;
        ~End() {
          for (uint32_t i = 0; i < copies.count; ++i) {
            if (!relocations[i].done) {
              refused.push_back(i);
              continue;
            }
            victim.clear_live(compaction.shape_.record_of(relocations[i].from));
            compaction.moved_rows_.fetch_add(1, std::memory_order_relaxed);
          }
          compaction.log_.end_copies(copies, refused);
        }
      };
      const End end{*this, victim, copies, relocations, refused};
      relocator.relocate(relocations);
      // A damaged row moves as it is, so that whoever reads it is told; its key may be right.
      for (uint32_t i = 0; i < copies.count; ++i) {
        if (is_whole(copies.bytes + i * bytes, shape_.record)) continue;
        const uint32_t record = shape_.record_of(from[done + i]);
        if (relocations[i].done) {
          moved_damaged_records_.fetch_add(1, std::memory_order_relaxed);
        } else if (victim.is_live(record) && left.count++ == 0) {
          left.first_reason = shape_.name_of(victim, record) + " is damaged: its checksum is wrong";
        }
      }
    }
    done += copies.count;
  }
}

void Compaction::settle(const std::shared_ptr<LogFile>& victim, const RowsLeft& left) {
  if (left.count == 0) {
    forget_problem(victim->number);
    return;
  }
  std::string text = left.first_reason;
  if (left.count > 1) text += " (and " + std::to_string(left.count - 1) + " more rows of that file)";
  bool blocks_others = false;
  if (shape_.keeps == Keeps::kFiles) {
    // The file stays while younger ones go, so nothing may be left in it that they supersede.
    try {
      log_.secure_newer_rows();
      log_.void_dead_records(*victim);
    } catch (const Error& error) {
      blocks_others = true;
      text += std::string("; and ") + error.what();
    }
  }
  set_aside(*victim, std::move(text), left.count, blocks_others);
}

// The oldest first and, where files are kept, no later one before an earlier one. A file that keeps some rows
// (their owner is about to erase them, or has not told the index of them yet) stays for the next round.
void Compaction::remove_emptied_files() {
  std::vector<std::shared_ptr<LogFile>> emptied;
  for (const auto& file : log_.files()) {
    if (file->sealed && file->live_rows() == 0 && !file->is_held() && !is_set_aside(*file)) {
      emptied.push_back(file);
    } else if (shape_.keeps == Keeps::kFiles && !is_set_aside(*file)) {
      break;
    }
  }
  if (emptied.empty()) return;
  // Rows between two checkpoints needn't outlive the process.
  if (shape_.keeps != Keeps::kCheckpoints) log_.secure_newer_rows();
  const std::vector<Log::NotRemoved> stay = log_.remove(emptied);
  for (const auto& file : emptied) forget_problem(file->number);
  for (const Log::NotRemoved& not_removed : stay) {
    set_aside(*not_removed.file, not_removed.reason, 0, /*blocks_others=*/shape_.keeps == Keeps::kFiles);
  }
}

// -- files that are set aside -----------------------------------------------------------------------------

void Compaction::set_aside(const LogFile& file, std::string text, uint32_t rows_left, bool blocks_others) {
  const MutexLock lock(problems_mutex_);
  Problem& problem = problems_[file.number];
  const bool told = problem.told && problem.text == text;
  problem = {
      std::move(text), file.written_bytes, rows_left, blocks_others, told, Clock::now() + kSetAsideFor};
  update_set_aside_bytes();
}

void Compaction::forget_problem(uint64_t file_number) {
  const MutexLock lock(problems_mutex_);
  if (problems_.erase(file_number) > 0) update_set_aside_bytes();
}

void Compaction::forget_gone_files() {
  const std::vector<std::shared_ptr<LogFile>> files = log_.files();
  const MutexLock lock(problems_mutex_);
  if (problems_.empty()) return;
  std::erase_if(problems_, [&](const auto& problem) {
    return std::none_of(files.begin(), files.end(),
                        [&](const auto& file) { return file->number == problem.first; });
  });
  update_set_aside_bytes();
}

bool Compaction::has_problem(const LogFile& file) const {
  const MutexLock lock(problems_mutex_);
  return problems_.contains(file.number);
}

bool Compaction::is_set_aside(const LogFile& file) const {
  const MutexLock lock(problems_mutex_);
  const auto problem = problems_.find(file.number);
  return problem != problems_.end() && Clock::now() < problem->second.retry_at &&
         (file.live_rows() > 0 || problem->second.rows_left == 0);
}

bool Compaction::is_blocked() const {
  const MutexLock lock(problems_mutex_);
  const auto now = Clock::now();
  return std::any_of(problems_.begin(), problems_.end(), [&](const auto& problem) {
    return problem.second.blocks_others && now < problem.second.retry_at;
  });
}

bool Compaction::retry_all() {
  const MutexLock lock(problems_mutex_);
  for (auto& [number, problem] : problems_) problem.retry_at = Clock::now();
  update_set_aside_bytes();
  return !failure_.empty() || !problems_.empty();
}

void Compaction::update_set_aside_bytes() {
  const auto now = Clock::now();
  uint64_t bytes = 0;
  auto next = Clock::time_point::max();
  for (const auto& [number, problem] : problems_) {
    if (problem.retry_at <= now) continue;
    bytes += problem.file_bytes;
    next = std::min(next, problem.retry_at);
  }
  next_retry_.store(next.time_since_epoch().count(), std::memory_order_relaxed);
  set_aside_bytes_.store(bytes, std::memory_order_relaxed);
}

uint64_t Compaction::damaged_records() const {
  uint64_t records = moved_damaged_records_.load(std::memory_order_relaxed);
  const MutexLock lock(problems_mutex_);
  for (const auto& [number, problem] : problems_) records += problem.rows_left;
  return records;
}

std::string Compaction::error() const {
  const MutexLock lock(problems_mutex_);
  if (!failure_.empty() || problems_.empty()) return failure_;
  return problems_.begin()->second.text;
}

// -- a thread of its own ----------------------------------------------------------------------------------

void Compaction::wake_thread() {
  const MutexLock lock(wake_mutex_);
  wanted_ = true;
  wake_.notify_one();
}

void Compaction::run_thread() {
  for (;;) {
    {
      const MutexLock lock(wake_mutex_);
      while (!wanted_ && !stopping_) wake_.wait(wake_mutex_);
      if (stopping_) return;
      wanted_ = false;
    }
    run({});
    safe_point();
  }
}

void Compaction::stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(wake_mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

}  // namespace embstore::ssd_hash
