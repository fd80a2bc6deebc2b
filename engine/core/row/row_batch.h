// Rows on the move between tiers: headers and floats of several rows in one buffer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/page_vector.h"
#include "row/row_layout.h"

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

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t row_floats() const { return row_floats_; }
  void clear() { size_ = 0; }
  // New rows hold unspecified values. The memory stays for the next ones: fresh pages are slow, and so is
  // filling what will be overwritten.
  void resize(size_t count) {
    size_ = count;
    if (count <= headers_.size()) return;
    headers_.resize(count);
    floats_.resize(count * row_floats_);
  }

  RowHeader& header(size_t i) { return headers_[i]; }
  const RowHeader& header(size_t i) const { return headers_[i]; }
  // Of what is kept, whatever the size is.
  size_t memory_bytes() const {
    return headers_.capacity() * sizeof(RowHeader) + floats_.capacity() * sizeof(float);
  }

  float* row(size_t i) { return floats_.data() + i * row_floats_; }
  const float* row(size_t i) const { return floats_.data() + i * row_floats_; }

 private:
  size_t row_floats_;
  size_t size_ = 0;
  PageVector<RowHeader> headers_;  // at least size_
  PageVector<float> floats_;
};

}  // namespace embstore
