// The tiers above a durable pool are an inclusive cache: the rules of that stand here, and nowhere else. For each row of the
// cache, the pool has it as it is, or the row changed since; and a checkpoint that is pending may want it as it is.
//
// A row that comes up from the pool leaves its place there as a clean copy, so that nothing is written when it goes
// down unchanged. The first update makes it changed: the copy goes, and the row owns a claim on a place of the pool
// instead, so that going down, or belonging to a checkpoint, can't fail for want of room. Copies and claims stay a row's while it
// moves between the tiers of the cache.
//
// A checkpoint wants every changed row as it was at its batch. Until it's written in the background, whoever is about to
// change such a row, or to remove it, writes it first.
//
// Rows in a GPU's memory are changed by steps on the device. Those with a clean copy are marked there, and a step says which of
// them it will change before it does. The device writes no row first: while any of its rows is wanted, such steps must be refused.
// So a row that is wanted is written before it goes down there.
//
// All of it REQUIRES the mutex of the row's shard, unless it says otherwise.
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
    MemoryTier* memory;  // null: it's that in a GPU's memory
    HbmTier* hbm;        // null: it isn't
  };
  // The tiers above the pool, first to last: the host can address the first and the last. They have no rows yet, and outlive this,
  // as the pool does.
  InclusiveCache(const std::vector<Level>& levels, PoolTier& pool);

  PoolTier& pool() const { return pool_; }
  // The numbers of tiers.
  uint32_t pool_tier() const { return static_cast<uint32_t>(levels_.size()); }
  // Where there is one: the first whose rows need no place of the pool.
  uint32_t tier_below() const { return pool_tier() + 1; }

  // --- What there is of a row of the cache. Without the mutex: as it was a moment ago.
  // Its clean copy in the pool; nothing where the row changed.
  std::optional<Slot> copy(RowRef at) const {
    const uint32_t word = load(at);
    return word != kChanged && (word & kWantedBit) == 0 ? std::optional<Slot>(word - 1) : std::nullopt;
  }
  bool is_wanted(RowRef at) const { return (load(at) & kWantedBit) != 0; }
  // Whether an update of the row needs a claim.
  bool update_needs_claim(RowRef at) const { return load(at) != kChanged; }
  void prefetch(RowRef at) const { prefetch_line(&word_of(at)); }

  // --- Where rows come, move and leave. Rows that aren't in the cache are no concern of these.
  // True where a row that comes there owns a claim from now on.
  bool came(RowRef at);
  // The row was copied from one place to the other. True where the place that it leaves stays its copy.
  bool moved(int64_t key, RowRef from, RowRef to);
  // The row goes for good. It's still whole where it was. REQUIRES: where the host can't address it, it isn't wanted.
  void will_go(int64_t key, RowRef from);
  // Where a row of the cache may go down to without being written: its clean copy. Nothing where there's none.
  std::optional<RowRef> copy_of(RowRef at) const {
    if (at.tier() + 1 != pool_tier()) return std::nullopt;
    const std::optional<Slot> slot = copy(at);
    return slot ? std::optional(RowRef(pool_tier(), *slot)) : std::nullopt;
  }
  // The row goes down to copy_of(at), with its rank. To be followed by moved().
  void goes_to_copy(int64_t key, RowRef at, RowRef copy) {
    pool_.was_copy(copy.slot(), memory_of(at).header(at.slot(), key));
  }
  // True where a row from there may come up: one from below the pool owns no place of it, and needs a claim on one, which
  // is the row's then: one of `places`, or where that is null, of the pool. To be called right before the move. A look-up leaves
  // what was set aside for an update.
  enum class For { kUpdate, kLookUp };
  bool try_claim(RowRef from, For whom, PoolClaim* places);

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
    // The row is about to change: writes it for the checkpoint that wants it. True where a claim of the caller's is the row's
    // from now on. REQUIRES: where the host can't address it, it isn't wanted, and the step on the device takes the mark away.
    bool will_change(RowRef at, int64_t key);

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
  // The rows that are wanted, a tier after the other, those first that the host can't address; without any mutex. Rows that move
  // meanwhile may be missed.
  std::vector<RowRef> wanted() const;
  // Of the row that is there, or was last, without any mutex.
  int64_t key(RowRef at) const { return levels_[at.tier()].is.ranked.key(at.slot()); }
  // Rows that are wanted and not durable in the pool yet: where it's 0, checkpoints have all that they want.
  uint64_t wanted_count() const { return wanted_count_.load(); }
  // Those of them that the host can't address: where it's 0, none is before the next checkpoint.
  uint64_t wanted_on_device() const { return wanted_on_device_.load(); }
  // The wanted row is at `to` in the pool, written and fenced.
  void was_written(RowRef at, Slot to);
  // Writes the wanted row where it is, under the mutex. Not fenced: were_fenced() says when it is. REQUIRES: the host can address
  // it.
  void write_wanted(RowRef at, int64_t key, Phase& phase);
  bool is_addressable(RowRef at) const { return levels_[at.tier()].is.memory != nullptr; }
  // So many rows that were written for checkpoints are durable.
  void were_fenced(uint64_t rows) { wanted_count_.fetch_sub(rows); }
  // No checkpoint wants anything any more. REQUIRES: as want_changed().
  void forget_wanted();

 private:
  // Of a slot: kChanged; the place of the copy, plus one; or kWantedBit and the number, as far as it fits, of the first
  // checkpoint that wants the changed row.
  static constexpr uint32_t kChanged = 0;
  static constexpr uint32_t kWantedBit = uint32_t{1} << 31;

  struct LevelWords {
    explicit LevelWords(const Level& level) : is(level), words(level.ranked.most_slots()) {}

    Level is;
    // Addresses for as many slots as the tier may ever have.
    PageArray<std::atomic<uint32_t>> words;
  };

  bool is_here(RowRef at) const { return at.tier() < levels_.size(); }
  std::atomic<uint32_t>& word_of(RowRef at) const { return levels_[at.tier()].words[at.slot()]; }
  uint32_t load(RowRef at) const { return word_of(at).load(std::memory_order_relaxed); }
  void store(RowRef at, uint32_t word);
  const MemoryTier& memory_of(RowRef at) const { return *levels_[at.tier()].is.memory; }
  // Those of HBM first.
  template <class Visit>
  void for_each_slot(Visit visit) const;
  // The row is at `to` in the pool, where it was written, or has been as its copy; what it owned otherwise goes.
  void went_to_pool(RowRef at, int64_t key, Slot to);
  void has_copy(RowRef at, Slot copy) {
    pool_.is_copy(copy);
    store(at, copy + 1);
  }
  // The number of the checkpoint that the word says.
  uint64_t first_wanting(uint32_t word) const;
  // As write_wanted(), and fenced.
  void write_alone(RowRef at, int64_t key);
  // Writes the row as it is for the checkpoints that want it. Not fenced.
  Slot write(RowRef at, int64_t key, bool is_live, Phase& phase);

  std::deque<LevelWords> levels_;
  PoolTier& pool_;
  std::atomic<uint64_t> wanted_count_{0};
  std::atomic<uint64_t> wanted_on_device_{0};
  std::atomic<uint64_t> newest_wanting_{0};
};

