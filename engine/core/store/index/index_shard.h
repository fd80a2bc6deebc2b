// One shard of the index, for its writers: key -> RowRef, changed under the shard's mutex. How it is read
// without the mutex: index_reader.h.
//
// A key lies in its home bucket or, where that is full, in the first after it that had room. Every bucket that
// a key was passed on by is marked as overflowed, so that a search knows where to end. An erasure moves a key
// that was passed on back into the room that it leaves, and takes off the marks that no key needs any more.
// So however many keys have come and gone, the shard looks as if it had been filled just now, and searches
// stay as short.
//
// A larger array is filled beside the one that readers see, some buckets with each of the last inserts that have room, so that
// no batch waits for a whole shard. What changes in the part that is copied changes in both. A batch that needs more room
// than is left copies the rest at once. Shards grow at different sizes, so one batch seldom finds several of them full.
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

// What a writer found; `bucket` is null where there is no such key. Holds until the shard's mutex is let go
// of, room is reserved, or an entry is erased, whichever it is.
struct IndexEntry {
  Bucket* bucket = nullptr;
  int position = -1;

  explicit operator bool() const { return bucket != nullptr; }
  RowRef ref() const { return bucket->ref(position); }
};

class alignas(64) IndexShard {
 public:
  class Room;

  // Of the keys of shard `number`. Each shard grows through other sizes.
  IndexShard(Epochs& epochs, int number);
  IndexShard(const IndexShard&) = delete;
  IndexShard& operator=(const IndexShard&) = delete;

  // Guards every change to the shard's entries and to the rows that they refer to.
  Mutex mutex;

  // What the save that is under way keeps of the shard (store/shard_save.h); null where none is.
  ShardSave* save GUARDED_BY(mutex) PT_GUARDED_BY(mutex) = nullptr;

  // What readers start from. REQUIRES: a guard of the epochs is held, for as long as the array is used.
  // Sequentially consistent, as Epochs::enter() asks; costs nothing more on x86.
  const BucketArray& buckets() const { return *buckets_.load(); }

  // --- Writers.
  IndexEntry entry(int64_t key) const REQUIRES(mutex);

  // How many more inserts the array has room for, beside those that are reserved.
  uint64_t room() const REQUIRES(mutex);
  // Makes room for the next `count` inserts, which then can't fail as long as the mutex is held on. Gives
  // memory back where most entries went. `one` of those to come says for which keys the first array is made.
  // Throws Error(kStorage) or std::bad_alloc, and has changed nothing.
  void reserve(uint64_t count, int64_t one) REQUIRES(mutex);
  // Makes room for `count` inserts that stays its holder's when the mutex is let go of, whatever others insert.
  // Throws Error(kStorage) or std::bad_alloc, and has changed nothing.
  [[nodiscard]] Room reserve_room(uint64_t count, int64_t one) REQUIRES(mutex);

  // REQUIRES: room was reserved, `key` is absent, and the row that `ref` names is whole.
  IndexEntry insert(int64_t key, RowRef ref) noexcept REQUIRES(mutex);
  // From the room of this shard that is given, of which something is left.
  IndexEntry insert(int64_t key, RowRef ref, Room& room) noexcept REQUIRES(mutex);

  // Lets the entry refer to another place, which readers see at once.
  void set_ref(const IndexEntry& entry, RowRef ref) noexcept REQUIRES(mutex) {
    {
      const RowWrite write(entry.bucket->guard);
      entry.bucket->set_ref(entry.position, ref);
    }
    if (next_ != nullptr && is_copied(entry)) [[unlikely]]
      set_ref_of_copy(entry, ref);
  }
  // Every entry that was found before is void then: another key may lie there.
  void erase(const IndexEntry& entry) noexcept REQUIRES(mutex);

  // A number that is another once entries that were found may be void.
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
  // Of the sizes that the array grows through, the least that has room.
  uint64_t capacity_for(uint64_t entries) const;
  bool is_nearly_full() const REQUIRES(mutex);
  bool should_be_compact(uint64_t capacity, int64_t one) const REQUIRES(mutex);
  // Throws Error(kStorage) or std::bad_alloc, and there is no next_ then.
  void begin_next(uint64_t capacity, int64_t one) REQUIRES(mutex);
  bool begin_next_if_there_is_memory(uint64_t capacity, int64_t one) REQUIRES(mutex);
  // So many more buckets, or all that are left.
  void copy_to_next(uint32_t buckets) noexcept REQUIRES(mutex);
  void change_to_next() noexcept REQUIRES(mutex);
  bool is_copied(const IndexEntry& entry) const REQUIRES(mutex) {
    return array_->position(*entry.bucket) < copied_;
  }
  // Of an entry of array_, and of a key, that next_ has a copy of.
  void set_ref_of_copy(const IndexEntry& entry, RowRef ref) noexcept REQUIRES(mutex);
  void erase_copy(int64_t key) noexcept REQUIRES(mutex);
  void give_back(uint64_t count) noexcept EXCLUDES(mutex);

  const int number_;
  const double smallest_;  // array, in entries
  Epochs& epochs_;
  std::unique_ptr<BucketArray> array_ GUARDED_BY(mutex);
  std::unique_ptr<BucketArray> next_ GUARDED_BY(mutex);  // null most of the time; no reader sees it
  uint32_t copied_ GUARDED_BY(mutex) = 0;                // buckets of array_ whose entries are in next_, too
  uint64_t entries_ GUARDED_BY(mutex) = 0;
  uint64_t reserved_ GUARDED_BY(mutex) = 0;  // for entries to come, by the rooms that are held
  uint64_t erased_ GUARDED_BY(mutex) = 0;    // since the array was made
  uint64_t layout_ GUARDED_BY(mutex) = 0;
  std::atomic<const BucketArray*> buckets_;  // array_, for readers
};

// Room for so many inserts, which then can't fail. What is left of it goes back in the end, for which the
// shard's mutex is taken.
class IndexShard::Room {
 public:
  Room() = default;  // for nothing
  Room(Room&& other) noexcept
      : shard_(std::exchange(other.shard_, nullptr)), left_(std::exchange(other.left_, 0)) {}
  // What it had goes back when `other` ends.
  Room& operator=(Room&& other) noexcept {
    std::swap(shard_, other.shard_);
    std::swap(left_, other.left_);
    return *this;
  }
  // REQUIRES: the shard's mutex isn't held, unless nothing is left.
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
