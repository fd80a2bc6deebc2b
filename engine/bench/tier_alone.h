// A tier in files by itself, without a table: benchmarks read and write it to measure its share of a
// table's time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "row/row_batch.h"
#include "row/row_layout.h"
#include "tiers/tier.h"

namespace embstore {

// Holds rows of the ids 0 to row_count - 1. For one thread at a time, in which the tier compacts, too.
class TierAlone final : private Relocator {
 public:
  // `kind`: "SSDHASH" or "LEVELDB". `direct`: past the page cache, which only SSDHASH can do. Throws
  // Error(kInvalidArgument), Error(kMissingLibrary) or Error(kStorage).
  TierAlone(const std::string& kind, std::string directory, int dim, int slot_count, size_t row_count,
            bool direct);

  size_t row_floats() const { return layout_.row_floats(); }

  // Does what an eviction does: erases rows that the tier has already, as if they had been promoted,
  // and writes all rows. REQUIRES, here and below: distinct ids below row_count.
  void write(std::span<const int64_t> ids, const float* rows);
  // Does what a batch of misses does. REQUIRES: every id was written.
  void read(std::span<const int64_t> ids, float* rows) const;
  void drain() { tier_->drain(); }
  uint64_t file_bytes() const { return tier_->stats().mapped_bytes; }
  // Removes the files. REQUIRES, for all other calls: not closed.
  void close() { tier_.reset(); }

 private:
  void relocate(std::span<Relocation> rows) override;
  void gather(std::span<const int64_t> ids) const;

  static constexpr Slot kNowhere = ~Slot{0};

  const RowLayout layout_;
  std::vector<Slot> slots_;  // by id
  std::unique_ptr<Tier> tier_;
  // Memory that is reused from batch to batch.
  mutable std::vector<Place> places_;
  mutable RowBatch rows_;
  std::vector<Slot> new_slots_;
};

}  // namespace embstore
