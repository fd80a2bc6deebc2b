// Moves the rows of one table between its tiers, on the process's eviction threads and, when they fall
// behind, on the thread that needs room.
//
// The invariant: when nothing moves any more, the first tier holds the rows that rank highest, as many as
// fit, the second the next, and so on. A row that is accessed comes to the first tier, or only as far up as
// it belongs, and a tier over its capacity gives up its coldest rows; since ranks only grow by access, the
// outcome doesn't depend on when that is done. Prefetched rows are the exception: they come to a GPU's
// memory, and stay there until their batch's turn is over, however they rank.
//
// A thread that moves rows holds the right to move, and takes shards' mutexes under it.
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
#include "movement/prefetched_rows.h"
#include "movement/promotion.h"
#include "movement/right_to_move.h"
#include "movement/row_relocator.h"
#include "movement/training_turns.h"
#include "store/row_store.h"
#include "threads/mutex.h"
#include "tiers/hbm/device_steps.h"

namespace embstore {

class Mover final : private EvictionPool::Job {
 public:
  // REQUIRES: the store has several tiers, and outlives this. `steps`: those of the table, if it has some:
  // they wait while an eviction thread moves rows.
  Mover(RowStore& store, CacheStrategy strategy, DeviceSteps* steps = nullptr);

  // Claims `count` slots of the first tier, in which rows may be put beyond its capacity. Makes room if there
  // is none, or adds slots if the rows that are there are pinned; throws what a tier threw. REQUIRES: the
  // thread holds no lock but the apply gate.
  SlotClaim claim(uint64_t count);

  // --- Accesses of serving look-ups are counted, and their rows promoted, soon after. If the eviction
  // threads are far behind, the look-up first counts as many accesses as it adds. If moves are held off, or
  // fail, its own accesses are forgotten, and counted as forgotten.
  void count_served(BatchPtr batch);
  // For a look-up that can't wait after it has read. has_room_in_log(): whether it may log without waiting.
  // Otherwise it must make room before it reads, which waits, and fails (false) if moves are held off, or
  // fail; beside steps it also fails if the accesses can't be counted while steps on the device are under
  // way.
  bool has_room_in_log() const;
  bool make_room_in_log_beside_steps();
  bool make_room_in_log();
  // Adds the batch to the log. Waits for nothing.
  void log_served(BatchPtr batch);

  // --- Prefetching: rows of a batch that will be trained soon come up to the tier in a GPU's memory, and
  // stay there until its turn is over. Nothing is counted, and keys without a row get none.
  TrainingTurns& turns() { return turns_; }
  // Leaves all of the work to the eviction threads. REQUIRES: there is such a tier.
  void prefetch(uint64_t turn, std::vector<int64_t> keys);

  // To be called, without locks, after rows came to the first tier or left it: sets the eviction threads to
  // work if there is something to do.
  void note_rows_changed();
  // The same for a thread that can't wait: leaves all of the work to the eviction threads.
  void note_rows_changed_without_wait();
  // The count is atomic: it needs no right to move.
  void note_promoted(uint64_t rows) NO_THREAD_SAFETY_ANALYSIS { promotion_.note_promoted(rows); }

  // Counts what was served until now, brings up prefetched rows, and moves rows down until no tier is over
  // its capacity, except by pinned rows. Throws what a tier threw.
  void settle();

  // Moves rows of a pool to the tier below it until `count` more may be claimed there, as far as moves free
  // places: places that checkpoints keep stay taken. Does nothing if there is no tier below. Throws what a
  // tier threw.
  void make_room_in_pool(uint64_t count);

  // The scope in which no other thread moves rows.
  class Pause {
   public:
    explicit Pause(Mover& mover);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

    // Counts the accesses that wait and moves rows down until no tier is over its capacity, except by pinned
    // rows. Throws what a tier threw.
    void settle();
    // Claims `count` slots of the first tier, and makes room for them.
    SlotClaim claim(uint64_t count);
    // Moves one batch of rows down if a tier has too many. Returns false if none has.
    bool shrink_once();
    std::optional<Rank> min_rank(size_t t) const;

   private:
    Mover& mover_;
  };
  // Returns which part of a row that isn't in memory a serving look-up should read. Atomic: it needs no right
  // to move.
  RowPart part_to_serve() const NO_THREAD_SAFETY_ANALYSIS {
    return promotion_.should_read_whole_rows() ? RowPart::kAll : RowPart::kWeights;
  }
  CacheStrategy strategy() const { return strategy_; }
  // Returns whether a row of tier t may be updated where it is. It must stay in tiers of memory until then:
  // because it is pinned, which takes a ranked tier, because it can't go elsewhere, or because
  // `nothing_moves`.
  bool can_update_in_place(size_t t, bool nothing_moves) const;
  // With LFU, returns a number of accesses that every row which stays above tier t has at least; 0 if the
  // tiers above aren't full, or if that isn't known.
  uint64_t min_count_above(size_t t) const { return min_counts_[t - 1].load(std::memory_order_relaxed); }
  // Takes rows that were updated below, with nothing left to count: those that outrank rows above come up.
  // Waits for nothing.
  void queue_updated_below(std::list<PageVector<RowToRaise>>&& rows) noexcept;

