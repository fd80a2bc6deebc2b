// The log in persistent memory: one extent, all of a pool, whose records are written in any order and reused.
//
// Rows are written out of place. The slots of a kept checkpoint are never written. engine/FORMAT.md, section
// LOG, describes the bytes, and why this is correct.
//
// Locks: a tier's own are innermost. A thread that wrote rows calls fence() before other threads may learn of
// them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/file_calls.h"
#include "memory/libpmem.h"
#include "row/place.h"
#include "row/row_batch.h"
#include "row/row_layout.h"
#include "threads/mutex.h"
#include "tiers/log/durable_tier.h"
#include "tiers/log/identity.h"
#include "tiers/log/pool_file.h"
#include "tiers/log/record.h"
#include "tiers/log/record_references.h"
#include "tiers/log/row_bits.h"
#include "tiers/memory/ranked_tier.h"
#include "tiers/memory/slot_allocator.h"
#include "tiers/memory/slot_arrivals.h"
#include "tiers/memory/slot_ranks.h"
#include "tiers/tier.h"

namespace embstore {

class Phase;

// The role of a pool: kMiddle if rows move on from it to a tier below.
enum class PoolRole { kLast, kMiddle };

class PoolTier final : public Tier, public RankedTier, public DurableTier {
 public:
  // Slots that are kept free for copies of rows that may not be needed; see try_claim().
  static constexpr uint64_t kHeadroomSlots = 4096;

  // Returns how many slots a pool of size_bytes has, headroom included; 0 if there's no room for any.
  static uint64_t slots_for(const RowLayout& layout, uint64_t size_bytes);

  // Opens the pool at `path`, or creates it. If is_needed, checkpoints have rows there, which adopt_kept()
  // gets. Throws what open_pool_file() throws.
  PoolTier(const std::string& path, const log::TableIdentity& table, uint64_t size_bytes, bool is_needed,
           const LibPmem& libpmem = embstore::libpmem(), files::FileCalls& calls = files::system_file_calls(),
           PoolRole role = PoolRole::kLast);
  ~PoolTier() override;

  // --- Tier
  // Claims the slots itself, and may use the headroom; calls fence().
  void write(const RowBatch& rows, std::span<Slot> slots) override;
  // A row whose checksum is wrong is damaged. The checksum of a row that this process wrote, or has read
  // before, isn't checked again.
  void read_rows(RowBatch& rows, RowPart part) const override;
  uint64_t reused_places() const override;
  // A place that a checkpoint has stays taken until the checkpoint is dropped. Doesn't fail.
  void erase(std::span<const Place> places) override;
  TierStats stats() const override;
  void close() override;
  // Checkpoints don't keep the accesses that are counted here.
  void prefetch_rank(Slot slot) const override { ranks_->prefetch(slot); }
  void update_rank(Slot slot, RowHeader& header) const override;
  bool try_set_rank(Slot slot, const RowHeader& header) override {
    fill_rank(slot, header);
    return true;
  }
  bool can_set_ranks() const override { return true; }

  // --- RankedTier The ranks of the rows in the slots; `served` and `stamp` are set when a row comes. In a
  // middle pool, only rows that live here have a rank: a clean copy of a row above has none.
  SlotRanks& ranks() const override { return *ranks_; }
  uint64_t slot_count() const override { return slots_.slots(); }
  uint64_t max_slots() const override { return slots_.slots(); }
  uint64_t first_never_taken() const override { return slots_.first_never_taken(); }
  int64_t key(Slot slot) const override;
  bool take_arrivals(std::vector<Slot>& slots) override;
  bool keys_are_with_ranks() const override { return false; }
  bool is_first() const override { return false; }

  uint64_t free_slots() const { return slots_.free_slots(); }  // slots neither taken nor claimed
  // Names the pool and its free slots, for an error that says that there are too few.
  std::string described_room() const;

  // --- Claims: a row that changed in a tier above has the right to a slot.
  // Claims slots. Returns false, and claims nothing, if that would leave less than the headroom.
  bool try_claim(uint64_t count) { return slots_.try_claim(count, kHeadroomSlots); }
  // The same, for callers that can do without the slots: also leaves the slots that set_aside() reserved.
  bool try_claim_spare(uint64_t count) {
    return slots_.try_claim(count, kHeadroomSlots + set_aside_.load(std::memory_order_relaxed));
  }
  void set_aside(uint64_t slots) { set_aside_.store(slots, std::memory_order_relaxed); }
  void give_claim_back(uint64_t count) { slots_.give_claim_back(count); }
  // Writes a row for which a slot was claimed, and returns its slot. Doesn't call fence(). Can't fail.
  // is_live: something will refer to the row; else only checkpoints have it.
  Slot write_claimed(const RowHeader& header, const float* floats, bool is_live) noexcept;
  // The same for one of several rows, whose accesses the caller's phase at this tier counts.
  Slot write_claimed(const RowHeader& header, const float* floats, bool is_live, Phase& phase) noexcept;
  // Makes a clean copy the row again. Its new rank isn't stored durably.
  void promote_copy(Slot slot, const RowHeader& header) noexcept;
  // Makes the row in the slot a clean copy: the row itself is in a tier above from now on.
  void mark_as_copy(Slot slot) noexcept {
    if (role_ == PoolRole::kMiddle) ranks_->empty(slot);
  }
  // Makes what this thread wrote durable.
  void fence() noexcept { rows_->drain(); }

  // --- DurableTier
  void adopt_kept(std::span<const TierRows> kept) override;
  void begin_checkpoint(uint64_t number) override;
  // REQUIRES: all threads that wrote for the checkpoint have called fence(), and nothing more will be added
  // to it.
  std::vector<ExtentRows> make_durable(uint64_t number) override;
  void drop_checkpoint(uint64_t number) noexcept override;
  // Reads headers only: floats are checked when a row is read.
  void restore(uint64_t number, int threads, const Restored& visit) override;

  // Adds the row in `slot` to every pending checkpoint from `first_number` on. If there's none any more and
  // the row isn't live, frees the slot.
  void add_to_checkpoints(uint64_t first_number, Slot slot) noexcept;

 private:
  PoolTier(const log::TableIdentity& table, PoolRole role, std::unique_ptr<medium::PmemFile> rows);

  void put(Slot slot, const RowHeader& header, const float* floats, Phase& phase) noexcept;
  void fill_rank(Slot slot, const RowHeader& header) noexcept;
  void rank(Slot slot, const RowHeader& header) noexcept;  // for a row that came to the slot
  static bool is_of(const log::RecordHeader& record, const Place& place);
  void read_headers(std::span<const Slot> slots, uint64_t number, std::vector<RowHeader>& headers) const;
  void note_pending() REQUIRES(mutex_);
  std::string damage_of(Slot slot, const char* fault) const;

  const RowLayout layout_;
  const log::RecordShape shape_;
  const PoolRole role_;
  const std::string path_;  // of the rows
  std::unique_ptr<medium::PmemFile> rows_;
  SlotAllocator slots_;
  std::unique_ptr<SlotRanks> ranks_;
  std::atomic<uint64_t> set_aside_{0};
  log::RecordReferences references_;
  // The rows that an earlier process wrote, and that weren't read in full yet. Only those need a check: rows
  // that this process wrote come back as they were, and what didn't reach the medium is seen only by the next
  // process.
  mutable log::RowBits unverified_;

  Mutex arrivals_mutex_;
  SlotArrivals arrivals_ GUARDED_BY(arrivals_mutex_);

  Mutex mutex_;
  uint64_t newest_checkpoint_ GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> next_checkpoint_{1};  // the first that a record written now may belong to
};

}  // namespace embstore
