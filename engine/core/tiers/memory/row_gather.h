// Copies of many rows' weights, each of which is checked afterwards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "platform/prefetch.h"
#include "row/place.h"
#include "row/row_copy.h"
#include "row/row_guard.h"

namespace embstore {

// A row that a reader found, and by which it knows whether the copy is whole.
struct SeenRow {
  const RowGuard* guard;
  uint32_t state;  // of the guard, before the row was found
  Slot slot;
  size_t position;  // of its copy
};

// A batch of copies, as rows in the host's memory are copied: one by one, each some rows after it was fetched. So a
// copy doesn't wait for its own cache misses, the fetches of long rows don't queue up, and both overlap with the
// search for the rows that come next.
//
// `changed(position)` is called for rows that were written meanwhile, whose copies are not to be used. kDim is `dim`
// where the compiler may know it, else 0.
template <int kDim, class Changed>
class RowGather {
 public:
  RowGather(const float* rows, size_t row_floats, size_t dim, float* out, Changed& changed)
      : rows_(rows), row_floats_(row_floats), dim_(kDim != 0 ? kDim : dim), out_(out), changed_(changed) {}

  // The row is copied to out + position * dim by the time that finish() returns.
  void add(const SeenRow& row) {
    if (added_ >= kRowsFetchedAhead) copy(fetched_[added_ % kRowsFetchedAhead]);
    fetched_[added_ % kRowsFetchedAhead] = row;
    ++added_;
    prefetch_row(floats(row.slot), dim());
  }
  void finish() {
    const size_t left = added_ < kRowsFetchedAhead ? added_ : kRowsFetchedAhead;
    for (size_t i = added_ - left; i < added_; ++i) copy(fetched_[i % kRowsFetchedAhead]);
    added_ = 0;
  }

 private:
  static constexpr size_t kRowsFetchedAhead = 16;

  size_t dim() const { return kDim != 0 ? kDim : dim_; }
  const float* floats(Slot slot) const { return rows_ + slot * row_floats_; }
  void copy(const SeenRow& row) {
    copy_row<kDim>(out_ + row.position * dim(), floats(row.slot), static_cast<int>(dim()));
    if (!row.guard->unchanged_since(row.state)) [[unlikely]]
      changed_(row.position);
  }

  const float* const rows_;
  const size_t row_floats_;
  const size_t dim_;
  float* const out_;
  Changed& changed_;
  size_t added_ = 0;
  std::array<SeenRow, kRowsFetchedAhead> fetched_{};
};

// Calls work(gather) with the RowGather that fits `dim`.
template <class Changed, class Work>
void with_row_gather(const float* rows, size_t row_floats, int dim, float* out, Changed changed, Work work) {
  const auto gather_of = [&]<int kDim>() {
    RowGather<kDim, Changed> gather(rows, row_floats, static_cast<size_t>(dim), out, changed);
    work(gather);
  };
  switch (dim) {
    case 4: return gather_of.template operator()<4>();
    case 8: return gather_of.template operator()<8>();
    case 16: return gather_of.template operator()<16>();
    case 32: return gather_of.template operator()<32>();
    case 64: return gather_of.template operator()<64>();
    case 128: return gather_of.template operator()<128>();
    default: return gather_of.template operator()<0>();
  }
}

}  // namespace embstore
