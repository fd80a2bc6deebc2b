#include "store/index/index_shard.h"

#include <algorithm>
#include <new>
#include <utility>

#include "errors/error.h"

namespace embstore {
namespace {

constexpr uint32_t kSmallestArray = 8;  // buckets
// Above this load, probes that leave their home bucket cost more than the memory is worth.
constexpr double kMaxLoad = 0.75;

uint64_t capacity(uint64_t buckets) {
  return static_cast<uint64_t>(kMaxLoad * Bucket::kEntries * static_cast<double>(buckets));
}

// By a third: between 17 and 23 bytes an entry, where doubling would take up to 34.
uint64_t grown_for(uint64_t entries, uint64_t buckets) {
  while (capacity(buckets) < entries) buckets += buckets / 3 + 1;
  return buckets;
}

bool is_overflowed(const Bucket& bucket) {
  return (bucket.guard.state.load(std::memory_order_relaxed) & Bucket::kOverflowed) != 0;
}

// How many buckets passed on the key of an entry of bucket `i`.
uint32_t displacement(const BucketArray& buckets, uint32_t i, int entry) {
  const int64_t key = buckets[i].keys[entry].load(std::memory_order_relaxed);
  return buckets.distance(home_bucket(hash_key(key), buckets.count()), i);
}

}  // namespace

IndexShard::IndexShard(Epochs& epochs)
    : epochs_(epochs), array_(std::make_unique<BucketArray>(kSmallestArray)), buckets_(array_.get()) {}

IndexEntry IndexShard::entry(KeyHash hash, int64_t key) const {
  const BucketArray& buckets = *array_;
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

uint64_t IndexShard::room() const {
  const uint64_t most = capacity(array_->count());
  return most - std::min(most, entries_ + reserved_);
}

void IndexShard::reserve(uint64_t count) {
  const uint64_t wanted = entries_ + reserved_ + count;
  const uint64_t buckets = array_->count();
  if (wanted > capacity(buckets)) {
    rebuild(grown_for(wanted, buckets));
  } else if (erased_ > capacity(buckets) / 2 && wanted < capacity(buckets) / 4) [[unlikely]] {
    // Only where as many were erased since, so that entries that come and go seldom pay for it, and an array
    // that was made large for what is to come stays so.
    try {
      rebuild(grown_for(wanted + wanted / 2, kSmallestArray));
    } catch (const Error&) {
      // There is room enough without it. Again when as many more were erased.
      erased_ = 0;
      ++layout_;
    } catch (const std::bad_alloc&) {
      erased_ = 0;
      ++layout_;
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
  return place(*array_, hash, key, ref);
}

IndexEntry IndexShard::insert(KeyHash hash, int64_t key, RowRef ref, Room& room) noexcept {
  --room.left_;
  --reserved_;
  return insert(hash, key, ref);
}

IndexEntry IndexShard::place(const BucketArray& buckets, KeyHash hash, int64_t key, RowRef ref) {
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

void IndexShard::erase(const IndexEntry& entry) noexcept {
  const BucketArray& buckets = *array_;
  const int64_t key = entry.key();
  set_ref(entry, RowRef());
  --entries_;
  ++erased_;
  ++layout_;
  uint32_t room = buckets.position(*entry.bucket);
  unmark(home_bucket(hash_key(key), buckets.count()), room);
  // Each key that moves back leaves room for another.
  for (IndexEntry hole = entry, moved; (moved = passed_on_by(room)); hole = moved) {
    {
      const RowWrite write(hole.bucket->guard);
      hole.bucket->keys[hole.position].store(moved.key(), std::memory_order_relaxed);
      hole.bucket->refs[hole.position].store(moved.ref().raw(), std::memory_order_relaxed);
    }
    // Only then: whoever reads meanwhile finds one of the two, or sees that a bucket behind it has changed.
    set_ref(moved, RowRef());
    const uint32_t from = buckets.position(*moved.bucket);
    unmark(room, from);
    room = from;
  }
}

IndexEntry IndexShard::passed_on_by(uint32_t passed) const {
  const BucketArray& buckets = *array_;
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

void IndexShard::unmark(uint32_t first, uint32_t last) noexcept {
  const BucketArray& buckets = *array_;
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

void IndexShard::rebuild(uint64_t count) {
  auto rebuilt = std::make_unique<BucketArray>(static_cast<uint32_t>(count));
  for_each([&rebuilt](int64_t key, RowRef ref) { place(*rebuilt, hash_key(key), key, ref); });
  std::unique_ptr<BucketArray> old = std::exchange(array_, std::move(rebuilt));
  erased_ = 0;
  ++layout_;
  buckets_.store(array_.get());
  // A reader that still holds the old array must not accept a row that is written under the new one.
  for (uint32_t i = 0; i < old->count(); ++i) {
    (*old)[i].guard.state.fetch_or(Bucket::kMoved, std::memory_order_acq_rel);
  }
  epochs_.retire(std::move(old));
}

}  // namespace embstore
