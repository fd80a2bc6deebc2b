// DRAM above a durable pool is an inclusive cache: the rules of that stand here, and nowhere else. For each row of the cache,
// the pool has it as it is, or the row changed since; and a checkpoint that is pending may want it as it is.
//
// A row that comes up from the pool leaves its place there as a clean copy, so that nothing is written when it goes
// down unchanged. The first update makes it changed: the copy goes, and the row owns a claim on a place of the pool
// instead, so that going down, or belonging to a checkpoint, can't fail for want of room.
//
// A checkpoint wants every changed row as it was at its batch. Until it's written in the background, whoever is about to
// change such a row, or to remove it, writes it first.
//
// All of it REQUIRES the mutex of the row's shard, unless it says otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "access/phase.h"
#include "memory/huge_pages.h"
#include "platform/prefetch.h"
#include "row/place.h"
#include "tiers/log/pool_tier.h"
#include "tiers/memory/memory_tier.h"

namespace embstore {

class InclusiveCache {
 public:
  static constexpr uint32_t kCache = 0;  // the tiers
  static constexpr uint32_t kPool = 1;
  static constexpr uint32_t kBelow = 2;  // where there is one: the first whose rows need no place of the pool

  // Both outlive this. `first` has no rows yet.
  InclusiveCache(MemoryTier& first, PoolTier& pool);

  PoolTier& pool() const { return pool_; }

  // --- What there is of the row in a slot of the first tier. Without the mutex: as it was a moment ago.
  // Its clean copy in the pool; nothing where the row changed.
  std::optional<Slot> copy(Slot slot) const {
    const uint32_t word = load(slot);
    return word != kChanged && (word & kWantedBit) == 0 ? std::optional<Slot>(word - 1) : std::nullopt;
  }
  bool is_wanted(Slot slot) const { return (load(slot) & kWantedBit) != 0; }
  // Whether an update of the row needs a claim.
  bool update_needs_claim(Slot slot) const { return load(slot) != kChanged; }
  void prefetch(Slot slot) const { prefetch_line(&words_[slot]); }

  // --- Where rows come, move and leave. Rows that aren't in the cache are no concern of these.
  // True where a row that comes there owns a claim from now on.
  bool came(RowRef at);
  // The row was copied from one place to the other. True where the place that it leaves stays its copy.
  bool moved(int64_t key, RowRef from, RowRef to);
  // The row goes for good. It's still whole where it was.
  void will_go(int64_t key, RowRef from);
  // Where a row of the cache may go down to without being written: its clean copy. Nothing where there's none.
  std::optional<RowRef> copy_of(RowRef at) const {
    if (at.tier() != kCache) return std::nullopt;
    const std::optional<Slot> slot = copy(at.slot());
    return slot ? std::optional(RowRef(kPool, *slot)) : std::nullopt;
  }
  // The row goes down to copy_of(at), with its rank. To be followed by moved().
  void goes_to_copy(int64_t key, RowRef at, RowRef copy) {
    pool_.was_copy(copy.slot(), first_.header(at.slot(), key));
  }
  // True where a row from there may come up: one from below the pool owns no place of it, and needs a claim on one, which
  // is the row's then. To be called right before the move. A look-up leaves what was set aside for an update.
  enum class For { kUpdate, kLookUp };
  bool try_claim(RowRef from, For whom) {
    if (from.tier() < kBelow) return true;
    return whom == For::kUpdate ? pool_.try_claim(1) : pool_.try_claim_spare(1);
  }

  // --- Room in the pool for rows that change, without any mutex.
  // So many claims are left for updates from now on: look-ups bring rows up meanwhile.
  void set_aside(uint64_t claims) { pool_.set_aside(claims); }
  // How many places must be given free before `count` more may be claimed.
  uint64_t missing_places(uint64_t count) const {
    const uint64_t wanted = PoolTier::kHeadroomSlots + count;
    return wanted - std::min(wanted, pool_.free_slots());
  }

  // Counts rows that are written to the pool one by one.
  class WritePhase : public Phase {
   public:
    explicit WritePhase(const InclusiveCache& copies);
  };

