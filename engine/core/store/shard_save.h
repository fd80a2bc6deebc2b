// Keeps, for one shard during a save, what the save needs while batches go on: images of rows that have
// changed since the save's moment and that it has not written yet, and the keys that are new since then.
//
// A thread that is about to change a row first keeps the row's image here; a thread that inserts a row notes
// its key. Neither can fail, because a batch reserves room for its keys while it is prepared. A save begins
// with the apply gate held alone, so every batch that is committed during a save was also prepared during it.
// An image is found by its key, because rows move between tiers.
//
// The save writes a shard in the order of the rows' hashes, and says up to which hash it has written. Rows
// below that hash need no image any more.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/page_vector.h"
#include "row/key_hash.h"
#include "row/row_batch.h"
#include "row/row_layout.h"
#include "store/index/index.h"
#include "threads/mutex.h"
#include "tiers/memory/memory_tier.h"

namespace embstore {

// The bytes that all images of a table take. A save writes images early if they take many bytes, and batches
// wait for the save if they take too many.
class ImageMemory {
 public:
  void add(size_t bytes) noexcept { bytes_.fetch_add(bytes); }
  void remove(size_t bytes) noexcept {
    bytes_.fetch_sub(bytes);
    const MutexLock lock(mutex_);
    fewer_.notify_all();
  }
  bool are_many() const {
    return bytes_.load(std::memory_order_relaxed) > many_bytes_.load(std::memory_order_relaxed);
  }
  // For tests. REQUIRES: no save is under way.
  void set_many_bytes(size_t bytes) { many_bytes_.store(bytes); }
  // REQUIRES: the thread holds no lock but apply gates.
  void wait_for_room() {
    if (bytes_.load(std::memory_order_relaxed) <= kMaxBytes) [[likely]]
      return;
    const MutexLock lock(mutex_);
    while (bytes_.load() > kMaxBytes) fewer_.wait(mutex_);
  }

 private:
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  std::atomic<size_t> bytes_{0};
  std::atomic<size_t> many_bytes_{kMaxBytes / 2};
  Mutex mutex_;
  Condition fewer_;
};

// The save's data of one shard. Guarded by the shard's mutex.
class ShardSave {
 public:
  // kKeys: only the keys of rows that change are noted, without images.
  enum class Keeps { kKeys, kImages };
  struct Images {
    PageVector<RowHeader> headers;
    PageVector<float> floats;
  };

  ShardSave(Keeps keeps, const RowLayout& layout, ImageMemory& memory)
      : keeps_(keeps), row_floats_(layout.row_floats()), memory_(memory) {}
  ~ShardSave() { memory_.remove(bytes_of(images_)); }
  ShardSave(const ShardSave&) = delete;
  ShardSave& operator=(const ShardSave&) = delete;

  // --- For threads that change rows. Reserves room for this number of keys, or gives it back. reserve()
  // throws Error(kStorage) or std::bad_alloc, and then has changed nothing.
  void reserve(size_t keys);
  void give_back(size_t keys) noexcept { reserved_ -= keys; }
  // REQUIRES for note_insert() and prepare_change(): room is reserved for the key.
  void note_insert(int64_t key) noexcept {
    if (is_unknown(key)) add(key, kNoImage);
  }
  void prepare_change(const MemoryTier& tier, Slot slot, int64_t key) noexcept {
    if (is_unknown(key)) keep(tier.header(slot, key), tier.rows().row(slot));
  }
  void prepare_change(const RowHeader& header, const float* floats) noexcept {
    if (is_unknown(header.key)) keep(header, floats);
  }

  // --- For the save.
  struct Known {
    bool is_known = false;              // true if the row has changed since the save's moment
    const RowHeader* header = nullptr;  // its image; null if there is nothing (more) to write
    const float* floats = nullptr;
  };
  Known known(int64_t key) const;
  // The keys that were noted, and those that have images.
  std::vector<int64_t> keys() const;
  // Every row whose sort_hash() is less than this has been written.
  void set_written_below(uint64_t hash) { written_below_ = hash; }
  // Takes the images of rows that are not written yet; the caller must write them.
  Images take_images();

  // The order in which a save writes the rows of a shard. The hash doesn't choose buckets: otherwise a
  // restore, which inserts rows in the order of the file, would fill the buckets of its growing index from
  // one end.
  static uint32_t sort_hash(KeyHash hash) { return static_cast<uint32_t>(hash >> (32 - kShardBits)); }

 private:
  static constexpr uint32_t kNoImage = UINT32_MAX;
  struct Entry {
    int64_t key;
    uint32_t image;  // number in images_
  };

  bool is_unknown(int64_t key) const {
    return sort_hash(hash_key(key)) >= written_below_ && find(key) == nullptr;
  }
  void keep(const RowHeader& header, const float* floats) noexcept;
  void add(int64_t key, uint32_t image) noexcept;
  void link(size_t entry) noexcept;
  const Entry* find(int64_t key) const;
  size_t bytes_of(const Images& images) const {
    return images.headers.size() * (sizeof(RowHeader) + row_floats_ * sizeof(float));
  }

  const Keeps keeps_;
  const size_t row_floats_;
  ImageMemory& memory_;
  uint64_t written_below_ = 0;
  size_t reserved_ = 0;  // for batches under preparation
  PageVector<Entry> entries_;
  PageVector<uint32_t> table_;  // open addressing: position in entries_ + 1; 0: empty
  Images images_;
};

// The room that a batch has reserved in the saves of its shards. The destructor gives it back.
class ImageRoom {
 public:
  explicit ImageRoom(const Index& index) : index_(index) {}
  ~ImageRoom() {
    for (int s = 0; s < kShards; ++s) {
      const size_t keys = reserved_[static_cast<size_t>(s)];
      if (keys == 0) continue;
      IndexShard& shard = index_.shard(s);
      const MutexLock lock(shard.mutex);
      if (shard.save != nullptr) shard.save->give_back(keys);
    }
  }
  ImageRoom(const ImageRoom&) = delete;
  ImageRoom& operator=(const ImageRoom&) = delete;

  void reserve(IndexShard& shard, int number, size_t keys) REQUIRES(shard.mutex) {
    if (shard.save == nullptr) [[likely]]
      return;
    shard.save->reserve(keys);
    reserved_[static_cast<size_t>(number)] += keys;
  }

 private:
  const Index& index_;
  std::array<size_t, kShards> reserved_{};
};

}  // namespace embstore
