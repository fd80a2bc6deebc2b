#include "store/index/index_shard.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "errors/error.h"

namespace embstore {
namespace {

constexpr double kSmallestArray = 30;  // entries
// Growth by a third: wide buckets take between 17 and 23 bytes an entry; with doubling it would be up to 34.
constexpr double kGrowth = 4.0 / 3.0;
// A larger array is filled while the last hundredth of the entries comes, so that few shards have two arrays
// at a time.
constexpr uint64_t kLastPart = 100;
// A smaller array is copied at once.
constexpr uint64_t kFewestLast = 16;
// The number of buckets that are sampled to learn what kind of keys an array has.
constexpr uint32_t kSampledBuckets = 64;
// Each stashed key may take a page, so if more than a few keys must be stashed, wide buckets are better for
// all.
constexpr uint32_t kFittingAStashed = 16;

uint64_t last_entries(const BucketArray& array) { return array.capacity() / kLastPart; }

// No other thread changes the state, since the shard's mutex is held. The caller calls this between two
// release fences: a reader that sees the mark finds the new array, and a reader of a row that is written
// later sees the mark.
void mark_moved(RowGuard& guard) {
#if defined(__SANITIZE_THREAD__)  // it doesn't model fences
  guard.state.fetch_or(Bucket::kMoved, std::memory_order_acq_rel);
#else
  guard.state.store(guard.state.load(std::memory_order_relaxed) | Bucket::kMoved, std::memory_order_relaxed);
#endif
}

// Says if readers see the array that is being changed.
enum class Seen { kYes, kNo };

template <Seen kSeen>
void set_flag(Bucket& bucket, uint32_t flag) {
  if (kSeen == Seen::kYes) {
    RowWrite(bucket.guard).set_flag(flag);
  } else {
    bucket.guard.state.store(bucket.guard.state.load(std::memory_order_relaxed) | flag,
                             std::memory_order_relaxed);
  }
}

// --- Among buckets of one kind

template <class Kind>
IndexEntry find_in(const Kind& buckets, const typename Kind::Sought& sought) {
  uint32_t i = sought.home;
  for (uint32_t passed = 0; passed <= buckets.homes().max_passed(); ++passed, i = buckets.next(i)) {
    Bucket& bucket = buckets[i];
    const int position = buckets.homes().find(bucket, passed, sought);
    if (position >= 0) return {&bucket, position};
    if (!bucket.is_overflowed()) break;
  }
  return {};
}

// Returns null if there is no room near the key's home, and then has changed nothing.
template <Seen kSeen, class Kind>
IndexEntry place_in(const Kind& buckets, const typename Kind::Sought& sought, RowRef ref) {
  uint32_t i = sought.home;
  uint32_t passed = 0;
  int position;
  while ((position = buckets[i].find_empty(Kind::kEntries)) < 0) {
    if (passed == buckets.homes().max_passed()) return {};
    ++passed;
    i = buckets.next(i);
  }
  for (uint32_t full = sought.home; full != i; full = buckets.next(full)) {
    if (!buckets[full].is_overflowed()) set_flag<kSeen>(buckets[full], Bucket::kOverflowed);
  }
  const auto write = [&] {
    buckets.set(i, position, passed, sought);
    buckets[i].set_ref(position, ref);
  };
  if (kSeen == Seen::kYes) {
    {
      const RowWrite guarded(buckets[i].guard);
      write();
    }
    // Only now: readers take a key for absent as long as its home doesn't change.
    if (passed != 0) set_flag<kSeen>(buckets[sought.home], Bucket::kOverflowed);
  } else {
    write();
  }
  return {&buckets[i], position};
}

void write_ref(const IndexEntry& entry, RowRef ref) {
  const RowWrite write(entry.bucket->guard);
  entry.bucket->set_ref(entry.position, ref);
}

// Returns an entry whose key bucket `full` passed on; null if there is none.
template <class Kind>
IndexEntry passed_on_by(const Kind& buckets, uint32_t full) {
  for (uint32_t i = full; buckets[i].is_overflowed();) {
    i = buckets.next(i);
    for (int e = 0; e < Kind::kEntries; ++e) {
      if (buckets[i].ref(e) && buckets.passed(i, e) >= buckets.distance(full, i)) return {&buckets[i], e};
    }
  }
  return {};
}

// Clears those marks from `first` up to `last` that no key needs any more, after the erasure of a key that
// lay in `last` and that all these buckets had passed on.
template <class Kind>
void unmark(const Kind& buckets, uint32_t first, uint32_t last) {
  if (first == last) return;
  // A bucket needs its mark if a key that lies after it has its home in it or before it. Distances are
  // counted from `first`; a home before `first` counts as one at `first`.
  uint32_t nearest_home = buckets.distance(first, last);
  const auto look_at = [&](uint32_t i) {
    const uint32_t distance = buckets.distance(first, i);
    for (int e = 0; e < Kind::kEntries; ++e) {
      if (!buckets[i].ref(e)) continue;
      const uint32_t passed = buckets.passed(i, e);
      nearest_home = std::min(nearest_home, distance > passed ? distance - passed : 0);
    }
  };
  look_at(last);
  for (uint32_t i = last; nearest_home != 0 && buckets[i].is_overflowed();) {
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

// Erases an entry. Calls moved(from, to) for each key that then moved from one entry, which is empty now, to
// another.
template <class Kind, class Moved>
void erase_from(const Kind& buckets, const IndexEntry& entry, Moved moved_key) {
  uint32_t room = buckets.position(*entry.bucket);
  const uint32_t home = buckets.sought_at(room, entry.position).home;
  write_ref(entry, RowRef());
  unmark(buckets, home, room);
  // Each key that moves back makes room for another.
  for (IndexEntry hole = entry, moved; (moved = passed_on_by(buckets, room)); hole = moved) {
    const uint32_t from = buckets.position(*moved.bucket);
    const typename Kind::Sought sought = buckets.sought_at(from, moved.position);
    {
      const RowWrite write(hole.bucket->guard);
      buckets.set(room, hole.position, buckets.distance(sought.home, room), sought);
      hole.bucket->set_ref(hole.position, moved.ref());
    }
    // Only now: a reader meanwhile finds one of the two entries, or sees that a bucket behind it has changed.
    write_ref(moved, RowRef());
    unmark(buckets, room, from);
    moved_key(moved, hole);
    room = from;
  }
}

// --- In a whole array

IndexEntry find(const BucketArray& array, int64_t key) {
  if (const CompactBuckets& compact = array.compact(); array.is_compact()) {
    const CompactBuckets::Sought sought = compact.seek_any(key);
    if (const IndexEntry found = compact.fits(key) ? find_in(compact, sought) : IndexEntry()) return found;
    if (!compact[sought.home].has_stashed()) return {};
  }
  return find_in(array.wide(), array.wide().seek(key));
}

template <Seen kSeen>
IndexEntry place(BucketArray& array, int64_t key, RowRef ref) {
  const auto place_in_wide = [&] { return place_in<kSeen>(array.wide(), array.wide().seek(key), ref); };
  if (!array.is_compact()) return place_in_wide();
  const CompactBuckets& compact = array.compact();
  const CompactBuckets::Sought sought = compact.seek_any(key);
  if (compact.fits(key)) {
    if (const IndexEntry placed = place_in<kSeen>(compact, sought, ref)) return placed;
  }
  array.note_stashed();
  const IndexEntry placed = place_in_wide();
  // Only now, for the same reason as above; and for every stashed key.
  set_flag<kSeen>(compact[sought.home], Bucket::kHasStashed);
  return placed;
}

template <class Moved>
void erase_in(const BucketArray& array, const IndexEntry& entry, Moved moved_key) {
  if (array.compact().contains(*entry.bucket)) {
    erase_from(array.compact(), entry, moved_key);
  } else {
    erase_from(array.wide(), entry, moved_key);
  }
}

}  // namespace

IndexShard::IndexShard(Epochs& epochs, int number)
    : number_(number),
      smallest_(kSmallestArray * std::pow(kGrowth, static_cast<double>(number) / kShards)),
      epochs_(epochs),
      array_(std::make_unique<BucketArray>(number, capacity_for(0), true)),
      buckets_(array_.get()) {}

uint64_t IndexShard::capacity_for(uint64_t entries) const {
  double capacity = smallest_;
  while (static_cast<uint64_t>(capacity) < entries) capacity *= kGrowth;
  return static_cast<uint64_t>(capacity);
}

bool IndexShard::is_nearly_full() const {
  const uint64_t last = last_entries(*array_);
  return last >= kFewestLast && entries_ + last >= array_->capacity();
}

bool IndexShard::should_be_compact(uint64_t capacity, int64_t sample_key) const {
  const CompactBuckets compact(nullptr, CompactBuckets::count_for(capacity), number_);
  uint32_t fitting = 0;
  uint32_t others = 0;
  const auto look_at = [&](int64_t key, RowRef) { ++(compact.fits(key) ? fitting : others); };
  const uint32_t step = std::max(1u, array_->count() / kSampledBuckets);
  for (uint32_t i = 0; i < array_->count(); i += step) array_->for_each(i, i + 1, look_at);
  if (fitting + others < kSampledBuckets) look_at(sample_key, RowRef());
  return others <= fitting / kFittingAStashed;
}

IndexEntry IndexShard::entry(int64_t key) const { return find(*array_, key); }

uint64_t IndexShard::room() const {
  const uint64_t most = array_->capacity();
  return most - std::min(most, entries_ + reserved_);
}

void IndexShard::reserve(uint64_t count, int64_t sample_key) {
  const uint64_t wanted = entries_ + reserved_ + count;
  const uint64_t capacity = array_->capacity();
  if (wanted > capacity) {
    const uint64_t larger = capacity_for(wanted);
    if (next_ == nullptr || next_->capacity() < larger) begin_next(larger, sample_key);
    copy_to_next(array_->count());
    switch_to_next();
  } else if (next_ != nullptr && entries_ + 4 * last_entries(*array_) < capacity) [[unlikely]] {
    next_.reset();
  } else if (erased_ > capacity / 2 && wanted < capacity / 4) [[unlikely]] {
    // Only if as many entries were erased since the array was made. So entries that come and go seldom pay
    // for it, and an array that was made large for future entries stays large.
    if (try_begin_next(capacity_for(wanted + wanted / 2), sample_key)) {
      copy_to_next(array_->count());
      switch_to_next();
    } else {
      erased_ = 0;  // tries again when as many more were erased
    }
  }
}

IndexShard::Room IndexShard::reserve_room(uint64_t count, int64_t sample_key) {
  reserve(count, sample_key);
  reserved_ += count;
  return {*this, count};
}

void IndexShard::give_back(uint64_t count) noexcept {
  const MutexLock lock(mutex);
  reserved_ -= count;
}

IndexEntry IndexShard::insert(int64_t key, RowRef ref) noexcept {
  ++entries_;
  const IndexEntry placed = place<Seen::kYes>(*array_, key, ref);
  // Counts inserted keys, not keys for which room is reserved: most of those may be here already.
  if (next_ == nullptr && is_nearly_full()) [[unlikely]]
    try_begin_next(capacity_for(array_->capacity() + 1), key);
  if (next_ != nullptr) [[unlikely]] {
    if (is_copied(placed)) place<Seen::kNo>(*next_, key, ref);
    copy_to_next(static_cast<uint32_t>(array_->count() / last_entries(*array_) + 1));
  }
  return placed;
}

IndexEntry IndexShard::insert(int64_t key, RowRef ref, Room& room) noexcept {
  --room.left_;
  --reserved_;
  return insert(key, ref);
}

void IndexShard::set_ref_of_copy(const IndexEntry& entry, RowRef ref) noexcept {
  const IndexEntry copy = find(*next_, array_->key(*entry.bucket, entry.position));
  copy.bucket->set_ref(copy.position, ref);
}

void IndexShard::erase_copy(int64_t key) noexcept {
  erase_in(*next_, find(*next_, key), [](const IndexEntry&, const IndexEntry&) {});
}

void IndexShard::erase(const IndexEntry& entry) noexcept {
  if (next_ != nullptr && is_copied(entry)) erase_copy(array_->key(*entry.bucket, entry.position));
  --entries_;
  ++erased_;
  ++layout_;
  erase_in(*array_, entry, [this](const IndexEntry& from, const IndexEntry& to) {
    mutex.assert_held();
    if (next_ == nullptr || is_copied(from) == is_copied(to)) return;
    // Around the end of the array, a key may move between the copied part and the part that is still to be
    // copied.
    const int64_t key = array_->key(*to.bucket, to.position);
    if (is_copied(to)) {
      place<Seen::kNo>(*next_, key, to.ref());
    } else {
      erase_copy(key);
    }
  });
}

void IndexShard::begin_next(uint64_t capacity, int64_t sample_key) {
  next_.reset();
  next_ = std::make_unique<BucketArray>(number_, capacity, should_be_compact(capacity, sample_key));
  copied_ = 0;
}

bool IndexShard::try_begin_next(uint64_t capacity, int64_t sample_key) {
  try {
    begin_next(capacity, sample_key);
    return true;
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
  return false;
}

void IndexShard::copy_to_next(uint32_t buckets) noexcept {
  const uint32_t end = copied_ + std::min(buckets, array_->count() - copied_);
  array_->for_each(copied_, end, [this](int64_t key, RowRef ref) {
    mutex.assert_held();
    place<Seen::kNo>(*next_, key, ref);
  });
  copied_ = end;
}

void IndexShard::switch_to_next() noexcept {
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