  // Ends moving for good. REQUIRES: no operation is under way.
  void stop();

  // Atomic counts, which need no right to move.
  uint64_t promoted_rows() const NO_THREAD_SAFETY_ANALYSIS { return promotion_.promoted_rows(); }
  uint64_t demoted_rows() const NO_THREAD_SAFETY_ANALYSIS { return demotion_.demoted_rows(); }
  // Accesses that were never counted, since moves were held off or failed.
  uint64_t forgotten_accesses() const { return forgotten_.load(std::memory_order_relaxed); }
  // Returns the error of the eviction threads' last attempt; empty if it went well.
  std::string background_error() const;

 private:
  bool run() noexcept override;
  // Works for a while on what needs no rows in a GPU's memory. Returns what is left to do.
  enum class Left { kNothing, kMore, kToMove, kToCountAndMove };
  Left run_beside_steps() noexcept;
  // Counts the oldest served batches, of about `bytes`; false if there is none that can be counted beside
  // steps.
  bool count_beside_steps(size_t bytes) REQUIRES(right_to_move_);
  bool has_work() const;
  enum class Steps { kRunning, kStopped };
  void take_updated_below(Steps steps) REQUIRES(right_to_move_);
  // Counts the oldest served batches, of about `bytes`.
  void count_waiting(size_t bytes) REQUIRES(right_to_move_);
  // Waits for the right to move, for a look-up that makes room in the log; false if moves are held off.
  bool lock_for_look_up() TRY_ACQUIRE(true, right_to_move_);
  // Waits for the right to move, and counts batches of `bytes` if the log still has no room; false if moves
  // are held off, or fail.
  bool wait_for_room_in_log(size_t bytes);
  // Finds out where the rows of new requests are, and adds them to the prefetched rows. Touches no row.
  void locate_prefetched() REQUIRES(right_to_move_);
  // Lets go of the rows of batches whose turn is over.
  void release_prefetched() REQUIRES(right_to_move_);
  // Atomic: it needs no right to move.
  bool any_to_bring_up() const NO_THREAD_SAFETY_ANALYSIS { return prefetched_.any_below(); }
  // Brings some of the prefetched rows up; false if none is left to come.
  bool bring_up_some() REQUIRES(right_to_move_);
  void settle_with_right() REQUIRES(right_to_move_);
  SlotClaim claim_with_right(uint64_t count) REQUIRES(right_to_move_);
  // Claims slots for rows that come up to tier t, a tier of memory. The tier goes beyond its capacity by its
  // headroom at most, however many slots were added to the first tier for large batches. Nothing if a tier
  // below the first has no room.
  std::optional<SlotClaim> claim_for_promotion(size_t t, uint64_t count) REQUIRES(right_to_move_);
  void note_min_counts() REQUIRES(right_to_move_);
  void forget_min_counts();
  void note_outcome(std::string error);

  RowStore& store_;
  const CacheStrategy strategy_;
  DeviceSteps* const steps_;
  RowRelocator relocator_;

  RightToMove right_to_move_;
  PrefetchedRows prefetched_ GUARDED_BY(right_to_move_);
  Promotion promotion_ GUARDED_BY(right_to_move_);
  Demotion demotion_ GUARDED_BY(right_to_move_);

  std::array<std::atomic<uint64_t>, RowRef::kMaxTiers> min_counts_{};  // by tier; see min_count_above()
  Mutex updated_mutex_;
  std::list<PageVector<RowToRaise>> updated_below_ GUARDED_BY(updated_mutex_);
  std::atomic<bool> any_updated_below_{false};

  AccessLog log_;
  std::atomic<int> look_ups_waiting_{0};  // for room in the log
  std::atomic<uint64_t> forgotten_{0};

  TrainingTurns turns_;
  struct PrefetchRequest {
    uint64_t turn;
    std::vector<int64_t> keys;
  };
  Mutex requests_mutex_;
  std::vector<PrefetchRequest> requests_
      GUARDED_BY(requests_mutex_);  // requests for rows that no thread has looked for yet
  std::atomic<bool> any_requests_{false};

  mutable Mutex outcome_mutex_;
  std::string background_error_ GUARDED_BY(outcome_mutex_);
};

}  // namespace embstore
