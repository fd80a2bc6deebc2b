// The tiers above a durable pool form an inclusive cache of it. The rules for that are here, and nowhere
// else. For each row of the cache, either the pool has a copy that equals it, or the row has changed since;
// and a pending checkpoint may want the row as it is now.
//
// A row that comes up from the pool leaves its place there as a clean copy, so that nothing is written when
// the row goes down unchanged. The first update makes it a changed row: the copy is erased, and the row owns
// a claim on a place of the pool instead, so that neither going down nor belonging to a checkpoint can fail
// for want of room. A row keeps its copy or claim while it moves between the tiers of the cache.
//
// A checkpoint wants every changed row as it was at the checkpoint's batch. Until the background write has
// reached such a row, a thread that is about to change or remove the row writes it first.
//
// Rows in a GPU's memory are changed by steps on the device. Rows with a clean copy are marked there, and a
// step reports those that it will change before it does. The device can't write a row first: while any of its
// rows is wanted, such steps must be refused. So a wanted row is written before it goes down to the device.
//
// All functions REQUIRE the mutex of the row's shard, unless their comments say otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "access/phase.h"
#include "memory/huge_pages.h"
#include "platform/prefetch.h"
#include "row/place.h"
#include "tiers/log/pool_tier.h"
#include "tiers/memory/memory_tier.h"
#include "tiers/memory/ranked_tier.h"

namespace embstore {

class HbmTier;
class PoolClaim;

class InclusiveCache {
 public:
  // A tier of the cache.
  struct Level {
    RankedTier& ranked;
    MemoryTier* memory;  // null: the tier is in a GPU's memory
    HbmTier* hbm;        // null: the tier is not in a GPU's memory
  };
  // `levels` are the tiers above the pool, first to last; the host can address the first and the last. They
  // have no rows yet. They and the pool outlive this.
  InclusiveCache(const std::vector<Level>& levels, PoolTier& pool);

  PoolTier& pool() const { return pool_; }
  // The pool's number among the tiers.
  uint32_t pool_tier() const { return static_cast<uint32_t>(levels_.size()); }
  // The first tier, if there is one, whose rows need no place in the pool.
  uint32_t tier_below() const { return pool_tier() + 1; }

  // --- The state of a row of the cache. Without the mutex: as it was a moment ago.
  // Its clean copy in the pool; nothing if the row has changed.
  std::optional<Slot> copy(RowRef at) const {
    const uint32_t word = load(at);
    return word != kChanged && (word & kWantedBit) == 0 ? std::optional<Slot>(word - 1) : std::nullopt;
  }
  bool is_wanted(RowRef at) const { return (load(at) & kWantedBit) != 0; }
  // True if an update of the row needs a claim.
  bool update_needs_claim(RowRef at) const { return load(at) != kChanged; }
  void prefetch(RowRef at) const { prefetch_line(&word_of(at)); }

  // --- Call these when rows come, move and leave. They ignore rows outside the cache.
  // A new row came to `at`. Returns true if the row owns one of the caller's claims from now on.
  bool note_insert(RowRef at);
  // The row was copied from one place to the other. Returns true if its old place, in the pool, stays as its
  // clean copy.
  bool note_move(int64_t key, RowRef from, RowRef to);
  // The row is about to be removed for good; it is still whole in its old place. REQUIRES: no checkpoint
  // wants a row that the host can't address.
  void note_remove(int64_t key, RowRef from);
  // Returns the clean copy to which a row of the cache can go down without being written; nothing if it has
  // none.
  std::optional<RowRef> copy_of(RowRef at) const {
    if (at.tier() + 1 != pool_tier()) return std::nullopt;
    const std::optional<Slot> slot = copy(at);
    return slot ? std::optional(RowRef(pool_tier(), *slot)) : std::nullopt;
  }
  // The row goes down to copy_of(at), with its rank. The caller then calls note_move().
  void demote_to_copy(int64_t key, RowRef at, RowRef copy) {
    pool_.promote_copy(copy.slot(), memory_of(at).header(at.slot(), key));
  }
  // Returns true if a row at `from` may come up to the cache. A row from below the pool owns no place in it
  // and needs a claim, which becomes the row's: one of `places`, or of the pool if that is null. Call it
  // right before the move. A look-up doesn't take claims that were set aside for updates.
  enum class ClaimPurpose { kUpdate, kLookUp };
  bool try_claim(RowRef from, ClaimPurpose purpose, PoolClaim* places);

