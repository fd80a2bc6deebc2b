// One level of storage: at most so many rows, each in a numbered slot.
//
// Room is claimed in two moves, so that a batch learns whether it fits before it changes anything:
// reserve() sets a number of slots aside, take() then turns reservations into slots.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace embstore {

using Slot = uint32_t;

struct TierStats {
  std::string name;
  uint64_t rows;
  uint64_t capacity_rows;
  uint64_t row_bytes;
  uintptr_t address;      // of the first row; 0 where rows can't be addressed
  uint64_t mapped_bytes;  // of address space or of files
  std::optional<std::string> path;
  std::optional<bool> is_pmem;
};

class Tier {
 public:
  virtual ~Tier() = default;

  // Sets `count` slots aside; false, and nothing is set aside, where they are not to be had.
  virtual bool reserve(uint64_t count) = 0;
  // Gives reservations back that were not turned into slots.
  virtual void release(uint64_t count) = 0;
  // REQUIRES: slots.size() reservations. Slots that take() handed out hold unspecified rows.
  virtual void take(std::span<Slot> slots) = 0;
  // Makes the slots free for others. REQUIRES: no index entry refers to them.
  virtual void give_back(std::span<const Slot> slots) = 0;

  virtual TierStats stats() const = 0;
};

}  // namespace embstore
