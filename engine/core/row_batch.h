// Rows on the move between tiers: headers and floats of several rows in one buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "row_layout.h"

namespace embstore {

// What a row takes along beside its floats.
struct RowHeader {
  int64_t key;
  uint64_t frequency;
  int64_t version;
  uint64_t served;  // this and the next: by which tiers rank rows, see ranking.h
  uint64_t stamp;
  uint64_t save_span = 0;  // as in RowMeta
};
static_assert(sizeof(RowHeader) == 48);

class RowBatch {
 public:
  explicit RowBatch(const RowLayout& layout) : row_floats_(layout.row_floats()) {}

  size_t size() const { return headers_.size(); }
  bool empty() const { return headers_.empty(); }
  size_t row_floats() const { return row_floats_; }
  void clear() { resize(0); }
  // New rows hold unspecified values.
  void resize(size_t count) {
    headers_.resize(count);
    floats_.resize(count * row_floats_);
  }

  RowHeader& header(size_t i) { return headers_[i]; }
  const RowHeader& header(size_t i) const { return headers_[i]; }
  float* row(size_t i) { return floats_.data() + i * row_floats_; }
  const float* row(size_t i) const { return floats_.data() + i * row_floats_; }

 private:
  size_t row_floats_;
  std::vector<RowHeader> headers_;
  std::vector<float> floats_;
};

}  // namespace embstore
