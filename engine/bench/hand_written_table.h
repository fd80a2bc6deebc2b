// The yardstick of the benchmarks: the code that one would write by hand for one table in one memory,
// read by one batch at a time. A linear-probing array of (key, row) at half load, rows in one block,
// software prefetching; no locks, no dispatch, no tiers, no metadata, keys known beforehand.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/huge_pages.h"

namespace embstore {

class HandWrittenTable {
 public:
  HandWrittenTable(size_t capacity_rows, int dim);

  int dim() const { return dim_; }

  // REQUIRES: at most capacity_rows distinct ids in all.
  void insert(std::span<const int64_t> ids, const float* rows);
  // REQUIRES, here and below: every id was inserted.
  void lookup(std::span<const int64_t> ids, float* out) const;
  // Sums the gradients of equal ids, then a += g^2, w -= learning_rate * g / sqrt(a) for each.
  void adagrad(std::span<const int64_t> ids, const float* gradients, float learning_rate);

 private:
  struct Entry {
    int64_t key;
    uint64_t row;  // its number plus 1; 0: empty
  };
  template <int kDim>
  void lookup_rows(std::span<const int64_t> ids, float* out) const;
  size_t home(int64_t key) const;
  uint64_t row_of(int64_t key) const;

  const int dim_;
  const size_t mask_;
  PageArray<Entry> entries_;
  PageArray<float> weights_;
  PageArray<float> accumulators_;
  uint64_t rows_ = 0;
};

}  // namespace embstore
