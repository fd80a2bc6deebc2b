#include "admission/counter_filter.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace embstore {

uint64_t CounterFilter::add_to(uint64_t /*before*/, int64_t key, KeyHash hash, uint64_t occurrences,
                               int64_t global_step) {
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
  // Closes the gap: each entry behind it moves up unless that would put the entry before its home.
  for (size_t i = next(hole); entries_[i].count != 0; i = next(i)) {
    const size_t from_home = (i - home(hash_key(entries_[i].key))) & (entries_.size() - 1);
    const size_t from_hole = (i - hole) & (entries_.size() - 1);
    if (from_home >= from_hole) entries_[std::exchange(hole, i)] = entries_[i];
  }
  entries_[hole].count = 0;
  --waiting_;
}

void CounterFilter::forget_before(int64_t global_step) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    // Removing an entry moves the entries behind it up to here.
    while (entries_[i].count != 0 && entries_[i].version < global_step) {
      remove(entries_[i].key, hash_key(entries_[i].key));
    }
  }
  size_t entries = entries_.size();
  while (entries > kFirstEntries && waiting_ * 8 <= entries * 3) entries /= 2;
  if (entries == entries_.size()) return;
  try {
    resize_to(entries);
  } catch (const std::bad_alloc&) {
    // The entries fit where they are.
  }
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
  if (!entries_.empty()) {
    WaitingKey& known = entries_[find(key, hash)];
    if (known.count != 0) return known;
  }
  make_room(1);
  ++waiting_;
  return entries_[find(key, hash)] = {key, 0, kNoVersion};
}

size_t CounterFilter::entries_for(uint64_t more_keys) const {
  if (more_keys == 0) return entries_.size();
  size_t entries = std::max(entries_.size(), kFirstEntries);
  while ((waiting_ + more_keys) * 4 > entries * 3) entries *= 2;
  return entries;
}

void CounterFilter::make_room(uint64_t keys) {
  const size_t entries = entries_for(keys);
  if (entries != entries_.size()) resize_to(entries);
}

void CounterFilter::resize_to(size_t entries) {
  std::vector<WaitingKey> old(entries);
  old.swap(entries_);
  for (const WaitingKey& entry : old) {
    if (entry.count != 0) entries_[find(entry.key, hash_key(entry.key))] = entry;
  }
}

}  // namespace embstore
