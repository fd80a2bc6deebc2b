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

// The destination of a batch's rows: the row of id i is written as row i of `rows`, or as row places[i].
// Places ascend.
struct RowsOut {
  RowsOut(float* to,  // NOLINT(google-explicit-constructor): mostly given as a pointer alone
          std::span<const uint32_t> at = {}, gpu::DeviceAddress* left = nullptr)
      : rows(to), places(at), left_at(left) {}

  size_t place(size_t i) const { return places.empty() ? i : places[i]; }

  float* rows;
  std::span<const uint32_t> places;
  // If it isn't null, rows that a GPU can read where they lie are left there: left_at has their addresses, by
  // the same places; its other entries stay as they are. REQUIRES in this case: no row changes or moves until
  // they have been read.
  gpu::DeviceAddress* left_at;
};

// Reads rows without a lock. A row that is being changed is read as it was before or as it is after, never in
// between.
class LookUp {
 public:
  LookUp(const RowStore& store, const ShardFilters& filters, const InitialRows& initial)
      : store_(store), filters_(filters), initial_(initial) {}

  // Copies the rows that the first tier has, and initial values, to `out`; adds the rows of lower tiers to
  // `lower`, tagged with their positions; writes where each id's row is to `refs`, unless that is null.
  // Returns how many rows the first tier had. REQUIRES: a guard of the epochs is held until `lower` is done;
  // `lower` is null only if there is one tier.
  uint64_t read_first_tier(std::span<const int64_t> ids, const RowsOut& out, BatchInFlight* lower,
                           RowRef* refs) const;

  // Reads the rows that were added to `lower`, in one batch per tier. Throws DamagedRowsError for rows that a
  // medium doesn't give back, after all other rows are read.
  void read_lower(const RowsOut& out, BatchInFlight& lower, RowPart part) const;

 private:
  // read_first_tier() with the rows going to `gather`, which adds the places of rows that have to be found
  // again to `changed`. `places`: place(i) is the place of id i's row, and number(place) is the inverse.
  template <class Gather, class Places>
  uint64_t find_rows(std::span<const int64_t> ids, float* out, const Places& places, BatchInFlight* lower,
                     RowRef* refs, Gather& gather, std::vector<size_t>& changed) const;
  template <class Places>
  uint64_t read_first_tier(std::span<const int64_t> ids, float* out, const Places& places,
                           BatchInFlight* lower, RowRef* refs) const;
  // Rows that a medium doesn't give back.
  struct Damage {
    std::vector<int64_t> keys;
    std::string first;  // the reason for the first of them
  };
  // read_lower() that adds to `damage`.
  void read_found(const RowsOut& out, BatchInFlight& lower, RowPart part, Damage& damage) const;
  // Leaves rows of `lower` that are in this tier of memory where they are.
  void note_addresses(const MemoryTier& tier, size_t t, const RowsOut& out, const BatchInFlight& lower) const;
  // Copies rows of `lower` that are in this tier of memory. Adds the numbers of those that may have changed
  // meanwhile to `again`.
  void copy_from_memory(const MemoryTier& tier, size_t t, const RowsOut& out, const BatchInFlight& lower,
                        std::vector<size_t>& again) const;
  // Reads the weights of rows of `lower` that moved or changed meanwhile, wherever they are now, or whose
  // damage may lie outside the weights.
  void reread(const RowsOut& out, const BatchInFlight& lower, std::span<const size_t> which,
              Damage& damage) const;
  // Copies what a key without a row reads.
  void copy_initial_value(KeyHash hash, int64_t key, float* out) const;

  const RowStore& store_;
  const ShardFilters& filters_;
  const InitialRows& initial_;
};

}  // namespace embstore
