#include "lookup/read_cache.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <new>
#include <utility>

namespace embstore {

void ReadCache::keep(std::vector<BatchPtr> batches) {
  if (batches.empty()) return;
  KeptLookUp look_up{std::move(batches)};
  for (const BatchPtr& batch : look_up.batches) look_up.bytes += batch->size_bytes();
  std::vector<KeptLookUp> gone;  // freed after the mutex is released
  MutexLock lock(mutex_);
  look_ups_.push_back(std::move(look_up));
  bytes_ += look_ups_.back().bytes;
  size_t bytes = bytes_;
  auto oldest = look_ups_.begin();
  while (oldest != look_ups_.end() &&
         bytes > (std::next(oldest) == look_ups_.end() ? kMaxBytes : kMaxBytesOfSeveral)) {
    bytes -= (oldest++)->bytes;
  }
  if (oldest == look_ups_.begin()) return;
  gone.assign(std::move_iterator(look_ups_.begin()), std::move_iterator(oldest));
  look_ups_.erase(look_ups_.begin(), oldest);
  bytes_ = bytes;
  updates_follow_.store(false, std::memory_order_relaxed);
}

std::vector<BatchPtr> ReadCache::take() {
  MutexLock lock(mutex_);
  size_t count = 0;
  for (const KeptLookUp& look_up : look_ups_) count += look_up.batches.size();
  std::vector<BatchPtr> batches;
  batches.reserve(count);
  bytes_ = 0;
  updates_follow_.store(true, std::memory_order_relaxed);
  for (KeptLookUp& look_up : look_ups_) {
    std::ranges::move(look_up.batches, std::back_inserter(batches));
  }
  look_ups_.clear();
  return batches;
}

UpdateReads::~UpdateReads() {
  size_t unused = 0;
  for (size_t b = 0; b < batches_.size(); ++b) {
    const bool is_used = b < is_used_.size() && is_used_[b];  // take() may have failed
    if (!is_used) batches_[unused++] = std::move(batches_[b]);
  }
  batches_.resize(unused);
  try {
    reads_.keep(std::move(batches_));
  } catch (const std::bad_alloc&) {
    // The rows are read again.
  }
}

void UpdateReads::take() {
  const MutexLock lock(mutex_);
  if (std::exchange(has_taken_, true)) return;
  batches_ = reads_.take();
  is_used_ = std::vector<std::atomic<bool>>(batches_.size());
  size_t rows = 0;
  for (const BatchPtr& batch : batches_) rows += batch->size();
  table_.assign(rows == 0 ? 0 : std::bit_ceil(2 * rows), {});
  for (size_t b = 0; b < batches_.size(); ++b) {
    for (size_t i = 0; i < batches_[b]->size(); ++i) {
      const BatchInFlight::Found& found = batches_[b]->found(i);
      entry(found.hash(), found.key) = {static_cast<uint32_t>(b + 1), static_cast<uint32_t>(i)};
    }
  }
}

RowInFlight UpdateReads::find(KeyHash hash, int64_t key, RowRef now, const TierStack& tiers) {
  if (table_.empty()) return {};
  const Entry& known = entry(hash, key);
  if (known.batch == 0) return {};
  const size_t number = known.batch - 1;
  const BatchInFlight& batch = *batches_[number];
  // The update reads a row in memory where it is.
  if (!batch.is_valid_at(known.row, now, tiers) || tiers.memory(now.tier()) != nullptr ||
      batch.is_damaged(known.row)) {
    return {};
  }
  is_used_[number].store(true, std::memory_order_relaxed);
  return {&batch, known.row};
}

UpdateReads::Entry& UpdateReads::entry(KeyHash hash, int64_t key) {
  for (size_t i = hash;; ++i) {
    Entry& entry = table_[i & (table_.size() - 1)];
    if (entry.batch == 0 || batches_[entry.batch - 1]->found(entry.row).key == key) return entry;
  }
}

}  // namespace embstore