  // The scope in which rows of one shard change. What is written for checkpoints is durable by its end.
  class Changes {
   public:
    explicit Changes(InclusiveCache& copies) : copies_(copies) {}
    ~Changes();
    Changes(const Changes&) = delete;
    Changes& operator=(const Changes&) = delete;
    // The row in the slot is about to change: writes it for the checkpoint that wants it. True where a claim of the
    // caller's is the row's from now on.
    bool will_change(Slot slot, int64_t key);

   private:
    void erase();

    InclusiveCache& copies_;
    std::array<Place, 64> erased_{};
    size_t erased_count_ = 0;
    uint64_t written_ = 0;             // and not fenced yet
    std::optional<WritePhase> phase_;  // since the first was written
  };

  // --- Checkpoints
  // Every changed row is wanted by checkpoint `number`. REQUIRES: rows neither change nor move, and none is being written
  // for a checkpoint, whoever has which mutex.
  void want_changed(uint64_t number);
  // The slots of rows that are wanted, without any mutex. Rows that move meanwhile may be missed.
  std::vector<Slot> wanted() const;
  // Rows that are wanted and not durable in the pool yet: where it's 0, checkpoints have all that they want.
  uint64_t wanted_count() const { return wanted_count_.load(); }
  // The wanted row in the slot is at `to` in the pool, written and fenced.
  void was_written(Slot slot, Slot to);
  // Writes the wanted row where it is, under the mutex. Not fenced: were_fenced() says when it is.
  void write_wanted(Slot slot, int64_t key, Phase& phase);
  // So many rows that were written for checkpoints are durable.
  void were_fenced(uint64_t rows) { wanted_count_.fetch_sub(rows); }
  // No checkpoint wants anything any more. REQUIRES: as want_changed().
  void forget_wanted();

 private:
  // Of a slot: kChanged; the place of the copy, plus one; or kWantedBit and the number, as far as it fits, of the first
  // checkpoint that wants the changed row.
  static constexpr uint32_t kChanged = 0;
  static constexpr uint32_t kWantedBit = uint32_t{1} << 31;

  uint32_t load(Slot slot) const { return words_[slot].load(std::memory_order_relaxed); }
  void store(Slot slot, uint32_t word) { words_[slot].store(word, std::memory_order_relaxed); }
  // The row is at `to` in the pool, where it was written, or has been as its copy; what it owned otherwise goes.
  void went_to_pool(Slot slot, int64_t key, Slot to);
  void will_go(Slot slot, int64_t key);
  void has_copy(Slot slot, Slot copy) {
    pool_.is_copy(copy);
    store(slot, copy + 1);
  }
  // The number of the checkpoint that the word says.
  uint64_t first_wanting(uint32_t word) const;
  // Writes the row as it is for the checkpoints that want it. Not fenced.
  Slot write(Slot slot, int64_t key, bool is_live, Phase& phase);

  MemoryTier& first_;
  PoolTier& pool_;
  // Addresses for as many slots as the first tier may ever have.
  PageArray<std::atomic<uint32_t>> words_;
  std::atomic<uint64_t> wanted_count_{0};
  std::atomic<uint64_t> newest_wanting_{0};
};

// Claims on places of a pool that aren't any row's yet; given back at the end.
class PoolClaim {
 public:
  explicit PoolClaim(InclusiveCache* copies) : copies_(copies) {}
  ~PoolClaim() {
    if (count_ != 0) copies_->pool().give_claim_back(count_);
  }
  PoolClaim(const PoolClaim&) = delete;
  PoolClaim& operator=(const PoolClaim&) = delete;

  // False, and nothing more is claimed, where there are no so many. REQUIRES: there is a pool.
  bool try_add(uint64_t count) {
    if (!copies_->pool().try_claim(count)) return false;
    count_ += count;
    return true;
  }
  // The row in the slot is to change: counts the claim that this needs, if any. REQUIRES the mutex of the row's shard.
  void note_change(Slot slot) { noted_ += copies_ != nullptr && copies_->update_needs_claim(slot); }
  // Claims as many as were counted; as try_add().
  bool try_add_noted() { return noted_ == 0 || try_add(std::exchange(noted_, 0)); }
  // One of them is a row's now. REQUIRES: any are left.
  void pass_on() { --count_; }

 private:
  InclusiveCache* const copies_;  // null: there is no pool, and nothing is claimed
  uint64_t count_ = 0;
  uint64_t noted_ = 0;
};

}  // namespace embstore
