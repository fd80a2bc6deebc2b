// How a row's floats lie in memory: the weights, then one block a slot, every block padded to 16 bytes
// so that each starts where a vector register can load it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace embstore {

class RowLayout {
 public:
  // REQUIRES: dim > 0, slot_count >= 0.
  RowLayout(int dim, int slot_count)
      : dim_(dim), slot_count_(slot_count), block_floats_((static_cast<size_t>(dim) + 3) / 4 * 4) {}

  int dim() const { return dim_; }
  int slot_count() const { return slot_count_; }
  size_t block_floats() const { return block_floats_; }
  size_t row_floats() const { return (1 + static_cast<size_t>(slot_count_)) * block_floats_; }
  size_t row_bytes() const { return row_floats() * sizeof(float); }

 private:
  int dim_;
  int slot_count_;
  size_t block_floats_;
};

// What is kept of a row beside its floats.
struct RowMeta {
  static constexpr int64_t kNeverUpdated = -1;  // as a version
  static constexpr uint64_t kFrequencyBits = (uint64_t{1} << 48) - 1;

  uint64_t frequency : 48;
  uint64_t save_span : 16;  // of the last apply, see keep/save_spans.h
  int64_t version;

  static RowMeta of(uint64_t frequency, int64_t version, uint16_t save_span) {
    return {.frequency = frequency & kFrequencyBits, .save_span = save_span, .version = version};
  }
  void count(uint64_t occurrences, int64_t step, uint16_t span) {
    *this = of(frequency + occurrences, step, span);
  }
};
static_assert(sizeof(RowMeta) == 16);

}  // namespace embstore
