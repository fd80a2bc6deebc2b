// The layout of a row's floats in memory: a block of weights, then a block for each of the optimizer's slots.
// Blocks are padded to 16 bytes, so that vector registers can load them aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "row/row_meta.h"

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

}  // namespace embstore
