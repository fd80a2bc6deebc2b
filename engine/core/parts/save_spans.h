// The spans of time between two saves. A row stores the span of its last apply, so that an incremental save
// knows which rows were touched since the save before without a list of them.
#pragma once

#include <cstdint>

namespace embstore {

// Guarded by the table's apply gate: rows are touched with the gate shared, all else needs the gate alone.
class SaveSpans {
 public:
  // Returns the span of rows that are touched now.
  uint16_t current() const { return current_; }

  // Returns whether a row of this span was touched since the last save that succeeded. Span numbers repeat
  // after 2^16 saves: a row that wasn't touched for that long is then saved once more, which is harmless.
  bool is_unsaved(uint16_t span) const { return distance(span) <= distance(current_); }

  // Begins a span. Returns the number of the save that has everything until now. After 2^16 failed saves in a
  // row no new span begins: rows touched while a save is being written are then written by the next one too.
  uint64_t begin_next() {
    if (distance(static_cast<uint16_t>(current_ + 1)) != 0) ++current_;
    return ++saves_;
  }
  // Marks what save `number` wrote as saved. Returns false, and marks nothing, if a newer save has begun,
  // which writes all of it again.
  bool save_succeeded(uint64_t number) {
    if (number != saves_) return false;
    first_unsaved_ = current_;
    return true;
  }

  // Marks everything as saved. Returns the span for rows that are put now.
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
