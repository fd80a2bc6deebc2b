#include "tiers/log/compaction.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "errors/error.h"
#include "threads/safe_point.h"
#include "tiers/log/record_scan.h"

namespace embstore::log {
namespace {

constexpr auto kSetAsideFor = std::chrono::seconds(5);

}  // namespace

// Held during a whole compaction. Not `is_held_` if another thread has the turn and `wait` is false.
Compaction::Turn::Turn(Compaction& compaction, bool wait) : compaction_(compaction) {
  const MutexLock lock(compaction_.turn_mutex_);
  if (compaction_.compacting_ && !wait) return;
  while (compaction_.compacting_) compaction_.turn_ended_.wait(compaction_.turn_mutex_);
  compaction_.compacting_ = is_held_ = true;
}

Compaction::Turn::~Turn() {
  if (!is_held_) return;
  const MutexLock lock(compaction_.turn_mutex_);
  compaction_.compacting_ = false;
  compaction_.turn_ended_.notify_all();
}

Compaction::Compaction(RecordLog& log, const LogShape& shape)
    : log_(log), shape_(shape), has_thread_(shape.options.compaction == CompactionMode::kOwnThread) {}

void Compaction::start(Relocator& relocator) {
  relocator_.store(&relocator, std::memory_order_release);
  if (has_thread_ && !thread_.joinable()) thread_ = std::thread([this] { run_thread(); });
}

// -- when -------------------------------------------------------------------------------------------------

uint64_t Compaction::bound_file_bytes() const {
  uint64_t bytes = log_.file_bytes();
  bytes -= std::min(bytes, log_.held_bytes());
  const uint64_t aside = set_aside_bytes_.load(std::memory_order_relaxed);
  if (aside == 0 || Clock::now().time_since_epoch().count() >= next_retry_.load(std::memory_order_relaxed)) {
    return bytes;
  }
  return bytes - std::min(bytes, aside);
}

// Tries all files first, which costs less.
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
  // A buffer with its last record and block, and the header of the next file.
  const uint64_t more_bytes = shape_.flush_bytes + shape_.record.stride + 2 * medium::kBlockBytes;
  if (!is_over_soft_bound(more_bytes)) return;
  if (is_over_hard_bound(more_bytes)) {
    run({.more_bytes = more_bytes});
  } else if (has_thread_) {
    wake_thread();
  } else {
    run({.more_bytes = more_bytes, .max_files = 1, .wait = false});
  }
}

void Compaction::compact() {
  if (!is_over_soft_bound(0)) return;
  if (has_thread_) {
    wake_thread();
  } else {
    run({.wait = false});
  }
}

void Compaction::drain() {
  if (retry_all() || is_over_soft_bound(0)) run({.retry_problems = true});
  std::string unreported;
  size_t others = 0;
  const auto report = [&](const std::string& text, bool& reported) {
    if (text.empty() || std::exchange(reported, true)) return;
    if (unreported.empty()) {
      unreported = text;
    } else {
      ++others;
    }
  };
  {
    const MutexLock lock(problems_mutex_);
    report(failure_, failure_reported_);
    for (auto& [number, problem] : problems_) report(problem.text, problem.reported);
  }
  if (unreported.empty()) return;
  if (others > 0) unreported += " (and " + std::to_string(others) + " more files)";
  throw Error(ErrorKind::kStorage, unreported);
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
  if (failure != failure_) failure_reported_ = false;
  failure_ = std::move(failure);
}

void Compaction::compact_files(const Round& round) {
  remove_emptied_files();  // files that only dropped checkpoints needed
  uint64_t last_number = 0;
  for (const auto& file : log_.files()) last_number = file->number;
  std::vector<uint64_t> taken;  // their numbers
  if (round.retry_problems) {
    for (const auto& file : log_.files()) {
      if (!has_problem(*file)) continue;
      taken.push_back(file->number);
      move_rows_out(file);
    }
    if (!taken.empty()) remove_emptied_files();
  }
  while (taken.size() < round.max_files && is_over_soft_bound(round.more_bytes)) {
    const std::shared_ptr<LogFile> victim = next_victim(taken, last_number);
    if (victim == nullptr) break;
    log_.seal(*victim);
    taken.push_back(victim->number);
    move_rows_out(victim);
    compacted_files_.fetch_add(1, std::memory_order_relaxed);
    remove_emptied_files();
  }
}

// Returns the file that frees the most space for the rows moved: the one with the smallest live share. The
// oldest would be worse: it has rows that are seldom asked for, nearly all of them live.
std::shared_ptr<LogFile> Compaction::next_victim(std::span<const uint64_t> taken,
                                                 uint64_t last_number) const {
  std::shared_ptr<LogFile> best;
  double best_live_share = 0;
  for (const auto& file : log_.files()) {
    if (file->number > last_number || std::find(taken.begin(), taken.end(), file->number) != taken.end() ||
        is_set_aside(*file) || (file->rows.has_any() && file->rows.live() == 0)) {
      continue;
    }
    const double live_share = static_cast<double>(file->rows.live()) / std::max(1u, file->records.load());
    if (best == nullptr || live_share < best_live_share) {
      best = file;
      best_live_share = live_share;
    }
  }
  return best;
}

// -- moving rows ------------------------------------------------------------------------------------------

struct Compaction::Moving {
  std::vector<std::byte> records;  // one after another
  std::vector<Slot> from;
  std::vector<std::string> faults;  // empty if the record is whole
};

