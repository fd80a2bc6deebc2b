// The buckets of one shard at one time. Growing or shrinking makes a new array; the kMoved flags of the old
// one's buckets tell readers that still hold it.
#pragma once

#include <cstdint>
#include <optional>

#include "memory/huge_pages.h"
#include "memory/shared_pages.h"
#include "row/key_hash.h"
#include "store/index/bucket.h"
#include "store/index/compact_buckets.h"
#include "store/index/wide_buckets.h"
#include "threads/epochs.h"

namespace embstore {

// The array has compact buckets if nearly all keys fit them, and wide ones otherwise.
//
// Beside compact buckets there is a stash of wide ones, with room for every key, which takes no memory until
// a key comes. It is for keys that don't fit, and for keys with too many others around their homes, which
// practically don't occur unless an attacker chose the keys. So an insert never fails. A stashed key's home
// is a compact bucket, whose flag says that it has such keys.
class BucketArray : public Retirable {
 public:
  // For `capacity` keys of a shard. Throws Error(kStorage) or std::bad_alloc if there is no memory.
  BucketArray(int shard, uint64_t capacity, bool is_compact)
      : capacity_(capacity),
        memory_(is_compact ? CompactBuckets::count_for(capacity) : WideBuckets::count_for(capacity)),
        // If all keys were stashed, it would be fuller than is good for searches.
        stash_memory_(is_compact ? static_cast<uint32_t>(capacity / WideBuckets::kEntries + 1) : 0,
                      /*is_seldom_touched=*/true),
        compact_(memory_.first(), is_compact ? memory_.count() : 0, shard),
        wide_(is_compact ? stash_memory_.first() : memory_.first(),
              is_compact ? stash_memory_.count() : memory_.count()) {}

  uint64_t capacity() const { return capacity_; }
  const CompactBuckets& compact() const { return compact_; }
  const WideBuckets& wide() const { return wide_; }
  bool is_compact() const { return compact_.count() != 0; }
  // The bucket at which a search for a key begins.
  const Bucket* home(int64_t key) const {
    return is_compact() ? &compact_[compact_.seek_any(key).home] : &wide_[wide_.seek(key).home];
  }

  // --- For writers. The buckets that have had entries: the compact ones first, then the wide ones.
  uint32_t count() const { return compact().count() + (is_compact() && !uses_stash_ ? 0 : wide().count()); }
  Bucket& operator[](uint32_t i) const {
    return i < compact().count() ? compact()[i] : wide()[i - compact().count()];
  }
  uint32_t position(const Bucket& bucket) const {
    return compact().contains(bucket) ? compact().position(bucket)
                                      : compact().count() + wide().position(bucket);
  }
  int64_t key(const Bucket& bucket, int entry) const {
    return compact().contains(bucket) ? compact().key(compact().position(bucket), entry) : bucket.key(entry);
  }
  // Calls visit(key, ref) for each entry of the buckets from `first` up to `last`.
  template <class Visit>
  void for_each(uint32_t first, uint32_t last, Visit visit) const {
    for (uint32_t i = first; i < last; ++i) {
      const Bucket& bucket = (*this)[i];
      const int entries = i < compact().count() ? CompactBuckets::kEntries : WideBuckets::kEntries;
      for (int e = 0; e < entries; ++e) {
        if (const RowRef ref = bucket.ref(e)) visit(key(bucket, e), ref);
      }
    }
  }
  bool uses_stash() const { return uses_stash_; }
  void note_stashed() { uses_stash_ = true; }

 private:
  class Memory {
   public:
    explicit Memory(uint32_t count, bool is_seldom_touched = false) : count_(count) {
      constexpr size_t kPageBytes = 4096;
      if (is_seldom_touched && size_bytes() >= kPageBytes) {
        pages_.emplace(count, PageSize::kSmall);
        first_ = pages_->data();
      } else if (count != 0) {
        first_ = static_cast<Bucket*>(take_shared_pages(size_bytes()));
      }
    }
    ~Memory() {
      if (!pages_ && count_ != 0) give_shared_pages_back(first_, size_bytes());
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    Bucket* first() const { return first_; }
    uint32_t count() const { return count_; }

   private:
    size_t size_bytes() const { return count_ * sizeof(Bucket); }

    const uint32_t count_;
    std::optional<PageArray<Bucket>> pages_;
    Bucket* first_ = nullptr;
  };

  const uint64_t capacity_;
  const Memory memory_;
  const Memory stash_memory_;
  const CompactBuckets compact_;
  const WideBuckets wide_;
  bool uses_stash_ = false;  // true if it holds keys, or ever held one
};

}  // namespace embstore
