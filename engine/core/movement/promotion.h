// Moves rows up: those of lower tiers that outrank others above since serving look-ups accessed them come to the first, and
// those of lower levels that will be needed soon.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "memory/page_vector.h"
#include "store/row_store.h"
#include "store/transaction.h"

namespace embstore {

class Phase;

// A row that is to come up: for serving look-ups' accesses, which are counted, or for nothing that is.
struct RowToCome {
  int64_t key;
  std::optional<ServedAccesses> served;
};

// Not for two threads at a time: it counts accesses, and relies on no row leaving the first tier meanwhile. Only the new
// rows of an update that is taken back may leave: accesses to them go uncounted.
class Promotion {
 public:
  // The right to so many slots of the first tier; throws where it can't be had. Called without locks.
  using ClaimSlots = std::function<SlotClaim(uint64_t count)>;
  // The count and time below which a row of a tier belongs no higher; nothing where that can't be said.
  using FloorAbove = std::function<std::optional<Rank>(size_t tier)>;
  Promotion(RowStore& store, ClaimSlots claim_slots, FloorAbove floor_above, size_t most_rows_at_once)
      : store_(store),
        claim_slots_(std::move(claim_slots)),
        floor_above_(std::move(floor_above)),
        most_rows_at_once_(most_rows_at_once) {}

  // Counts the accesses of the batches, and moves up what they found in lower tiers and doesn't belong there any more. A row that a medium doesn't
  // give back stays where it is. On an error some accesses are uncounted; no row is lost.
  void count(std::span<const BatchPtr> batches);

  // Moves up rows of lower levels as they are: nothing is counted. As count() does otherwise.
  void bring_up(std::span<const int64_t> keys);

  uint64_t promoted_rows() const { return promoted_.load(std::memory_order_relaxed); }
  void note_promoted(uint64_t rows) { promoted_.fetch_add(rows, std::memory_order_relaxed); }

 private:
  // Counts accesses to the key's row in the slot of the first tier; false, and they aren't counted, if the row isn't there.
  bool count_served(Slot slot, int64_t key, const ServedAccesses& accesses);
  // Counts those whose rows are still in the first tier, and adds the others to `missed`.
  void count_hits(const BatchInFlight& batch, PageVector<RowToCome>& missed);
  // Counts accesses to rows wherever they are now; those in lower tiers come up. Without counting, those in lower levels do.
  void bring_up_missed(PageVector<RowToCome> missed);
  // Counts served_by(tag), where there is something, and moves up the rows that were found in lower tiers: of those that are
  // counted, the ones that don't belong there. Adds to `missed` those that aren't what was read any more.
  template <class ServedBy>
  void promote(BatchInFlight& batch, PageVector<RowToCome>& missed, const ServedBy& served_by);
  // The rows of the batch that aren't counted where they are, by position.
  template <class ServedBy>
  PageVector<uint32_t> count_in_place(const BatchInFlight& batch, const ServedBy& served_by, Phase& phase);
  // Counts accesses to row i, if it stays in the tier that it's in, and if that can count.
  using Floors = std::array<std::optional<Rank>, RowRef::kMaxTiers>;
  bool try_count_in_place(IndexShard& shard, const BatchInFlight& batch, size_t i,
                          const ServedAccesses& served, const Floors& floors, Phase& phase)
      REQUIRES(shard.mutex);
  // Those rows, which are of that shard.
  template <class ServedBy>
  void promote_shard(IndexShard& shard, const BatchInFlight& batch, std::span<const uint32_t> rows,
                     PageVector<RowToCome>& missed, const ServedBy& served_by, Phase& phase);

  RowStore& store_;
  const ClaimSlots claim_slots_;
  const FloorAbove floor_above_;
  const size_t most_rows_at_once_;
  std::atomic<uint64_t> promoted_{0};
};

}  // namespace embstore
