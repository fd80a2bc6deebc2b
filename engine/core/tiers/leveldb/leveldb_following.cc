// What the tier does as a follower of a pool's checkpoints; FORMAT.md, section LEVELDB, says why that is correct.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "errors/error.h"
#include "tiers/leveldb/leveldb_tier.h"

namespace embstore {
namespace {

constexpr size_t kDeletionsABatch = size_t{1} << 16;

std::string_view bytes_of(const LevelDbRowKey& key) { return {key.data(), key.size()}; }

}  // namespace

void LevelDbTier::take_up(std::span<const CheckpointName> kept) {
  const std::string key = LevelDbTableRecord::key_of(table_name_);
  const LevelDbDatabase::Value value = database_.get(key);
  const std::optional<LevelDbTableRecord> table =
      value.data == nullptr ? std::nullopt : LevelDbTableRecord::of(table_name_, value.bytes());
  if (!table) database_.fail("is damaged: the record of its table '" + table_name_ + "' isn't whole");
  LevelDbCheckpoints checkpoints;
  for (const CheckpointName& name : kept) {
    checkpoints.add({.is = records_.get(name), .dead = nullptr});
    records_.dead_places(checkpoints.all().back().is);  // throws where they aren't whole
  }
  if (!kept.empty() && table->optimizer != follows_->optimizer) {
    database_.fail("has rows of the optimizer '" + table->optimizer + "' of table '" + table_name_ +
                   "', and the variable's is '" + follows_->optimizer + "'; open it with that one");
  }

  const MutexLock lock(write_mutex_);
  records_.remove_all_but(kept);
  if (kept.empty()) {
    delete_all_rows();
    if (table->optimizer != follows_->optimizer) {
      const LevelDbTableRecord is{.number = shared_.number(), .optimizer = follows_->optimizer};
      LevelDbDatabase::Batch batch = database_.make_batch();
      database_.put(batch, key, is.bytes(table_name_));
      database_.write(batch);
    }
  }
  checkpoints_ = std::move(checkpoints);
  next_sequence_ = checkpoints_.sequence_end();
  is_unrestored_ = !kept.empty();
}

void LevelDbTier::begin_checkpoint(uint64_t number) {
  // The lock keeps away who deletes what was erased: that is in places_, or not in the database any more.
  const MutexLock lock(write_mutex_);
  give_up_unrestored();
  {
    const MutexLock erased(erased_mutex_);
    if (has_lost_erasures_) {
      database_.fail(
          "can't begin a checkpoint: there was no memory to note which rows were erased; free memory, and "
          "open the variable anew");
    }
  }
  sort_erased(MayRead::kNo);
  auto dead = std::make_shared<std::vector<Place>>(places_.all());
  checkpoints_.add({.is = {.name = {.number = number, .id = {}},
                           .sequence_end = next_sequence_,
                           .rows = rows_.load(),
                           .dead = dead->size()},
                    .dead = dead});
}

void LevelDbTier::commit_checkpoint(const CheckpointName& checkpoint) {
  LevelDbCheckpoint is;
  std::shared_ptr<std::vector<Place>> dead;
  {
    const MutexLock lock(write_mutex_);
    const LevelDbCheckpoints::Entry* const entry = checkpoints_.find(checkpoint.number);
    if (entry == nullptr || !entry->is_pending()) {
      database_.fail("checkpoint " + std::to_string(checkpoint.number) + " isn't pending");
    }
    is = entry->is;
    dead = entry->dead;
  }
  is.name = checkpoint;
  std::sort(dead->begin(), dead->end(), comes_before);  // nobody else looks at a pending checkpoint's
  records_.put(is, *dead);
  database_.make_durable();

  const MutexLock lock(write_mutex_);
  LevelDbCheckpoints::Entry* const entry = checkpoints_.find(checkpoint.number);
  if (entry != nullptr) *entry = {.is = is, .dead = nullptr};
}

void LevelDbTier::drop_checkpoint(uint64_t number) noexcept {
  const MutexLock lock(write_mutex_);
  const LevelDbCheckpoints::Entry* const entry = checkpoints_.find(number);
  if (entry == nullptr) return;
  const LevelDbCheckpoint is = entry->is;
  checkpoints_.remove(number);
  try {
    deletable_.store(places_.deletable_but_for(checkpoints_.numbers()), std::memory_order_relaxed);
    records_.remove(is);
  } catch (const std::exception&) {
    // take_up() removes what isn't in the pool.
  }
}

uint64_t LevelDbTier::checkpoint_rows(uint64_t number) const {
  const MutexLock lock(write_mutex_);
  const LevelDbCheckpoints::Entry* const entry = checkpoints_.find(number);
  return entry != nullptr && !entry->is_pending() ? entry->is.rows : 0;
}

void LevelDbTier::restore(const CheckpointName& checkpoint, int threads, const Restored& visit) {
  const LevelDbCheckpoint wanted = records_.get(checkpoint);
  std::vector<LevelDbScannedCheckpoint> all;
  {
    const MutexLock lock(write_mutex_);
    if (checkpoints_.find(checkpoint.number) == nullptr) {
      database_.fail("has no checkpoint " + std::to_string(checkpoint.number) + " of table '" + table_name_ +
                     "'");
    }
    for (const LevelDbCheckpoints::Entry& entry : checkpoints_.all()) {
      all.push_back({.is = entry.is, .dead = records_.dead_places(entry.is)});
    }
  }
  LevelDbScanned scanned = scan(checkpoint.number, all, threads, visit);
  if (scanned.live != wanted.rows) {
    database_.fail("checkpoint " + std::to_string(checkpoint.number) + " of table '" + table_name_ +
                   "' is damaged: it has " + std::to_string(scanned.live) + " rows of " +
                   std::to_string(wanted.rows));
  }
  const MutexLock lock(write_mutex_);
  install(std::move(scanned));
  rows_ = wanted.rows;
}

LevelDbScanned LevelDbTier::scan(std::optional<uint64_t> live,
                                 const std::vector<LevelDbScannedCheckpoint>& checkpoints, int threads,
                                 const Restored& visit) const {
  return LevelDbRowScan(database_, row_value_, shared_.number(), checkpoints, live).run(threads, visit);
}

// What was noted before is found again by who scans.
void LevelDbTier::install(LevelDbScanned scanned) {
  {
    const MutexLock lock(erased_mutex_);
    erased_.clear();
    has_lost_erasures_ = false;
  }
  places_ = std::move(scanned.garbage);
  count_deletable();
  // Greater than that of any record, so that none of a timeline which was given up passes for one that comes now.
  next_sequence_ = std::max({next_sequence_, scanned.sequence_end, checkpoints_.sequence_end()});
  is_unrestored_ = false;
}

void LevelDbTier::give_up_unrestored() {
  if (!is_unrestored_) return;
  if (checkpoints_.empty()) {
    delete_all_rows();
    is_unrestored_ = false;
    return;
  }
  std::vector<LevelDbScannedCheckpoint> all;
  for (const LevelDbCheckpoints::Entry& entry : checkpoints_.all()) {
    all.push_back({.is = entry.is, .dead = records_.dead_places(entry.is)});
  }
  install(scan(std::nullopt, all, 1, nullptr));
}

void LevelDbTier::delete_all_rows() {
  LevelDbDatabase::Batch batch = database_.make_batch();
  size_t count = 0;
  database_.scan(leveldb_rows_prefix(shared_.number()), [&](std::string_view key, std::string_view) {
    database_.remove(batch, key);
    if (++count % kDeletionsABatch != 0) return;
    database_.write(batch);
    database_.clear(batch);
  });
  database_.write(batch);
}

void LevelDbTier::skip_taken_slots(int64_t key) {
  while (next_sequence_ >= kSlots &&
         database_.get(bytes_of(row_key({key, leveldb_slot(next_sequence_)}))).data != nullptr) {
    ++next_sequence_;
  }
}

}  // namespace embstore
