// Reads the rows of a batch of ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "admission/shard_filters.h"
#include "gpu/device_address.h"
#include "row/initial_rows.h"
#include "store/row_store.h"

namespace embstore {

// Where the rows of a batch go, one after the other: that of its id i as row i, or as row places[i], which ascend.
struct RowsOut {
  RowsOut(float* to,  // NOLINT(google-explicit-constructor): in order, mostly
          std::span<const uint32_t> at = {}, gpu::DeviceAddress* left = nullptr)
      : rows(to), places(at), left_at(left) {}

  size_t place(size_t i) const { return places.empty() ? i : places[i]; }

  float* rows;
  std::span<const uint32_t> places;
  // Where it isn't null, rows that a GPU reads where they lie are left there: this says where, by the same places, of which
  // the others' stay as they are. REQUIRES then: no row changes, or changes places, until they have been read.
  gpu::DeviceAddress* left_at;
};

// A row that is being changed is read as it was before or as it is after, never in between. No lock is taken.
class LookUp {
 public:
  LookUp(const RowStore& store, const ShardFilters& filters, const InitialRows& initial)
      : store_(store), filters_(filters), initial_(initial) {}

  // Copies what the first tier has, and initial values, to `out`; adds the rows that lower tiers
  // have to `lower`, tagged with their positions; writes where each id's row is to `refs`, unless it's null.
  // Returns how many rows the first tier had. REQUIRES: a guard of the epochs is held until `lower` is done; `lower` is
  // null only where there is one tier.
  uint64_t read_first_tier(std::span<const int64_t> ids, const RowsOut& out, BatchInFlight* lower,
                           RowRef* refs) const;

  // Reads what was added to `lower`, tier by tier and in one batch each. Throws DamagedRowsError for those that a
  // medium doesn't give back, when all others are there.
  void read_lower(const RowsOut& out, BatchInFlight& lower, RowPart part) const;

 private:
  // read_first_tier() with its rows going to `gather`, which adds the places of those that have to be found again to `changed`.
  // `places`: of the ids' rows, as place(i), and whose row is at a place, as number(place).
  template <class Gather, class Places>
  uint64_t find_rows(std::span<const int64_t> ids, float* out, const Places& places, BatchInFlight* lower,
                     RowRef* refs, Gather& gather, std::vector<size_t>& changed) const;
  template <class Places>
  uint64_t read_first_tier(std::span<const int64_t> ids, float* out, const Places& places,
                           BatchInFlight* lower, RowRef* refs) const;
  // Rows that a medium doesn't give back.
  struct Damage {
    std::vector<int64_t> keys;
    std::string first;  // why, of the first
  };
  // read_lower() that adds to `damage`.
  void read_found(const RowsOut& out, BatchInFlight& lower, RowPart part, Damage& damage) const;
  // Leaves those of `lower` that are in a tier of memory where they are.
  void leave_in_memory(const MemoryTier& tier, size_t t, const RowsOut& out,
                       const BatchInFlight& lower) const;
  // Copies those of `lower` that are in a tier of memory; adds to `again` the numbers of those that may have changed meanwhile.
  void copy_from_memory(const MemoryTier& tier, size_t t, const RowsOut& out, const BatchInFlight& lower,
                        std::vector<size_t>& again) const;
  // Reads the weights of rows of `lower` that moved or changed meanwhile, wherever they are now, or that are damaged elsewhere.
  void read_again(const RowsOut& out, const BatchInFlight& lower, std::span<const size_t> which,
                  Damage& damage) const;
  // What a key without a row reads.
  void copy_initial_value(KeyHash hash, int64_t key, float* out) const;

  const RowStore& store_;
  const ShardFilters& filters_;
  const InitialRows& initial_;
};

}  // namespace embstore
