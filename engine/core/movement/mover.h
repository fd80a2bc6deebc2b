// Moves the rows of one table between its tiers, on the process's eviction threads and, when they fall
// behind, on the thread that needs room.
//
// The rule that everything here keeps: when nothing moves any more, the first tier holds the rows that rank
// highest, as many as fit, the second the next, and so on. A row that is accessed comes to the first tier, or
// only as far up as it belongs, and a tier over its capacity gives up the coldest of its rows; since ranks only grow by
// access, the outcome doesn't depend on when that is done. But rows that were asked for ahead of their batch's turn come to a GPU's
// memory, and stay there until that is over, however they rank.
//
// Whoever moves rows holds the right to move; shards' mutexes are taken under it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "movement/access_log.h"
#include "movement/demotion.h"
#include "movement/eviction_pool.h"
#include "movement/promotion.h"
#include "movement/right_to_move.h"
#include "movement/row_relocator.h"
#include "movement/training_turns.h"
#include "movement/wanted_rows.h"
#include "store/row_store.h"
#include "threads/mutex.h"
#include "tiers/hbm/device_steps.h"

namespace embstore {

class Mover final : private EvictionPool::Job {
 public:
  // REQUIRES: the store has several tiers, and outlives this.
  // `steps`: of the table, if it has some: they wait while an eviction thread moves rows.
  Mover(RowStore& store, CacheStrategy strategy, DeviceSteps* steps = nullptr);

  // The right to so many slots of the first tier, in which rows may be put beyond its capacity. Makes room where
  // there is none, or more slots where the rows that are there are pinned; throws what a tier threw.
  // REQUIRES: the thread holds no lock but the apply gate.
  SlotClaim claim(uint64_t count);

  // --- What serving look-ups read is counted, and promoted, soon after.
  // If the eviction threads are far behind, the look-up first counts as much itself as it adds. While moves are held off,
  // or fail, accesses are forgotten then, and counted as that.
  void count_served(BatchPtr batch);
  // For a look-up that can't wait when it has read: whether it may log without, or must make room before it reads. That waits, and is
  // false where moves are held off, or fail; or where steps on the device must not be under way for it.
  bool has_room_in_log() const;
  bool make_room_in_log_beside_steps();
  bool make_room_in_log();
  // Waits for nothing.
  void log_served(BatchPtr batch);

  // --- Rows of a batch that will be trained soon come up to the tier in a GPU's memory, and stay there until its turn is over.
  // Nothing is counted, and keys without a row get none.
  TrainingTurns& turns() { return turns_; }
  // Leaves all of it to the eviction threads. REQUIRES: there is such a tier.
  void want(uint64_t turn, std::vector<int64_t> keys);

  // To be called, without locks, after rows came to the first tier or left it: sets the eviction threads to work
  // if there is something to do.
  void rows_changed();
  // The same for a thread that can't wait: leaves all of it to the eviction threads.
  void rows_came();
  // The count is atomic: it needs no right to move.
  void note_promoted(uint64_t rows) NO_THREAD_SAFETY_ANALYSIS { promotion_.note_promoted(rows); }

  // Counts what was served until now, brings up what was asked for, and moves until no tier is over its capacity, but for
  // pinned rows; throws what a tier threw.
  void settle();

  // Moves rows of a pool to the tier below it until `count` more may be claimed there, as far as that gives places free:
  // those of checkpoints stay taken. Does nothing where there is no tier below. Throws what a tier threw.
  void make_room_in_pool(uint64_t count);

  // The scope in which nobody else moves rows.
  class Pause {
   public:
    explicit Pause(Mover& mover);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

    // Counts what is to be counted and moves rows down until no tier is over its capacity, but for pinned rows;
    // throws what a tier threw.
    void settle();
    // The right to so many slots of the first tier, for which room is made.
    SlotClaim claim(uint64_t count);
    // Moves one batch of rows down, if there are too many somewhere.
    bool shrink_once();
    std::optional<Rank> least_rank(size_t t) const;

   private:
    Mover& mover_;
  };
  // What such a look-up had better read of rows that aren't in memory. Atomic: it needs no right to move.
  RowPart part_to_serve() const NO_THREAD_SAFETY_ANALYSIS {
    return promotion_.do_many_rise() ? RowPart::kAll : RowPart::kWeights;
  }
  CacheStrategy strategy() const { return strategy_; }
  // Whether a row of tier t may be updated where it is. It must stay in tiers of memory until then: since it's pinned, where its tier is
  // ranked, or since it can't go elsewhere; or `nothing_moves`.
  bool may_update_in(size_t t, bool nothing_moves) const;
  // By LFU, how often every row that stays in a tier above t was accessed at least; 0 where they aren't full, or that isn't known.
  uint64_t least_count_above(size_t t) const { return least_counts_[t - 1].load(std::memory_order_relaxed); }
  // Of rows that were updated there, with nothing to count: those that outrank others above come up. Waits for nothing.
  void note_updated_below(std::list<PageVector<RowToCome>>&& rows) noexcept;

