// The scope in which a table's rows are replaced by others: no apply, no promotion and no move goes on
// meanwhile. Look-ups do, and see rows come and go.
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
  // Waits for what is under way, and forgets what that failed with.
  explicit Replacement(TableParts& table);
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  const RowLayout& layout() const { return table_.layout; }
  // What columns and slots start as that a checkpoint of fewer doesn't have.
  const float* initial_weights(int64_t key) const { return table_.initial.of(key); }
  float initial_slot_value(int slot) const { return table_.optimizer->initial_slot_value(slot); }

  // Has keys without a row read rows of `dim` floats, which are cut, or go on as they are now, where the table has another
  // dim.
  void replace_initial_rows(std::span<const float> values, size_t dim);

  // Removes every row and forgets every waiting key.
  void clear();
  // Clears the table, and calls fill(), which puts rows in. Where it throws, the table is left empty.
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

  // Room is made in the index for so many rows when the first come: in the order of a save, they would crowd one end of an
  // index that grows.
  void expect_rows(uint64_t rows) { expected_rows_ = rows; }
  // The rows that will be put in rank as these do, of which each stands for `step` of them. Tells beforehand in which tier a
  // row will be.
  void expect(std::vector<Rank> sample, size_t step);
  // Whether that is of use, and whether the order in which rows are put in may matter.
  bool has_lower_tiers() const { return table_.mover != nullptr; }
  Rank rank_of(uint64_t count, uint64_t stamp) const;

  // Puts rows in; those whose key has a row already are left out. Each goes to the tier where it will be in
  // the end, as far as can be told from the rows so far; the others are moved down when it can be. Notes in the headers what a
  // row of the table has. Throws Error(kStoreFull). For one thread at a time where the table has lower tiers.
  void put(RowBatch& rows);

  // Has the index refer to the rows of a checkpoint, where they lie. Calls seen(headers) for them, from several threads at once.
  // Throws Error(kStorage), Error(kStoreFull).
  using Seen = std::function<void(std::span<const RowHeader> headers)>;
  void take_over(uint64_t number, const Seen& seen = nullptr);

  // Does nothing where the table has no filter.
  void put_waiting_key(const checkpoint::WaitingKeyRecord& waiting);
  // Does nothing where the table has no filter.
  void put_sketch(const checkpoint::SketchHeader& header, std::span<const std::byte> counters);

  // To be called when all rows are in.
  void finish(const TableState& state);

 private:
  // Safe to be called by several threads at once.
  void refer_to(uint32_t tier, std::span<const RowHeader> headers, std::span<const Slot> slots);
  void make_expected_room(int64_t one);
  // Those whose key has no row yet.
  std::vector<size_t> fresh(const RowBatch& rows) const;
  void put_in_tier(size_t t, const RowBatch& rows, std::span<const size_t> which);
  // Stores rows that there is room for, and has the index refer to them.
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
  // By tier: rows that rank no higher don't stay there any more, since it's full of rows that do.
  std::vector<std::optional<Rank>> floors_;
};

}  // namespace embstore