// Claims on places of a pool that aren't any row's yet; given back at the end.
class PoolClaim {
 public:
  // What is added comes from the other's, which outlives this; null: from the pool.
  explicit PoolClaim(InclusiveCache* copies, PoolClaim* from = nullptr) : copies_(copies), from_(from) {}
  ~PoolClaim() { give_back(); }
  PoolClaim(PoolClaim&& other) noexcept
      : copies_(other.copies_),
        from_(other.from_),
        count_(std::exchange(other.count_, 0)),
        noted_(std::exchange(other.noted_, 0)) {}
  PoolClaim& operator=(PoolClaim&&) = delete;

  // False, and nothing more is claimed, where there are no so many. REQUIRES: there is a pool.
  bool try_add(uint64_t count) {
    const bool has_added = from_ != nullptr ? from_->try_pass_on(count) : copies_->pool().try_claim(count);
    if (has_added) count_ += count;
    return has_added;
  }
  // The row is to change: counts the claim that this needs, if any. REQUIRES the mutex of the row's shard.
  void note_change(RowRef at) { noted_ += copies_ != nullptr && copies_->update_needs_claim(at); }
  // Claims as many as were counted; as try_add().
  bool try_add_noted() { return noted_ == 0 || try_add(std::exchange(noted_, 0)); }
  void give_back() {
    if (count_ != 0) copies_->pool().give_claim_back(std::exchange(count_, 0));
  }
  // So many of them; none where there is no pool. REQUIRES: there are as many.
  PoolClaim split(uint64_t count) {
    PoolClaim part(copies_);
    if (copies_ == nullptr) return part;
    count_ -= count;
    part.count_ = count;
    return part;
  }
  // One of them is a row's now. REQUIRES: any are left.
  void pass_on() { --count_; }
  // The same of several: false, and none is, where there are no so many.
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