  // Ends moving for good. REQUIRES: no operation is under way.
  void stop();

  // Atomic counts, which need no right to move.
  uint64_t promoted_rows() const NO_THREAD_SAFETY_ANALYSIS { return promotion_.promoted_rows(); }
  uint64_t demoted_rows() const NO_THREAD_SAFETY_ANALYSIS { return demotion_.demoted_rows(); }
  // Accesses that were never counted, since moves were held off.
  uint64_t forgotten_accesses() const { return forgotten_.load(std::memory_order_relaxed); }
  // What the eviction threads' last attempt met; empty if it went well.
  std::string background_error() const;

 private:
  bool run() noexcept override;
  // Does what needs no rows in a GPU's memory, for a while, and says what is left.
  enum class Left { kNothing, kMore, kToMove, kToCountAndMove };
  Left run_beside_steps() noexcept;
  // Counts the oldest batches that were served, of about so many bytes; false where there is none that can be counted so.
  bool count_beside_steps(size_t bytes) REQUIRES(right_to_move_);
  bool has_work() const;
  enum class StepsMay { kBeUnderWay, kNotBeUnderWay };
  void take_updated_below(StepsMay steps) REQUIRES(right_to_move_);
  // Counts the oldest batches that were served, of about so many bytes.
  void count_waiting(size_t bytes) REQUIRES(right_to_move_);
  // Waits for the right to move, as a look-up that makes room in the log; false where moves are held off.
  bool lock_for_look_up() TRY_ACQUIRE(true, right_to_move_);
  // Waits for the right to move, and counts so many bytes if the log still has no room; false if moves are held off, or
  // fail.
  bool wait_for_room_in_log(size_t bytes);
  // Finds out where the rows are that were asked for: from then on they are wanted. Touches no row.
  void look_for_wanted() REQUIRES(right_to_move_);
  // Of batches whose turn is over.
  void let_go_of_wanted() REQUIRES(right_to_move_);
  // Atomic: it needs no right to move.
  bool any_to_bring_up() const NO_THREAD_SAFETY_ANALYSIS { return wanted_.any_below(); }
  // Brings some of them up; false where none is left to come.
  bool bring_up_some() REQUIRES(right_to_move_);
  void settle_with_right() REQUIRES(right_to_move_);
  SlotClaim claim_with_right(uint64_t count) REQUIRES(right_to_move_);
  // For rows that come up to tier t, which is of memory: it goes beyond its capacity by its headroom at most, however many slots
  // were added to the first for large batches. Nothing where a tier below the first has no room.
  std::optional<SlotClaim> claim_for_promotion(size_t t, uint64_t count) REQUIRES(right_to_move_);
  void note_least_counts() REQUIRES(right_to_move_);
  void forget_least_counts();
  void note_outcome(std::string error);

  RowStore& store_;
  const CacheStrategy strategy_;
  DeviceSteps* const steps_;
  RowRelocator relocator_;

  RightToMove right_to_move_;
  WantedRows wanted_ GUARDED_BY(right_to_move_);
  Promotion promotion_ GUARDED_BY(right_to_move_);
  Demotion demotion_ GUARDED_BY(right_to_move_);

  std::array<std::atomic<uint64_t>, RowRef::kMaxTiers> least_counts_{};  // in each tier
  Mutex updated_mutex_;
  std::list<PageVector<RowToCome>> updated_below_ GUARDED_BY(updated_mutex_);
  std::atomic<bool> any_updated_below_{false};

  AccessLog log_;
  std::atomic<int> look_ups_waiting_{0};  // for room in the log
  std::atomic<uint64_t> forgotten_{0};

  TrainingTurns turns_;
  struct Asked {
    uint64_t turn;
    std::vector<int64_t> keys;
  };
  Mutex asked_mutex_;
  std::vector<Asked> asked_ GUARDED_BY(asked_mutex_);  // for rows that nobody has looked for yet
  std::atomic<bool> any_asked_{false};

  mutable Mutex outcome_mutex_;
  std::string background_error_ GUARDED_BY(outcome_mutex_);
};

}  // namespace embstore
