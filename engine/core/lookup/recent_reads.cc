#include "lookup/recent_reads.h"

#include <bit>
#include <iterator>
#include <utility>

namespace embstore {

void RecentReads::keep(BatchPtr batch) {
  std::vector<BatchPtr> gone;  // after the mutex is let go of
  MutexLock lock(mutex_);
  bytes_ += batch->size_bytes();
  batches_.push_back(std::move(batch));
  auto oldest = batches_.begin();
  while (oldest != batches_.end() &&
         bytes_ > (std::next(oldest) == batches_.end() ? kMostBytes : kMostBytesOfSeveral)) {
    bytes_ -= (*oldest)->size_bytes();
    gone.push_back(std::move(*oldest++));
  }
  batches_.erase(batches_.begin(), oldest);
  if (!gone.empty()) updates_follow_.store(false, std::memory_order_relaxed);
}

std::vector<BatchPtr> RecentReads::take() {
  MutexLock lock(mutex_);
  bytes_ = 0;
  updates_follow_.store(true, std::memory_order_relaxed);
  return std::exchange(batches_, {});
}

TakenReads::~TakenReads() {
  for (size_t b = 0; b < batches_.size(); ++b) {
    if (!is_of_use_[b]) reads_.keep(std::move(batches_[b]));
  }
}

void TakenReads::take() {
  for (BatchPtr& batch : reads_.take()) batches_.push_back(std::move(batch));
  is_of_use_.resize(batches_.size());
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

RowInFlight TakenReads::find(KeyHash hash, int64_t key, RowRef now, const TierStack& tiers) {
  if (table_.empty()) return {};
  const Entry& known = entry(hash, key);
  if (known.batch == 0) return {};
  const size_t number = known.batch - 1;
  const BatchInFlight& batch = *batches_[number];
  // A row in memory is read where it is.
  if (!batch.holds_at(known.row, now, tiers) || tiers.memory(now.tier()) != nullptr ||
      batch.is_damaged(known.row)) {
    return {};
  }
  is_of_use_[number] = true;
  return {&batch, known.row};
}

TakenReads::Entry& TakenReads::entry(KeyHash hash, int64_t key) {
  for (size_t i = hash;; ++i) {
    Entry& entry = table_[i & (table_.size() - 1)];
    if (entry.batch == 0 || batches_[entry.batch - 1]->found(entry.row).key == key) return entry;
  }
}

}  // namespace embstore
