#include "admission/counter_filter.h"

#include <limits>
#include <utility>

namespace embstore {

uint64_t CounterFilter::add(int64_t key, KeyHash hash, uint64_t occurrences, int64_t global_step) {
  WaitingKey& entry = entry_of(key, hash);
  if (__builtin_add_overflow(entry.count, occurrences, &entry.count)) {
    entry.count = std::numeric_limits<uint64_t>::max();
  }
  entry.version = global_step;
  return entry.count;
}

void CounterFilter::remove(int64_t key, KeyHash hash) {
  if (has_admitted_.load(std::memory_order_relaxed)) {
    const MutexLock lock(admitted_mutex_);
    admitted_.erase(key);
    has_admitted_ = !admitted_.empty();
  }
  if (entries_.empty()) return;
  size_t hole = find(key, hash);
  if (entries_[hole].count == 0) return;
  // Closes the gap: what lies behind moves up unless that would put it before its home.
  for (size_t i = next(hole); entries_[i].count != 0; i = next(i)) {
    const size_t from_home = (i - home(hash_key(entries_[i].key))) & (entries_.size() - 1);
    const size_t from_hole = (i - hole) & (entries_.size() - 1);
    if (from_home >= from_hole) entries_[std::exchange(hole, i)] = entries_[i];
  }
  entries_[hole].count = 0;
  --waiting_;
}

void CounterFilter::reset() {
  entries_ = {};
  waiting_ = 0;
  const MutexLock lock(admitted_mutex_);
  admitted_.clear();
  has_admitted_ = false;
}

uint64_t CounterFilter::count(int64_t key, KeyHash hash) const {
  return entries_.empty() ? 0 : entries_[find(key, hash)].count;
}

int64_t CounterFilter::version(int64_t key, KeyHash hash) const {
  if (entries_.empty()) return kNoVersion;
  const WaitingKey& entry = entries_[find(key, hash)];
  return entry.count == 0 ? kNoVersion : entry.version;
}

bool CounterFilter::admits(int64_t key, KeyHash) const {
  if (!has_admitted_.load(std::memory_order_relaxed)) return false;
  const MutexLock lock(admitted_mutex_);
  return admitted_.contains(key);
}

void CounterFilter::for_each(const std::function<void(const WaitingKey&)>& visit) const {
  for (const WaitingKey& entry : entries_) {
    if (entry.count != 0) visit(entry);
  }
}

void CounterFilter::restore(const WaitingKey& waiting) {
  entry_of(waiting.key, hash_key(waiting.key)) = waiting;
  const MutexLock lock(admitted_mutex_);
  if (waiting.count >= threshold()) {
    admitted_.insert(waiting.key);
  } else {
    admitted_.erase(waiting.key);
  }
  has_admitted_ = !admitted_.empty();
}

size_t CounterFilter::find(int64_t key, KeyHash hash) const {
  size_t i = home(hash);
  while (entries_[i].count != 0 && entries_[i].key != key) i = next(i);
  return i;
}

WaitingKey& CounterFilter::entry_of(int64_t key, KeyHash hash) {
  if ((waiting_ + 1) * 4 > entries_.size() * 3) grow();
  WaitingKey& entry = entries_[find(key, hash)];
  if (entry.count == 0) {
    entry = {key, 0, kNoVersion};
    ++waiting_;
  }
  return entry;
}

void CounterFilter::grow() {
  std::vector<WaitingKey> old(entries_.empty() ? kFirstEntries : entries_.size() * 2);
  old.swap(entries_);
  for (const WaitingKey& entry : old) {
    if (entry.count != 0) entries_[find(entry.key, hash_key(entry.key))] = entry;
  }
}

}  // namespace embstore
