#include "bench/hand_written_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "errors/error.h"
#include "store/index/index.h"

namespace embstore {
namespace {

constexpr size_t kProbeAhead = 32;  // ids between prefetching an entry's line and probing it
constexpr size_t kRowAhead = 16;    // ids between probing and using the row

}  // namespace

HandWrittenTable::HandWrittenTable(size_t capacity_rows, int dim)
    : dim_(dim),
      mask_(std::bit_ceil(2 * capacity_rows) - 1),
      entries_(mask_ + 1),
      weights_(capacity_rows * static_cast<size_t>(dim)),
      accumulators_(capacity_rows * static_cast<size_t>(dim)) {}

size_t HandWrittenTable::home(int64_t key) const { return hash_key(key) & mask_; }

uint64_t HandWrittenTable::row_of(int64_t key) const {
  size_t i = home(key);
  while (entries_[i].key != key || entries_[i].row == 0) i = (i + 1) & mask_;
  return entries_[i].row - 1;
}

void HandWrittenTable::insert(std::span<const int64_t> ids, const float* rows) {
  const size_t dim = static_cast<size_t>(dim_);
  for (size_t k = 0; k < ids.size(); ++k) {
    size_t i = home(ids[k]);
    while (entries_[i].row != 0 && entries_[i].key != ids[k]) i = (i + 1) & mask_;
    if (entries_[i].row == 0) {
      if ((rows_ + 1) * dim > weights_.size()) {
        throw Error(ErrorKind::kInvalidArgument, "ids: more distinct ids than capacity_rows");
      }
      entries_[i] = {ids[k], ++rows_};
    }
    const uint64_t row = entries_[i].row - 1;
    std::memcpy(&weights_[row * dim], rows + k * dim, dim * sizeof(float));
    std::fill_n(&accumulators_[row * dim], dim, 0.1f);
  }
}

void HandWrittenTable::lookup(std::span<const int64_t> ids, float* out) const {
  switch (dim_) {
    case 16: return lookup_rows<16>(ids, out);
    case 64: return lookup_rows<64>(ids, out);
    default: return lookup_rows<0>(ids, out);
  }
}

template <int kDim>
void HandWrittenTable::lookup_rows(std::span<const int64_t> ids, float* out) const {
  const size_t dim = kDim != 0 ? kDim : static_cast<size_t>(dim_);
  const float* rows[kRowAhead];
  const size_t count = ids.size();
  for (size_t k = 0; k < count + kProbeAhead; ++k) {
    if (k < count) __builtin_prefetch(&entries_[home(ids[k])]);
    if (k >= kProbeAhead) {
      const size_t done = k - kProbeAhead;
      std::memcpy(out + done * dim, rows[done % kRowAhead], dim * sizeof(float));
    }
    if (k + kRowAhead >= kProbeAhead && k + kRowAhead - kProbeAhead < count) {
      const size_t probed = k + kRowAhead - kProbeAhead;
      const float* row = &weights_[row_of(ids[probed]) * dim];
      for (size_t i = 0; i < dim; i += 16) __builtin_prefetch(row + i);
      rows[probed % kRowAhead] = row;
    }
  }
}

void HandWrittenTable::adagrad(std::span<const int64_t> ids, const float* gradients, float learning_rate) {
  const size_t dim = static_cast<size_t>(dim_);
  // `rows` has the batch's distinct rows, and `table`, a hash table, the position + 1 of each in
  // `rows`; 0: empty.
  thread_local std::vector<uint64_t> rows;
  thread_local std::vector<uint32_t> table;
  thread_local std::vector<float> sums;
  const size_t table_mask = std::bit_ceil(2 * ids.size()) - 1;
  table.assign(table_mask + 1, 0);
  rows.clear();
  sums.resize(ids.size() * dim);
  for (size_t k = 0; k < ids.size(); ++k) {
    if (k + kProbeAhead < ids.size()) __builtin_prefetch(&entries_[home(ids[k + kProbeAhead])]);
    const uint64_t row = row_of(ids[k]);
    size_t i = hash_key(ids[k]) & table_mask;
    while (table[i] != 0 && rows[table[i] - 1] != row) i = (i + 1) & table_mask;
    const float* __restrict g = gradients + k * dim;
    if (table[i] == 0) {
      rows.push_back(row);
      table[i] = static_cast<uint32_t>(rows.size());
      std::memcpy(&sums[(rows.size() - 1) * dim], g, dim * sizeof(float));
    } else {
      float* __restrict sum = &sums[(table[i] - 1) * dim];
      for (size_t d = 0; d < dim; ++d) sum[d] += g[d];
    }
  }
  for (size_t k = 0; k < rows.size(); ++k) {
    if (k + kRowAhead < rows.size()) {
      const size_t ahead = rows[k + kRowAhead] * dim;
      for (size_t d = 0; d < dim; d += 16) {
        __builtin_prefetch(&weights_[ahead + d], 1);
        __builtin_prefetch(&accumulators_[ahead + d], 1);
      }
    }
    float* __restrict w = &weights_[rows[k] * dim];
    float* __restrict a = &accumulators_[rows[k] * dim];
    const float* __restrict g = &sums[k * dim];
    for (size_t d = 0; d < dim; ++d) {
      a[d] += g[d] * g[d];
      w[d] -= learning_rate * g[d] / std::sqrt(a[d]);
    }
  }
}

}  // namespace embstore
