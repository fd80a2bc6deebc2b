// What is read of all rows of a table, whichever tiers they are in: for checkpoints, for exports, and to find those
// that are damaged.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "keep/checkpoint/writer.h"
#include "parts/table_parts.h"

namespace embstore {

// What becomes of rows that a medium doesn't give back as they were written.
enum class OnDamage { kRaise, kSkip };

struct ExportedRows {
  std::vector<int64_t> keys;  // ascending
  std::vector<float> values;
  std::vector<int64_t> frequencies;
  std::vector<int64_t> versions;
  std::vector<std::vector<float>> slots;
};

// Each of them REQUIRES a Standstill.
SavedTable save_table(TableParts& table, checkpoint::Writer& file, const EvictionRule& eviction,
                      bool waiting_keys, OnDamage on_damage) REQUIRES(table.gate);
// Those that admission filters keep out, as they are now.
void save_waiting_keys(const TableParts& table, checkpoint::Writer& file);
ExportedRows export_rows(TableParts& table, OnDamage on_damage) REQUIRES(table.gate);
std::vector<int64_t> find_damaged_rows(TableParts& table) REQUIRES(table.gate);
// Removes rows, and has the next incremental save tell of it. Says how many there were.
uint64_t drop_rows(TableParts& table, std::span<const int64_t> keys) REQUIRES(table.gate);

}  // namespace embstore
