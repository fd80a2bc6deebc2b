// Time as incremental saves know it: the spans between two saves. A row remembers the span of its last
// apply, so a save tells what was touched since the one before without any list being kept.
#pragma once

#include <cstdint>

namespace embstore {

// Guarded by the table's apply gate: rows are touched with the gate shared, the rest needs it alone.
class SaveSpans {
 public:
  // The span that rows touched now belong to.
  uint16_t current() const { return current_; }

  // True for rows touched since the last save that succeeded. Numbers come again after 2^16 saves: a row
  // that wasn't touched for so long is then saved once more, which is harmless.
  bool unsaved(uint16_t span) const { return distance(span) <= distance(current_); }

  // Begins a span; returns the number of the save of everything until now. After 2^16 saves in a row that failed, spans
  // end no more: rows touched while a save is being written are then written by the next one too.
  uint64_t begin_next() {
    if (distance(static_cast<uint16_t>(current_ + 1)) != 0) ++current_;
    return ++saves_;
  }
  // What the save had is saved; false, and nothing is, where a newer one has begun, which has all of it again.
  bool save_succeeded(uint64_t number) {
    if (number != saves_) return false;
    first_unsaved_ = current_;
    return true;
  }

  // Takes everything for saved; returns the span that rows which are put now get.
  uint16_t start_over() {
    ++current_;
    first_unsaved_ = current_;
    return static_cast<uint16_t>(current_ - 1);
  }

 private:
  uint16_t distance(uint16_t span) const { return static_cast<uint16_t>(span - first_unsaved_); }

  uint16_t current_ = 0;
  uint16_t first_unsaved_ = 0;
  uint64_t saves_ = 0;
};

}  // namespace embstore
