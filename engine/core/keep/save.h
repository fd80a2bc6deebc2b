// Reads all rows of a table, whichever tiers they are in: for checkpoints, for exports, and to find damaged
// rows.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "errors/error.h"
#include "keep/checkpoint/writer.h"
#include "memory/page_vector.h"
#include "parts/table_parts.h"

namespace embstore {

// Whether rows that a medium doesn't give back as they were written raise an error or are skipped.
enum class OnDamage { kRaise, kSkip };

struct ExportedRows {
  std::vector<int64_t> keys;  // ascending
  std::vector<float> values;
  std::vector<int64_t> frequencies;
  std::vector<int64_t> versions;
  std::vector<std::vector<float>> slots;

  bool operator==(const ExportedRows&) const = default;
};

// Includes both ends.
struct KeyRange {
  int64_t first = std::numeric_limits<int64_t>::min();
  int64_t last = std::numeric_limits<int64_t>::max();
};

// Returns how many rows to read at a time: a megabyte of them, but not so many that their bookkeeping takes
// more.
size_t rows_at_a_time(const RowLayout& layout);

// Returns the places of a shard's rows in a tier.
std::vector<Place> places_in(uint32_t tier, IndexShard& shard);

// Tells whether a key has a row. REQUIRES: a guard of the epochs is held as long as this is used.
class HasRow {
 public:
  explicit HasRow(const RowStore& store) : reader_(store.index()) {}
  bool operator()(int64_t key) { return static_cast<bool>(reader_.find(key).ref); }
  // Returns those of `keys` that have a row, in their order.
  PageVector<int64_t> keys_with_row(std::span<const int64_t> keys);

 private:
  IndexReader reader_;
};

// Reads the rows of `keys`: visits those that are whole, and collects the keys of damaged ones.
class RowVisitor {
 public:
  explicit RowVisitor(const TableParts& table) : table_(table), rows_(table.layout) {}

  template <class Visit>
  void visit(std::span<const int64_t> keys, Visit visit_row) {
    const size_t most = rows_at_a_time(table_.layout);
    for (size_t first = 0; first < keys.size(); first += most) {
      const auto some = keys.subspan(first, std::min(most, keys.size() - first));
      table_.store->read_settled(some, rows_);
      for (const auto& [position, reason] : rows_.damaged()) {
        if (damaged_.empty()) first_damage_ = reason;
        damaged_.push_back(some[position]);
      }
      for (size_t i = 0; i < some.size(); ++i) {
        if (!rows_.is_damaged(i)) visit_row(first + i, rows_.header(i), rows_.row(i));
      }
    }
  }
  std::vector<int64_t>& damaged() { return damaged_; }
  void raise() {
    if (!damaged_.empty()) throw DamagedRowsError(std::move(damaged_), first_damage_);
  }

 private:
  const TableParts& table_;
  RowBatch rows_;
  std::vector<int64_t> damaged_;
  std::string first_damage_;
};

// A copy of the keys that the admission filters keep out, or of the filters' sketches.
class WaitingKeys {
 public:
  WaitingKeys() = default;
  // Copies them as they are now.
  explicit WaitingKeys(const TableParts& table);
  void write(checkpoint::Writer& file) const;

 private:
  struct Sketch {
    checkpoint::SketchHeader header;
    PageVector<std::byte> counters;
  };
  PageVector<checkpoint::WaitingKeyRecord> keys_;
  std::vector<Sketch> sketches_;
};

// Each of these REQUIRES a Standstill.
// Returns the keys in the range that have a row, in no order.
std::vector<int64_t> keys_with_row(TableParts& table, KeyRange range) REQUIRES(table.gate);
// REQUIRES: `keys` ascend, and each has a row.
ExportedRows export_rows(TableParts& table, std::span<const int64_t> keys, OnDamage on_damage)
    REQUIRES(table.gate);
std::vector<int64_t> find_damaged_rows(TableParts& table) REQUIRES(table.gate);
// Removes the rows of those of `keys` that have one, and has the next incremental save list them. Returns how
// many there were.
uint64_t drop_rows(TableParts& table, std::span<const int64_t> keys) REQUIRES(table.gate);

}  // namespace embstore
