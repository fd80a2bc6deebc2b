// The checkpoints of a pool as they are on the medium: an entry and a bitmap for each.
//
// A checkpoint comes into being, and ends, by one store of eight bytes. Until it's there, nothing that it needs is
// written over what another needs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "tiers/pool/durable_file.h"
#include "tiers/pool/format.h"
#include "tiers/pool/slot_bits.h"

namespace embstore::pool {

// One caller at a time.
class CheckpointTable {
 public:
  // `file` has a header of so many slots.
  CheckpointTable(std::unique_ptr<DurableFile> file, uint64_t slots);

  const DurableFile& file() const { return *file_; }

  // Tells of every checkpoint that is there, in no order; from then on they are durable. Throws Error(kStorage) where
  // one is damaged.
  using Found = std::function<void(size_t entry, const Entry& checkpoint, std::span<const uint64_t> words)>;
  void load(const Found& found);
  // The greatest number that is known to have been given. REQUIRES: load().
  uint64_t greatest_number() const;

  // An entry for a new checkpoint, of those that `is_used` isn't true for, which are at least two.
  size_t choose(const std::array<bool, kEntries>& is_used) const;
  // Throws Error(kStorage); then it isn't there. REQUIRES: all that the bits name is durable; no checkpoint is there.
  // Returns how many rows it has.
  uint64_t commit(size_t entry, uint64_t number, const std::array<uint8_t, 16>& id, const SlotBits& bits);
  // Throws Error(kStorage); then it may be there or not.
  void drop(size_t entry);

  // Copies what is there to a table of another number of slots, at least as many, that is new.
  void copy_to(CheckpointTable& other) const;

 private:
  Entry entry(size_t i) const;
  void sync_table();
  // The checksum of the bitmap, and how many bits are set.
  template <class Words>
  std::pair<uint32_t, uint64_t> write_region(size_t entry, Words word);

  const std::unique_ptr<DurableFile> file_;
  const uint64_t slots_;
  const CheckpointsShape shape_;
  std::array<uint64_t, kEntries> given_{};
  std::array<bool, kEntries> region_is_durable_{};  // as it can be read; else a part may be in caches alone
};

}  // namespace embstore::pool
