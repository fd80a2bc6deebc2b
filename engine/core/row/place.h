// The place of a row: its tier, and its slot in the tier.
#pragma once

#include <cstdint>

namespace embstore {

// The number of a row's place within one tier.
using Slot = uint32_t;

// A key, and the slot of its row in a tier.
struct Place {
  int64_t key;
  Slot slot;
};

// A tier (three bits) and a slot in the tier. The raw value 0 is the empty reference, so zeroed memory holds
// empty references.
class RowRef {
  static constexpr uint32_t kSlotBits = 29;

 public:
  static constexpr uint32_t kMaxTiers = 8;
  static constexpr uint32_t kMaxSlots = (uint32_t{1} << kSlotBits) - 2;

  RowRef() = default;
  RowRef(uint32_t tier, Slot slot) : raw_(((tier << kSlotBits) | slot) + 1) {}
  static RowRef from_raw(uint32_t raw) {
    RowRef ref;
    ref.raw_ = raw;
    return ref;
  }

  explicit operator bool() const { return raw_ != 0; }
  uint32_t raw() const { return raw_; }
  uint32_t tier() const { return (raw_ - 1) >> kSlotBits; }
  Slot slot() const { return (raw_ - 1) & ((uint32_t{1} << kSlotBits) - 1); }
  bool operator==(const RowRef&) const = default;

 private:
  uint32_t raw_ = 0;
};

}  // namespace embstore
