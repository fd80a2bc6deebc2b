// The scope in which a table's rows are replaced: no apply, no promotion and no move goes on meanwhile.
// Look-ups go on, and see rows come and go.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "keep/checkpoint/format.h"
#include "parts/table_parts.h"
#include "parts/table_state.h"
#include "row/row_batch.h"

namespace embstore {

class Replacement {
 public:
  // Waits for operations under way, and forgets the errors of steps on the device.
  explicit Replacement(TableParts& table);
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  const RowLayout& layout() const { return table_.layout; }
  // The initial values of columns and slots that a checkpoint with fewer of them doesn't have.
  const float* initial_weights(int64_t key) const { return table_.initial.row_of(key); }
  float initial_slot_value(int slot) const { return table_.optimizer->initial_slot_value(slot); }

  // Has keys without a row read rows of `dim` floats. If the table has another dim, the rows are cut, or
  // continued as they are now.
  void replace_initial_rows(std::span<const float> values, size_t dim);

  // Removes every row and forgets every waiting key.
  void clear();
  // Clears the table, and calls fill(), which inserts rows. If it throws, the table is left empty.
  template <class Fill>
  void replace_all(const Fill& fill) {
    try {
      clear();
      fill();
    } catch (...) {
      clear();
      throw;
    }
  }

  // Makes room in the index for this many rows when the first ones come: in the order of a save, rows would
  // crowd one end of an index that grows.
  void expect_rows(uint64_t rows) { expected_rows_ = rows; }
  // Tells in advance how the rows that will be put in rank, so that each can go to its tier at once. Each
  // rank of the sample stands for `step` rows.
  void set_expected_ranks(std::vector<Rank> sample, size_t step);
  // Returns whether the table has lower tiers: only then set_expected_ranks() is of use, and the order in
  // which rows are put in may matter.
  bool has_lower_tiers() const { return table_.mover != nullptr; }
  Rank rank_of(uint64_t count, uint64_t stamp) const;

  // Inserts rows, except those whose key has a row already. Each goes to the tier where it will be in the
  // end, as far as the rows so far tell; the rest are moved down later. Sets the fields of the headers that
  // belong to this table. Throws Error(kStoreFull). For one thread at a time if the table has lower tiers.
  void put(RowBatch& rows);

  // Has the index refer to the rows of a checkpoint where they lie. Calls seen(headers) for them, from
  // several threads at once. Throws Error(kStorage), Error(kStoreFull).
  using Seen = std::function<void(std::span<const RowHeader> headers)>;
  void take_over(uint64_t number, const Seen& seen = nullptr);

  // Does nothing if the table has no filter.
  void put_waiting_key(const checkpoint::WaitingKeyRecord& waiting);
  // Does nothing if the table has no filter.
  void put_sketch(const checkpoint::SketchHeader& header, std::span<const std::byte> counters);

  // Called when all rows are in.
  void finish(const TableState& state);

 private:
  // Thread-safe.
  void refer_to(uint32_t tier, std::span<const RowHeader> headers, std::span<const Slot> slots);
  void make_expected_room(int64_t sample_key);
  // Returns the positions of rows whose key has no row yet.
  std::vector<size_t> positions_of_new(const RowBatch& rows) const;
  void put_in_tier(size_t t, const RowBatch& rows, std::span<const size_t> which);
  // Stores rows for which there is room, and has the index refer to them.
  void store_rows(size_t t, const RowBatch& rows);
  [[noreturn]] void throw_no_room() const;
  void make_room();
  void note_stamp(uint64_t stamp);
  size_t tier_for(const RowHeader& header) const;

  const SaveTurn turn_;
  Operation operation_;
  TableParts& table_;
  RowStore& store_;
  Standstill standstill_;
  uint16_t save_span_ = 0;
  std::atomic<uint64_t> expected_rows_ = 0;
  std::atomic<uint64_t> newest_stamp_ = 0;
  // For each tier: rows with at most this rank don't stay, since the tier is full of rows with higher ranks.
  std::vector<std::optional<Rank>> floors_;
};

}  // namespace embstore
