// The hash index of a table: key -> RowRef, in shards that are written independently and read without
// locks. See bucket.h for how a reader knows that what it read is whole.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "memory/huge_pages.h"
#include "platform/prefetch.h"
#include "row/key_hash.h"
#include "row/place.h"
#include "store/index/bucket.h"
#include "threads/epochs.h"

namespace embstore {

// The home of a hash among `count` buckets. By the low half of the hash; its top bits choose the shard.
inline uint32_t home_bucket(KeyHash hash, uint64_t count) {
  return static_cast<uint32_t>((hash & 0xffffffffu) * count >> 32);
}

class BucketArray {
 public:
  explicit BucketArray(uint32_t count) : buckets_(count), count_(count) {}

  uint32_t count() const { return count_; }
  const Bucket* data() const { return buckets_.data(); }
  uint32_t next(uint32_t i) const { return i + 1 == count_ ? 0 : i + 1; }
  Bucket& operator[](uint32_t i) const { return buckets_[i]; }

 private:
  PageArray<Bucket> buckets_;
  uint32_t count_;
};

// What a reader found: a reference (empty: no such key) that holds while `bucket` is unchanged since
// `state`.
struct Found {
  const Bucket* bucket;
  uint32_t state;
  RowRef ref;

  // True if the row at `ref`, if it was read after this was found, is whole and still the key's.
  bool holds() const { return bucket->guard.unchanged_since(state); }
};

// What a writer found; `bucket` is null where there is no such key.
struct Entry {
  Bucket* bucket = nullptr;
  int position = -1;

  explicit operator bool() const { return bucket != nullptr; }
  RowRef ref() const { return bucket->ref(position); }
};

class alignas(64) IndexShard {
 public:
  explicit IndexShard(Epochs& epochs);
  IndexShard(const IndexShard&) = delete;
  IndexShard& operator=(const IndexShard&) = delete;

  // Guards every change to the shard's entries and to the rows that they refer to.
  std::mutex mutex;

  // What readers start from. REQUIRES: a guard of the epochs is held, for as long as the array is used.
  // Sequentially consistent, as Epochs::enter() asks; costs nothing more on x86.
  const BucketArray& buckets() const { return *buckets_.load(); }

  // --- Writers. REQUIRES: `mutex` is held.
  Entry entry(KeyHash hash, int64_t key) const;
  // Makes room, so that the next `count` inserts leave every Bucket* valid.
  void reserve(uint64_t count);
  // REQUIRES: room was reserved, `key` is absent, and the row that `ref` names is whole.
  Entry insert(KeyHash hash, int64_t key, RowRef ref);
  // Lets the entry refer to another place, which readers see at once.
  void set_ref(const Entry& entry, RowRef ref) {
    const RowWrite write(entry.bucket->guard);
    entry.bucket->refs[entry.position].store(ref.raw(), std::memory_order_relaxed);
  }
  void erase(const Entry& entry) {
    set_ref(entry, RowRef());
    --entries_;
  }
  uint64_t entries() const { return entries_; }
  uint64_t size_bytes() const { return uint64_t{array_->count()} * sizeof(Bucket); }
  template <class Visit>
  void for_each(Visit visit) const {
    for (uint32_t i = 0; i < array_->count(); ++i) {
      const Bucket& bucket = (*array_)[i];
      for (int e = 0; e < Bucket::kEntries; ++e) {
        if (const RowRef ref = bucket.ref(e)) visit(bucket.keys[e].load(std::memory_order_relaxed), ref);
      }
    }
  }

 private:
  void grow(uint32_t count);
  static Entry place(const BucketArray& buckets, KeyHash hash, int64_t key, RowRef ref);

  Epochs& epochs_;
  std::shared_ptr<BucketArray> array_;       // guarded by mutex
  uint64_t entries_ = 0;                     // guarded by mutex
  std::atomic<const BucketArray*> buckets_;  // array_, for readers
};

class Index {
 public:
  explicit Index(Epochs& epochs);

  IndexShard& shard(int i) const { return *shards_[static_cast<size_t>(i)]; }

 private:
  std::array<std::unique_ptr<IndexShard>, kShards> shards_;
};

// A batch's view of the index: every shard's array, looked up once, so that an id costs one indexed load.
// REQUIRES: a guard of the epochs is held as long as the view lives.
class IndexReader {
 public:
  explicit IndexReader(const Index& index) : index_(index) {
    for (int i = 0; i < kShards; ++i) views_[static_cast<size_t>(i)] = view_of(i);
  }

  void prefetch(KeyHash hash) const {
    const View& view = view_of_hash(hash);
    prefetch_line(view.buckets + home_bucket(hash, view.count));
  }

  Found find(KeyHash hash, int64_t key) {
    for (;;) {
      const View& view = view_of_hash(hash);
      const uint64_t home = home_bucket(hash, view.count);
      uint64_t i = home;
      for (;;) {
        const Bucket& bucket = view.buckets[i];
        const uint32_t state = bucket.guard.state.load(std::memory_order_acquire);
        if ((state & (RowGuard::kWriting | Bucket::kMoved)) != 0) [[unlikely]] {
          if ((state & Bucket::kMoved) != 0) break;
          __builtin_ia32_pause();
          continue;
        }
        const int entry = bucket.find(key);
        if (entry >= 0) [[likely]]
          return {&bucket, state, bucket.ref(entry)};
        // A key that is inserted while we look may be missed: the look-up came before it.
        if ((state & Bucket::kOverflowed) == 0) return {&bucket, state, RowRef()};
        if (++i == view.count) i = 0;
        if (i == home) return {&bucket, state, RowRef()};
      }
      // The array was replaced since the batch began.
      const int shard = shard_of(hash);
      views_[static_cast<size_t>(shard)] = view_of(shard);
    }
  }

 private:
  struct View {
    const Bucket* buckets;
    uint64_t count;
  };

  View view_of(int shard) const {
    const BucketArray& buckets = index_.shard(shard).buckets();
    return {buckets.data(), buckets.count()};
  }
  const View& view_of_hash(KeyHash hash) const { return views_[static_cast<size_t>(shard_of(hash))]; }

  const Index& index_;
  std::array<View, kShards> views_;
};

}  // namespace embstore
