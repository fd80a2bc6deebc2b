#include "store/index/index_shard.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "errors/error.h"

namespace embstore {
namespace {

constexpr uint32_t kSmallestArray = 8;  // buckets
// Above this load, probes that leave their home bucket cost more than the memory is worth.
constexpr double kMaxLoad = 0.75;
// By a third: between 17 and 23 bytes an entry, where doubling would take up to 34.
constexpr double kGrowth = 4.0 / 3.0;
// A larger array is filled while the last hundredth of the entries come. So few shards have two at a time.
constexpr uint64_t kLastPart = 100;
// A small array is copied at once.
constexpr uint64_t kFewestLast = 16;

uint64_t capacity(uint64_t buckets) {
  return static_cast<uint64_t>(kMaxLoad * Bucket::kEntries * static_cast<double>(buckets));
}

uint64_t last_entries(uint64_t buckets) { return capacity(buckets) / kLastPart; }

// Nobody else changes the state: the shard's mutex is held. Between two fences that release: whoever sees the mark finds the new
// array, and whoever reads a row that is written later sees the mark.
void mark_moved(RowGuard& guard) {
#if defined(__SANITIZE_THREAD__)  // doesn't model fences
  guard.state.fetch_or(Bucket::kMoved, std::memory_order_acq_rel);
#else
  guard.state.store(guard.state.load(std::memory_order_relaxed) | Bucket::kMoved, std::memory_order_relaxed);
#endif
}

bool is_overflowed(const Bucket& bucket) {
  return (bucket.guard.state.load(std::memory_order_relaxed) & Bucket::kOverflowed) != 0;
}

// How many buckets passed on the key of an entry of bucket `i`.
uint32_t displacement(const BucketArray& buckets, uint32_t i, int entry) {
  const int64_t key = buckets[i].keys[entry].load(std::memory_order_relaxed);
  return buckets.distance(home_bucket(hash_key(key), buckets.count()), i);
}

IndexEntry find_in(const BucketArray& buckets, KeyHash hash, int64_t key) {
  const uint32_t home = home_bucket(hash, buckets.count());
  uint32_t i = home;
  do {
    Bucket& bucket = buckets[i];
    const int position = bucket.find(key);
    if (position >= 0) return {&bucket, position};
    if (!is_overflowed(bucket)) break;
    i = buckets.next(i);
  } while (i != home);
  return {};
}

IndexEntry place(const BucketArray& buckets, KeyHash hash, int64_t key, RowRef ref) {
  for (uint32_t i = home_bucket(hash, buckets.count());; i = buckets.next(i)) {
    Bucket& bucket = buckets[i];
    const int position = bucket.find_empty();
    if (position < 0 && is_overflowed(bucket)) continue;
    RowWrite write(bucket.guard);
    if (position < 0) {
      write.set_flag(Bucket::kOverflowed);
      continue;
    }
    bucket.keys[position].store(key, std::memory_order_relaxed);
    bucket.refs[position].store(ref.raw(), std::memory_order_relaxed);
    return {&bucket, position};
  }
}

// place() in an array that no reader sees yet.
void place_unseen(const BucketArray& buckets, int64_t key, RowRef ref) {
  for (uint32_t i = home_bucket(hash_key(key), buckets.count());; i = buckets.next(i)) {
    Bucket& bucket = buckets[i];
    const int position = bucket.find_empty();
    if (position >= 0) {
      bucket.keys[position].store(key, std::memory_order_relaxed);
      bucket.refs[position].store(ref.raw(), std::memory_order_relaxed);
      return;
    }
    bucket.guard.state.store(Bucket::kOverflowed, std::memory_order_relaxed);
  }
}

void write_ref(const IndexEntry& entry, RowRef ref) {
  const RowWrite write(entry.bucket->guard);
  entry.bucket->refs[entry.position].store(ref.raw(), std::memory_order_relaxed);
}

// A key that bucket `passed` passed on, if there is one.
IndexEntry passed_on_by(const BucketArray& buckets, uint32_t passed) {
  for (uint32_t i = passed; is_overflowed(buckets[i]);) {
    i = buckets.next(i);
    for (int e = 0; e < Bucket::kEntries; ++e) {
      if (buckets[i].ref(e) && displacement(buckets, i, e) >= buckets.distance(passed, i)) {
        return {&buckets[i], e};
      }
    }
  }
  return {};
}

// Takes off the marks from `first` up to `last` that no key needs, now that one which lay in `last` and was
// passed on by them all is gone.
void unmark(const BucketArray& buckets, uint32_t first, uint32_t last) {
  if (first == last) return;
  // A bucket needs its mark if a key that lies beyond it has its home there or before. Buckets are counted
  // from `first`; a home before it does as much as one there.
  uint32_t nearest_home = buckets.distance(first, last);
  const auto look_at = [&](uint32_t i) {
    const uint32_t distance = buckets.distance(first, i);
    for (int e = 0; e < Bucket::kEntries; ++e) {
      if (!buckets[i].ref(e)) continue;
      const uint32_t passed = displacement(buckets, i, e);
      nearest_home = std::min(nearest_home, distance > passed ? distance - passed : 0);
    }
  };
  look_at(last);
  for (uint32_t i = last; nearest_home != 0 && is_overflowed(buckets[i]);) {
    i = buckets.next(i);
    look_at(i);
  }
  for (uint32_t i = last; nearest_home != 0 && i != first;) {
    i = buckets.previous(i);
    if (nearest_home > buckets.distance(first, i)) {
      RowWrite(buckets[i].guard).clear_flag(Bucket::kOverflowed);
    }
    look_at(i);
  }
}

// Calls moved(key, ref, from, to) for each key that moves from one bucket to another.
template <class Moved>
void erase_from(const BucketArray& buckets, const IndexEntry& entry, Moved moved_key) {
  const int64_t key = entry.key();
  write_ref(entry, RowRef());
  uint32_t room = buckets.position(*entry.bucket);
  unmark(buckets, home_bucket(hash_key(key), buckets.count()), room);
  // Each key that moves back leaves room for another.
  for (IndexEntry hole = entry, moved; (moved = passed_on_by(buckets, room)); hole = moved) {
    const RowRef ref = moved.ref();
    {
      const RowWrite write(hole.bucket->guard);
      hole.bucket->keys[hole.position].store(moved.key(), std::memory_order_relaxed);
      hole.bucket->refs[hole.position].store(ref.raw(), std::memory_order_relaxed);
    }
    // Only then: whoever reads meanwhile finds one of the two, or sees that a bucket behind it has changed.
    write_ref(moved, RowRef());
    const uint32_t from = buckets.position(*moved.bucket);
    unmark(buckets, room, from);
    moved_key(moved.key(), ref, from, room);
    room = from;
  }
}

}  // namespace

IndexShard::IndexShard(Epochs& epochs, double phase)
    : smallest_(kSmallestArray * std::pow(kGrowth, phase)),
      epochs_(epochs),
      array_(std::make_unique<BucketArray>(buckets_for(0))),
      buckets_(array_.get()) {}

uint32_t IndexShard::buckets_for(uint64_t entries) const {
  double buckets = smallest_;
  while (capacity(static_cast<uint64_t>(buckets)) < entries) buckets *= kGrowth;
  return static_cast<uint32_t>(buckets);
}

bool IndexShard::is_nearly_full() const {
  const uint64_t last = last_entries(array_->count());
  return last >= kFewestLast && entries_ + last >= capacity(array_->count());
}

IndexEntry IndexShard::entry(KeyHash hash, int64_t key) const { return find_in(*array_, hash, key); }

uint64_t IndexShard::room() const {
  const uint64_t most = capacity(array_->count());
  return most - std::min(most, entries_ + reserved_);
}

void IndexShard::reserve(uint64_t count) {
  const uint64_t wanted = entries_ + reserved_ + count;
  const uint64_t buckets = array_->count();
  if (wanted > capacity(buckets)) {
    const uint32_t larger = buckets_for(wanted);
    if (next_ == nullptr || next_->count() < larger) begin_next(larger);
    copy_to_next(array_->count());
    change_to_next();
  } else if (next_ == nullptr && is_nearly_full()) [[unlikely]] {
    begin_next_if_there_is_memory(buckets_for(capacity(buckets) + 1));
  } else if (next_ != nullptr && entries_ + 4 * last_entries(buckets) < capacity(buckets)) [[unlikely]] {
    next_.reset();
  } else if (erased_ > capacity(buckets) / 2 && wanted < capacity(buckets) / 4) [[unlikely]] {
    // Only where as many were erased since, so that entries that come and go seldom pay for it, and an array
    // that was made large for what is to come stays so.
    if (begin_next_if_there_is_memory(buckets_for(wanted + wanted / 2))) {
      copy_to_next(array_->count());
      change_to_next();
    } else {
      erased_ = 0;  // again when as many more were erased
    }
  }
}

IndexShard::Room IndexShard::reserve_room(uint64_t count) {
  reserve(count);
  reserved_ += count;
  return {*this, count};
}

void IndexShard::give_back(uint64_t count) noexcept {
  const MutexLock lock(mutex);
  reserved_ -= count;
}

IndexEntry IndexShard::insert(KeyHash hash, int64_t key, RowRef ref) noexcept {
  ++entries_;
  const IndexEntry placed = place(*array_, hash, key, ref);
  if (next_ != nullptr) [[unlikely]] {
    if (is_copied(placed)) place_unseen(*next_, key, ref);
    copy_to_next(static_cast<uint32_t>(array_->count() / last_entries(array_->count()) + 1));
  }
  return placed;
}

IndexEntry IndexShard::insert(KeyHash hash, int64_t key, RowRef ref, Room& room) noexcept {
  --room.left_;
  --reserved_;
  return insert(hash, key, ref);
}

void IndexShard::set_ref_of_copy(const IndexEntry& entry, RowRef ref) noexcept {
  const IndexEntry copy = find_in(*next_, hash_key(entry.key()), entry.key());
  copy.bucket->refs[copy.position].store(ref.raw(), std::memory_order_relaxed);
}

void IndexShard::erase_copy(int64_t key) noexcept {
  erase_from(*next_, find_in(*next_, hash_key(key), key), [](int64_t, RowRef, uint32_t, uint32_t) {});
}

void IndexShard::erase(const IndexEntry& entry) noexcept {
  if (next_ != nullptr && is_copied(entry)) erase_copy(entry.key());
  --entries_;
  ++erased_;
  ++layout_;
  erase_from(*array_, entry, [this](int64_t key, RowRef ref, uint32_t from, uint32_t to) {
    mutex.assert_held();
    if (next_ == nullptr || (from < copied_) == (to < copied_)) return;
    // Around the end of the array, a key may move from the part that is copied to the one that will be.
    if (to < copied_) {
      place_unseen(*next_, key, ref);
    } else {
      erase_copy(key);
    }
  });
}

void IndexShard::begin_next(uint32_t count) {
  next_.reset();
  next_ = std::make_unique<BucketArray>(count);
  copied_ = 0;
}

bool IndexShard::begin_next_if_there_is_memory(uint32_t count) {
  try {
    begin_next(count);
    return true;
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
  return false;
}

void IndexShard::copy_to_next(uint32_t buckets) noexcept {
  const uint32_t end = copied_ + std::min(buckets, array_->count() - copied_);
  for (; copied_ < end; ++copied_) {
    const Bucket& bucket = (*array_)[copied_];
    for (int e = 0; e < Bucket::kEntries; ++e) {
      if (const RowRef ref = bucket.ref(e)) {
        place_unseen(*next_, bucket.keys[e].load(std::memory_order_relaxed), ref);
      }
    }
  }
}

void IndexShard::change_to_next() noexcept {
  std::unique_ptr<BucketArray> old = std::exchange(array_, std::move(next_));
  erased_ = 0;
  ++layout_;
  buckets_.store(array_.get());
  // A reader that still holds the old array must not accept a row that is written under the new one.
  std::atomic_thread_fence(std::memory_order_release);
  for (uint32_t i = 0; i < old->count(); ++i) mark_moved((*old)[i].guard);
  std::atomic_thread_fence(std::memory_order_release);
  epochs_.retire(std::move(old));
}

}  // namespace embstore
