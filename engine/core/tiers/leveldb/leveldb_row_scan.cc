#include "tiers/leveldb/leveldb_row_scan.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <thread>

#include "threads/mutex.h"
#include "tiers/leveldb/leveldb_slots.h"

namespace embstore {
namespace {

constexpr size_t kRowsAVisit = 4096;
constexpr size_t kPiecesAThread = 4;  // so that none waits long for the last

}  // namespace

// The keys from one boundary to the next.
class LevelDbRowScan::Piece {
 public:
  Piece(const LevelDbRowScan& scan, const CheckpointFollower::Restored& visit, LevelDbScanned& scanned)
      : scan_(scan), visit_(visit), scanned_(scanned), next_dead_(scan.checkpoints_.size(), 0) {}

  void read(const std::string& first, const std::string& end) {
    if (const std::optional<Place> from = place_of_row_key(first)) {
      for (size_t c = 0; c < next_dead_.size(); ++c) {
        const std::vector<Place>& dead = scan_.checkpoints_[c].dead;
        next_dead_[c] = static_cast<size_t>(std::lower_bound(dead.begin(), dead.end(), *from, comes_before) -
                                            dead.begin());
      }
    }
    scan_.database_.scan(first, end,
                         [this](std::string_view key, std::string_view value) { see(key, value); });
    tell();
  }

 private:
  void see(std::string_view key, std::string_view value) {
    const std::optional<Place> place = place_of_row_key(key);
    if (!place)
      scan_.database_.fail("is damaged: the key of a row has " + std::to_string(key.size()) + " bytes");
    uint64_t sequence = 0;
    RowHeader header{};
    const bool whole = scan_.value_.decode(value, sequence, header) && header.key == place->key &&
                       leveldb_slot(sequence) == place->slot;
    if (!whole) sequence = 0;  // what isn't known to be younger than a checkpoint may be one of its rows
    scanned_.sequence_end = std::max(scanned_.sequence_end, sequence + 1);

    std::optional<CheckpointSpan> needed_by;
    bool is_live = false;
    for (size_t c = 0; c < scan_.checkpoints_.size(); ++c) {
      const LevelDbScannedCheckpoint& checkpoint = scan_.checkpoints_[c];
      if (sequence >= checkpoint.is.sequence_end || is_dead(*place, c)) continue;
      const uint64_t number = checkpoint.is.name.number;
      if (!needed_by) needed_by = CheckpointSpan{number, number};
      needed_by->last = number;
      is_live = is_live || number == scan_.live_;
    }
    if (!is_live) {
      if (needed_by) {
        scanned_.garbage.keep_back(*place, *needed_by);
      } else {
        scanned_.garbage.add_deletable(*place);
      }
      return;
    }
    if (!whole) {
      scan_.database_.fail("the row of key " + std::to_string(place->key) + " in checkpoint " +
                           std::to_string(*scan_.live_) + " is damaged");
    }
    ++scanned_.live;
    headers_.push_back(header);
    slots_.push_back(place->slot);
    if (headers_.size() == kRowsAVisit) tell();
  }
  bool is_dead(const Place& place, size_t c) {
    const std::vector<Place>& dead = scan_.checkpoints_[c].dead;
    size_t& next = next_dead_[c];
    while (next < dead.size() && comes_before(dead[next], place)) ++next;
    return next < dead.size() && dead[next].key == place.key && dead[next].slot == place.slot;
  }
  void tell() {
    if (!headers_.empty()) visit_(headers_, slots_);
    headers_.clear();
    slots_.clear();
  }

  const LevelDbRowScan& scan_;
  const CheckpointFollower::Restored& visit_;
  LevelDbScanned& scanned_;
  std::vector<size_t> next_dead_;  // of each checkpoint, the first that doesn't come before the place
  std::vector<RowHeader> headers_;
  std::vector<Slot> slots_;
};

LevelDbScanned LevelDbRowScan::run(int threads, const CheckpointFollower::Restored& visit) const {
  const size_t pieces = threads > 1 ? static_cast<size_t>(threads) * kPiecesAThread : 1;
  const std::vector<std::string> bounds = boundaries(pieces);
  struct {
    std::atomic<size_t> next{0};
    std::atomic<bool> failed{false};
    Mutex mutex;
    std::exception_ptr error GUARDED_BY(mutex);
    LevelDbScanned all GUARDED_BY(mutex);
  } work;
  const auto fail = [&work] {
    const MutexLock lock(work.mutex);
    if (work.error == nullptr) work.error = std::current_exception();
    work.failed = true;
  };
  const auto read = [&] {
    try {
      LevelDbScanned scanned;
      while (!work.failed) {
        const size_t piece = work.next++;
        if (piece + 1 >= bounds.size()) break;
        Piece(*this, visit, scanned).read(bounds[piece], bounds[piece + 1]);
      }
      const MutexLock lock(work.mutex);
      work.all.live += scanned.live;
      work.all.sequence_end = std::max(work.all.sequence_end, scanned.sequence_end);
      work.all.garbage.take(scanned.garbage);
    } catch (...) {
      fail();
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (int i = 1; i < threads; ++i) others.emplace_back(read);
    } catch (...) {
      fail();
    }
    read();
  }
  const MutexLock lock(work.mutex);
  if (work.error != nullptr) std::rethrow_exception(work.error);
  return std::move(work.all);
}

std::vector<std::string> LevelDbRowScan::boundaries(size_t pieces) const {
  const std::string first = leveldb_rows_prefix(table_);
  const std::string end = LevelDbDatabase::end_of(first);
  const auto row_key = [this](uint64_t rank) {  // of the rank-th key there is
    const LevelDbRowKey key = leveldb_row_key(table_, {static_cast<int64_t>(rank ^ (uint64_t{1} << 63)), 0});
    return std::string(key.data(), key.size());
  };
  const uint64_t bytes = pieces > 1 ? database_.file_bytes_of(first, end) : 0;
  std::vector<std::string> bounds{first};
  for (size_t piece = 1; piece < pieces && bytes > 0; ++piece) {
    uint64_t rank = 0;
    for (uint64_t bit = uint64_t{1} << 63; bit != 0; bit >>= 1) {
      if (database_.file_bytes_of(first, row_key(rank | bit)) <= bytes / pieces * piece) rank |= bit;
    }
    if (row_key(rank) > bounds.back()) bounds.push_back(row_key(rank));
  }
  bounds.push_back(end);
  return bounds;
}

}  // namespace embstore