void Compaction::move_rows_out(const std::shared_ptr<LogFile>& victim) {
  RecordScan scan(*victim, shape_, shape_.flush_bytes);
  RowsLeft left;
  Moving moving;
  const auto is_live = [&](uint32_t record) { return victim->rows.is_live(record); };
  const uint32_t end = victim->records;
  for (uint32_t first = 0; first < end && victim->rows.live() > 0; first += scan.records_a_chunk()) {
    moving.records.clear();
    moving.from.clear();
    moving.faults.clear();
    const uint32_t last = first + std::min(end - first, scan.records_a_chunk());
    scan.visit(first, last, is_live, [&](const ScannedRecord& record) {
      std::string fault = fault_of(record, /*all_floats=*/true, shape_.record);
      if (record.bytes == nullptr) {
        if (left.count++ == 0) left.first_reason = shape_.name_of(*victim, record.number) + " " + fault;
        return;
      }
      moving.records.insert(moving.records.end(), record.bytes, record.bytes + shape_.record.stride);
      moving.from.push_back(shape_.slot_of(*victim, record.number));
      moving.faults.push_back(std::move(fault));
    });
    move_records(*victim, moving, left);
  }
  if (left.count == 0) {
    // A file that can be removed now keeps its problem until it's removed.
    if (victim->rows.live() > 0 || victim->rows.has_any()) forget_problem(victim->number);
    return;
  }
  if (left.count > 1) {
    left.first_reason += " (and " + std::to_string(left.count - 1) + " more rows of that file)";
  }
  set_aside(*victim, std::move(left.first_reason), left.count);
}

// Appends copies and makes the index refer to them. A damaged row is moved as it is, so that its reader gets
// an error; its key may be right.
void Compaction::move_records(LogFile& victim, const Moving& moving, RowsLeft& left) {
  Relocator& relocator = *relocator_.load(std::memory_order_acquire);
  const size_t stride = shape_.record.stride;
  const std::span<const std::byte> records(moving.records);
  std::vector<Relocator::Relocation> relocations;
  relocations.reserve(moving.from.size());
  for (size_t done = 0; done < moving.from.size();) {
    const RecordLog::Copies copies =
        log_.append_copies(records.subspan(done * stride), std::span(moving.from).subspan(done));
    relocations.clear();
    for (uint32_t i = 0; i < copies.count; ++i) {
      const int64_t key = header_of(&records[(done + i) * stride]).key;
      relocations.push_back({key, moving.from[done + i], copies.first + i});
    }
    const auto end = [&] {
      for (const Relocator::Relocation& row : relocations) {
        if (row.done) victim.rows.remove_live(shape_.record_of(row.from));
      }
      log_.end_copies(copies, relocations);
    };
    try {
      relocator.relocate(relocations);
    } catch (...) {
      end();  // so that the buffer can be written
      throw;
    }
    end();
    for (uint32_t i = 0; i < copies.count; ++i) {
      const std::string& fault = moving.faults[done + i];
      if (fault.empty()) continue;
      const uint32_t record = shape_.record_of(moving.from[done + i]);
      if (relocations[i].done) {
        moved_damaged_records_.fetch_add(1, std::memory_order_relaxed);
      } else if (victim.rows.is_live(record) && left.count++ == 0) {
        left.first_reason = shape_.name_of(victim, record) + " " + fault;
      }
    }
    done += copies.count;
  }
}

// Removes files without live rows. A file that keeps some (their owner is about to erase them, or hasn't put
// them into the index yet) stays for the next round.
void Compaction::remove_emptied_files() {
  std::vector<std::shared_ptr<LogFile>> emptied;
  for (const auto& file : log_.files()) {
    if (file->sealed && file->rows.live() == 0 && !file->rows.has_any() && !is_set_aside(*file)) {
      emptied.push_back(file);
    }
  }
  if (emptied.empty()) return;
  for (const RecordLog::Removal& removal : log_.remove(emptied)) {
    if (removal.failure.empty()) {
      forget_problem(removal.file->number);
    } else {
      set_aside(*removal.file, removal.failure, 0);
    }
  }
}

// -- files that are set aside -----------------------------------------------------------------------------

void Compaction::set_aside(const LogFile& file, std::string text, uint32_t rows_left) {
  const MutexLock lock(problems_mutex_);
  Problem& problem = problems_[file.number];
  const bool reported = problem.reported && problem.text == text;
  problem = {std::move(text), file.written_bytes, rows_left, reported, Clock::now() + kSetAsideFor};
  update_set_aside_bytes();
}

void Compaction::forget_problem(uint64_t file_number) {
  const MutexLock lock(problems_mutex_);
  if (problems_.erase(file_number) > 0) update_set_aside_bytes();
}

bool Compaction::has_problem(const LogFile& file) const {
  const MutexLock lock(problems_mutex_);
  return problems_.contains(file.number);
}

bool Compaction::is_set_aside(const LogFile& file) const {
  const MutexLock lock(problems_mutex_);
  const auto problem = problems_.find(file.number);
  return problem != problems_.end() && Clock::now() < problem->second.retry_at &&
         (file.rows.live() > 0 || problem->second.rows_left == 0);
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
  is_requested_ = true;
  wake_.notify_one();
}

void Compaction::run_thread() {
  for (;;) {
    {
      const MutexLock lock(wake_mutex_);
      while (!is_requested_ && !stopping_) wake_.wait(wake_mutex_);
      if (stopping_) return;
      is_requested_ = false;
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

}  // namespace embstore::log