  // --- Room in the pool for rows that change; these need no mutex.
  // From now on, look-ups, which bring rows up meanwhile, must leave this number of claims to updates.
  void set_aside(uint64_t claims) { pool_.set_aside(claims); }
  // Returns the number of places that must be freed before `count` more can be claimed.
  uint64_t missing_places(uint64_t count) const {
    const uint64_t wanted = PoolTier::kHeadroomSlots + count;
    return wanted - std::min(wanted, pool_.free_slots());
  }

  // Counts rows that are written to the pool one at a time.
  class WritePhase : public Phase {
   public:
    explicit WritePhase(const InclusiveCache& copies);
  };

  // The scope in which rows of one shard change. Rows that it writes for checkpoints are durable when it
  // ends.
  class Changes {
   public:
    explicit Changes(InclusiveCache& copies) : copies_(copies) {}
    ~Changes();
    Changes(const Changes&) = delete;
    Changes& operator=(const Changes&) = delete;
    // The row is about to change. If a checkpoint wants the row, writes it first. Returns true if the row
    // owns one of the caller's claims from now on. REQUIRES: a row that the host can't address isn't wanted,
    // and the step on the device clears its mark.
    bool prepare_change(RowRef at, int64_t key);

   private:
    void erase();

    InclusiveCache& copies_;
    std::array<Place, 64> erased_{};
    size_t erased_count_ = 0;
    uint64_t written_ = 0;             // not fenced yet
    std::optional<WritePhase> phase_;  // since the first row was written
  };

  // --- Checkpoints Marks every changed row as wanted by checkpoint `number`. REQUIRES: no thread changes or
  // moves rows, or writes them for a checkpoint, even with a shard's mutex held.
  void mark_changed_as_wanted(uint64_t number);
  // Returns the wanted rows, tier by tier, those that the host can't address first; needs no mutex. May miss
  // rows that move meanwhile.
  std::vector<RowRef> wanted() const;
  // Returns the key of the row that is there, or that was there last; needs no mutex.
  int64_t key(RowRef at) const { return levels_[at.tier()].level.ranked.key(at.slot()); }
  // The number of wanted rows that are not durable in the pool yet. If it is 0, checkpoints have all rows
  // that they want.
  uint64_t wanted_count() const { return wanted_count_.load(); }
  // The number of these that the host can't address. Once it is 0, it stays 0 until the next checkpoint.
  uint64_t wanted_on_device() const { return wanted_on_device_.load(); }
  // The wanted row was written to `to` in the pool, and fenced.
  void note_written(RowRef at, Slot to);
  // Writes the wanted row from its place, under the mutex, but doesn't fence: note_fenced() reports that.
  // REQUIRES: the host can address the row.
  void write_wanted(RowRef at, int64_t key, Phase& phase);
  bool is_addressable(RowRef at) const { return levels_[at.tier()].level.memory != nullptr; }
  // This number of rows that were written for checkpoints are durable now.
  void note_fenced(uint64_t rows) { wanted_count_.fetch_sub(rows); }
  // No checkpoint wants any row any more. REQUIRES: as for mark_changed_as_wanted().
  void forget_wanted();

 private:
  // The state of a slot: kChanged; or the place of the clean copy plus one; or kWantedBit and the lower bits
  // of the number of the first checkpoint that wants the changed row.
  static constexpr uint32_t kChanged = 0;
  static constexpr uint32_t kWantedBit = uint32_t{1} << 31;

