// One shard of the index, as its writers see it: key -> RowRef, changed under the shard's mutex.
// index_reader.h reads it without the mutex.
//
// A key lies in its home bucket or, if that was full, in the first bucket after it that had room. Every
// bucket that passed a key on is marked as overflowed, so that a search knows where to end. An erasure moves
// a key that was passed on back into the free entry, and clears the marks that no key needs any more. So
// whatever number of keys have come and gone, the shard looks as if it had just been filled, and searches
// stay short.
//
// To grow, a larger array is filled beside the one that readers see: each of the last inserts copies some
// buckets, so that no batch waits for a whole shard. A change in the copied part is made in both arrays. A
// batch that needs more room than is left copies the rest at once. Shards grow at different sizes, so that a
// batch seldom finds several of them full.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "row/key_hash.h"
#include "row/place.h"
#include "store/index/bucket.h"
#include "store/index/bucket_array.h"
#include "threads/epochs.h"
#include "threads/mutex.h"

namespace embstore {

class ShardSave;

// An entry that a writer found; `bucket` is null if there is no such key. It is valid until the shard's mutex
// is released, room is reserved, or any entry is erased.
struct IndexEntry {
  Bucket* bucket = nullptr;
  int position = -1;

  explicit operator bool() const { return bucket != nullptr; }
  RowRef ref() const { return bucket->ref(position); }
};

class alignas(64) IndexShard {
 public:
  class Room;

  // For the keys of shard `number`. Each shard grows through different sizes.
  IndexShard(Epochs& epochs, int number);
  IndexShard(const IndexShard&) = delete;
  IndexShard& operator=(const IndexShard&) = delete;

  // Guards every change to the shard's entries and to the rows that they refer to.
  Mutex mutex;

  // The data that the current save keeps of the shard (store/shard_save.h); null if no save is under way.
  ShardSave* save GUARDED_BY(mutex) PT_GUARDED_BY(mutex) = nullptr;

  // Returns the array that readers start from. REQUIRES: a guard of the epochs is held as long as the array
  // is used. The load is sequentially consistent, as Epochs::enter() requires, which costs nothing more on
  // x86.
  const BucketArray& buckets() const { return *buckets_.load(); }

  // --- For writers.
  IndexEntry entry(int64_t key) const REQUIRES(mutex);

  // The number of further inserts for which the array has room, beside those that are reserved.
  uint64_t room() const REQUIRES(mutex);
  // Makes room for the next `count` inserts, which then can't fail as long as the mutex stays held. Gives
  // memory back if most entries were erased. `sample_key` is one of the keys to come; it says for which kind
  // of keys the first array is made. Throws Error(kStorage) or std::bad_alloc, and then has changed nothing.
  void reserve(uint64_t count, int64_t sample_key) REQUIRES(mutex);
  // Makes room for `count` inserts that its holder keeps when the mutex is released, whatever other threads
  // insert. Throws Error(kStorage) or std::bad_alloc, and then has changed nothing.
  [[nodiscard]] Room reserve_room(uint64_t count, int64_t sample_key) REQUIRES(mutex);

  // REQUIRES: room was reserved, `key` is absent, and the row that `ref` names is whole.
  IndexEntry insert(int64_t key, RowRef ref) noexcept REQUIRES(mutex);
  // Inserts with the given room of this shard. REQUIRES: some of the room is left.
  IndexEntry insert(int64_t key, RowRef ref, Room& room) noexcept REQUIRES(mutex);

  // Makes the entry refer to another place, which readers see at once.
  void set_ref(const IndexEntry& entry, RowRef ref) noexcept REQUIRES(mutex) {
    {
      const RowWrite write(entry.bucket->guard);
      entry.bucket->set_ref(entry.position, ref);
    }
    if (next_ != nullptr && is_copied(entry)) [[unlikely]]
      set_ref_of_copy(entry, ref);
  }
  // Erases the entry. Every entry that was found before is invalid then: another key may lie there.
  void erase(const IndexEntry& entry) noexcept REQUIRES(mutex);

  // A number that changes whenever entries that were found may have become invalid.
  uint64_t layout() const REQUIRES(mutex) { return layout_; }
  uint64_t entries() const REQUIRES(mutex) { return entries_; }
  uint64_t size_bytes() const REQUIRES(mutex) {
    return (uint64_t{array_->count()} + (next_ == nullptr ? 0 : next_->count())) * sizeof(Bucket);
  }
  template <class Visit>
  void for_each(Visit visit) const REQUIRES(mutex) {
    array_->for_each(0, array_->count(), visit);
  }

 private:
  // Returns the least size, among those through which the array grows, that has room for the entries.
  uint64_t capacity_for(uint64_t entries) const;
  bool is_nearly_full() const REQUIRES(mutex);
  bool should_be_compact(uint64_t capacity, int64_t sample_key) const REQUIRES(mutex);
  // Throws Error(kStorage) or std::bad_alloc, and then next_ is null.
  void begin_next(uint64_t capacity, int64_t sample_key) REQUIRES(mutex);
  bool try_begin_next(uint64_t capacity, int64_t sample_key) REQUIRES(mutex);
  // Copies this number of further buckets, or all that are left.
  void copy_to_next(uint32_t buckets) noexcept REQUIRES(mutex);
  void switch_to_next() noexcept REQUIRES(mutex);
  bool is_copied(const IndexEntry& entry) const REQUIRES(mutex) {
    return array_->position(*entry.bucket) < copied_;
  }
  // These change the copy in next_ of an entry of array_, or of a key.
  void set_ref_of_copy(const IndexEntry& entry, RowRef ref) noexcept REQUIRES(mutex);
  void erase_copy(int64_t key) noexcept REQUIRES(mutex);
  void give_back(uint64_t count) noexcept EXCLUDES(mutex);

  const int number_;
  const double smallest_;  // smallest array, in entries
  Epochs& epochs_;
  std::unique_ptr<BucketArray> array_ GUARDED_BY(mutex);
  std::unique_ptr<BucketArray> next_ GUARDED_BY(mutex);  // usually null; no reader sees it
  uint32_t copied_ GUARDED_BY(mutex) = 0;  // the first buckets of array_, whose entries are in next_, too
  uint64_t entries_ GUARDED_BY(mutex) = 0;
  uint64_t reserved_ GUARDED_BY(mutex) = 0;  // for future entries, by the rooms that are held
  uint64_t erased_ GUARDED_BY(mutex) = 0;    // since the array was made
  uint64_t layout_ GUARDED_BY(mutex) = 0;
  std::atomic<const BucketArray*> buckets_;  // array_, for readers
};

// Room for inserts, which then can't fail. The destructor gives the unused part back, and takes the shard's
// mutex for it.
class IndexShard::Room {
 public:
  Room() = default;  // an empty room
  Room(Room&& other) noexcept
      : shard_(std::exchange(other.shard_, nullptr)), left_(std::exchange(other.left_, 0)) {}
  // The room that this had goes back when `other` ends.
  Room& operator=(Room&& other) noexcept {
    std::swap(shard_, other.shard_);
    std::swap(left_, other.left_);
    return *this;
  }
  // REQUIRES: the shard's mutex isn't held, unless no room is left.
  ~Room() {
    if (left_ != 0) shard_->give_back(left_);
  }

  uint64_t left() const { return left_; }

 private:
  friend class IndexShard;
  Room(IndexShard& shard, uint64_t left) : shard_(&shard), left_(left) {}

  IndexShard* shard_ = nullptr;
  uint64_t left_ = 0;
};

}  // namespace embstore
