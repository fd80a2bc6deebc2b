#include "pool_workload.h"

#include <algorithm>
#include <iterator>
#include <thread>

namespace embstore::log::testing {
namespace {

// Beyond the headroom, for a few hundred keys in several versions.
constexpr uint64_t kSlots = PoolTier::kHeadroomSlots + 2000;
const RowLayout kLayout(5, 1);

}  // namespace

PoolWorkload::PoolWorkload(const std::string& path, uint64_t seed, const LibPmem& calls,
                           files::FileCalls& file_calls)
    : random_(seed), pool_(path, kLayout, kSlots, calls, file_calls) {}

const RowLayout& PoolWorkload::layout() { return kLayout; }
uint64_t PoolWorkload::slots() { return kSlots; }

void PoolWorkload::step() {
  switch (below(20)) {
    case 0: return begin();
    case 1: return commit();
    case 2: return drop();
    case 3: return below(4) == 0 ? abandon() : commit();
    case 4:
    case 5: return remove();
    case 6:
    case 7:
    case 8:
    case 9: return write();
    case 10:
    case 11:
    case 12: return write_back();
    default: return change();
  }
}

std::vector<int64_t> PoolWorkload::some_keys(uint64_t most) {
  std::set<int64_t> keys;
  for (uint64_t i = below(most + 1); i > 0; --i) keys.insert(some_key());
  return {keys.begin(), keys.end()};
}

// Rows that come down, and were not changed since they went up.
void PoolWorkload::write() {
  std::vector<int64_t> keys = some_keys(60);
  std::erase_if(keys, [this](int64_t key) { return changed_.contains(key); });
  pool_.write(keys, ++version_);
}

Slot PoolWorkload::put(int64_t key, int64_t version, bool is_live) {
  RowBatch rows(kLayout);
  rows.resize(1);
  fill_row(rows, 0, key, version);
  const Slot slot = pool_.tier->write_claimed(rows.header(0), rows.row(0), is_live);
  uint64_t first = 0;
  for (auto& [number, checkpoint] : pending_) {
    const auto found = checkpoint.unwritten.find(key);
    if (found == checkpoint.unwritten.end()) continue;
    check(found->second == version, "the test is wrong: a version is gone that a checkpoint needs");
    if (first == 0) first = number;
    checkpoint.unwritten.erase(found);
    checkpoint.slots.insert(slot);
  }
  if (first != 0) pool_.tier->add_to_checkpoints(first, slot);
  return slot;
}

bool PoolWorkload::write_for_checkpoints(int64_t key) {
  const bool needed = std::any_of(pending_.begin(), pending_.end(), [key](const auto& checkpoint) {
    return checkpoint.second.unwritten.contains(key);
  });
  if (!needed) return true;
  if (!pool_.tier->try_claim(1)) return false;
  put(key, changed_.at(key), /*is_live=*/false);
  return true;
}

void PoolWorkload::change() {
  for (const int64_t key : some_keys(30)) {
    if (!write_for_checkpoints(key)) return;
    if (!changed_.contains(key)) {
      if (!pool_.tier->try_claim(1)) return;
      pool_.erase(std::vector{key});
    }
    changed_[key] = ++version_;
  }
  pool_.tier->fence();
}

void PoolWorkload::write_back() {
  for (const int64_t key : some_keys(300)) {
    const auto found = changed_.find(key);
    if (found == changed_.end()) continue;
    pool_.index[key] = {put(key, found->second, /*is_live=*/true), found->second};
    changed_.erase(found);
  }
  pool_.tier->fence();
}

void PoolWorkload::remove() {
  for (const int64_t key : some_keys(20)) {
    if (changed_.contains(key)) {
      if (!write_for_checkpoints(key)) return;
      changed_.erase(key);
      pool_.tier->give_claim_back(1);
    }
    pool_.erase(std::vector{key});
  }
  pool_.tier->fence();
}

void PoolWorkload::begin() {
  if (pending_.size() + kept_.size() >= 4) return;
  Checkpoint checkpoint;
  checkpoint.unwritten = changed_;
  checkpoint.versions = changed_;
  for (const auto& [key, entry] : pool_.index) {
    checkpoint.versions.emplace(key, entry.version);
    checkpoint.slots.insert(entry.slot);
  }
  pending_.emplace(pool_.checkpoints->begin({}), std::move(checkpoint));
}

void PoolWorkload::commit() {
  if (pending_.empty()) return;
  const uint64_t number = pending_.begin()->first;
  const std::map<int64_t, int64_t> unwritten = pending_.begin()->second.unwritten;
  for (const auto& [key, version] : unwritten) {
    // It may have changed no more since, and is a clean copy then.
    check(changed_.at(key) == version, "the test is wrong: a changed row wasn't kept for a checkpoint");
    pool_.index[key] = {put(key, version, /*is_live=*/true), version};
    changed_.erase(key);
  }
  pool_.tier->fence();
  uncertain_.emplace(number, pending_.begin()->second);
  // By another thread, whose drains are none of what this one wrote.
  std::thread([&] { pool_.checkpoints->commit(number, id_of(number)); }).join();
  uncertain_.clear();
  kept_.emplace(number, std::move(pending_.begin()->second));
  pending_.erase(pending_.begin());
}

void PoolWorkload::drop() {
  if (kept_.size() < 2) return;
  const auto dropped = std::next(kept_.begin(), static_cast<ptrdiff_t>(below(kept_.size())));
  const uint64_t number = dropped->first;
  uncertain_.insert(kept_.extract(dropped));
  pool_.checkpoints->drop(number);
  uncertain_.clear();
}

void PoolWorkload::abandon() {
  if (pending_.empty()) return;
  const uint64_t number = pending_.rbegin()->first;
  pool_.checkpoints->drop(number);
  pending_.erase(number);
}

void PoolWorkload::restart() {
  pool_.reopen();
  changed_.clear();
  pending_.clear();
  check(pool_.checkpoints->awaits_restore() == !kept_.empty(), "checkpoints are awaited that aren't there");
  if (kept_.empty()) return;
  const auto chosen = std::next(kept_.begin(), static_cast<ptrdiff_t>(below(kept_.size())));
  while (kept_.rbegin()->first > chosen->first) uncertain_.insert(kept_.extract(std::prev(kept_.end())));
  pool_.restore(chosen->first, 1 + static_cast<int>(below(3)));
  uncertain_.clear();
  check(versions_of(pool_.index) == chosen->second.versions, "other rows came back than the checkpoint had");
}

void PoolWorkload::expect() const {
  std::set<Slot> taken;
  for (const auto& [key, entry] : pool_.index) taken.insert(entry.slot);
  for (const auto* checkpoints : {&kept_, &pending_}) {
    for (const auto& [number, checkpoint] : *checkpoints) {
      taken.insert(checkpoint.slots.begin(), checkpoint.slots.end());
    }
  }
  pool_.expect_taken(taken.size() + changed_.size());
  pool_.check_all();
  const auto durable = pool_.checkpoints->kept();
  check(durable.size() == kept_.size(), "the pool has another number of checkpoints");
  auto at = kept_.begin();
  for (const KeptCheckpoint& checkpoint : durable) {
    check(checkpoint.number == at->first && checkpoint.id == id_of(at->first) &&
              checkpoint.rows == at->second.versions.size(),
          "the pool has another checkpoint");
    ++at;
  }
  check(pool_.checkpoints->has_pending() == !pending_.empty(), "another number of checkpoints is pending");
}

}  // namespace embstore::log::testing