  struct LevelWords {
    explicit LevelWords(const Level& cache_level)
        : level(cache_level), words(cache_level.ranked.max_slots()) {}

    Level level;
    // Address space for as many slots as the tier may ever have.
    PageArray<std::atomic<uint32_t>> words;
  };

  bool is_here(RowRef at) const { return at.tier() < levels_.size(); }
  std::atomic<uint32_t>& word_of(RowRef at) const { return levels_[at.tier()].words[at.slot()]; }
  uint32_t load(RowRef at) const { return word_of(at).load(std::memory_order_relaxed); }
  void store(RowRef at, uint32_t word);
  const MemoryTier& memory_of(RowRef at) const { return *levels_[at.tier()].level.memory; }
  // Visits the slots of HBM first.
  template <class Visit>
  void for_each_slot(Visit visit) const;
  // The row is now at `to` in the pool, where it was just written or where its copy was. Frees the other
  // things that it owned.
  void note_in_pool(RowRef at, int64_t key, Slot to);
  void set_copy(RowRef at, Slot copy) {
    pool_.mark_as_copy(copy);
    store(at, copy + 1);
  }
  // Returns the checkpoint number that the word stands for.
  uint64_t first_wanting(uint32_t word) const;
  // As write_wanted(), but with a fence.
  void write_alone(RowRef at, int64_t key);
  // Writes the row as it is for the checkpoints that want it. Does not fence.
  Slot write(RowRef at, int64_t key, bool is_live, Phase& phase);

  std::deque<LevelWords> levels_;
  PoolTier& pool_;
  std::atomic<uint64_t> wanted_count_{0};
  std::atomic<uint64_t> wanted_on_device_{0};
  std::atomic<uint64_t> newest_wanting_{0};
};

// Claims on places of a pool that no row owns yet. The destructor gives them back.
class PoolClaim {
 public:
  // Further claims come from `from`, which outlives this, or from the pool if it is null.
  explicit PoolClaim(InclusiveCache* copies, PoolClaim* from = nullptr) : copies_(copies), from_(from) {}
  ~PoolClaim() { give_back(); }
  PoolClaim(PoolClaim&& other) noexcept
      : copies_(other.copies_),
        from_(other.from_),
        count_(std::exchange(other.count_, 0)),
        noted_(std::exchange(other.noted_, 0)) {}
  PoolClaim& operator=(PoolClaim&&) = delete;

  // Returns false, and claims nothing more, if fewer than `count` are left. REQUIRES: there is a pool.
  bool try_add(uint64_t count) {
    const bool has_added = from_ != nullptr ? from_->try_pass_on(count) : copies_->pool().try_claim(count);
    if (has_added) count_ += count;
    return has_added;
  }
  // The row is about to change: counts the claim that this needs, if any. REQUIRES: the mutex of the row's
  // shard.
  void note_change(RowRef at) { noted_ += copies_ != nullptr && copies_->update_needs_claim(at); }
  // Claims as many as note_change() counted; returns what try_add() returns.
  bool try_add_noted() { return noted_ == 0 || try_add(std::exchange(noted_, 0)); }
  void give_back() {
    if (count_ != 0) copies_->pool().give_claim_back(std::exchange(count_, 0));
  }
  // Returns a part of the claims; no claims if there is no pool. REQUIRES: `count` claims are left.
  PoolClaim split(uint64_t count) {
    PoolClaim part(copies_);
    if (copies_ == nullptr) return part;
    count_ -= count;
    part.count_ = count;
    return part;
  }
  // A row owns one of the claims now. REQUIRES: a claim is left.
  void pass_on() { --count_; }
  // The same for several rows. Returns false, and passes on none, if fewer are left.
  bool try_pass_on(uint64_t count) {
    if (count_ < count) return false;
    count_ -= count;
    return true;
  }

 private:
  InclusiveCache* const copies_;  // null: there is no pool, and nothing is claimed
  PoolClaim* const from_;
  uint64_t count_ = 0;
  uint64_t noted_ = 0;
};

}  // namespace embstore
