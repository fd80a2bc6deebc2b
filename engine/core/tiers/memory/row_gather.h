// Copies the weights of many rows, and checks each copy afterwards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "platform/prefetch.h"
#include "row/place.h"
#include "row/row_copy.h"
#include "row/row_guard.h"

namespace embstore {

// A row that a reader found, with what tells the reader whether its copy is whole.
struct SeenRow {
  const RowGuard* guard;
  uint32_t state;  // of the guard, before the row was found
  Slot slot;
  size_t position;  // of its copy
};

// Copies a batch of rows out of the host's memory one by one, each some rows after it was prefetched. So a
// copy doesn't wait for its own cache misses, the prefetches of long rows don't queue up, and both overlap
// with the search for the next rows.
//
// Calls `changed(position)` for rows that were written meanwhile, whose copies must not be used. kDim is
// `dim` if the compiler may know it, else 0.
template <int kDim, class Changed>
class RowGather {
 public:
  struct Fetched {
    const float* row;
    const RowGuard* guard;
    size_t position;
    uint32_t state;
  };
  static constexpr size_t kRowsFetchedAhead = 16;
  using Ring = std::array<Fetched, kRowsFetchedAhead>;

  // `ring` outlives this object. It's separate, so that the other members can stay in registers.
  RowGather(const float* rows, size_t row_floats, size_t dim, float* out, Changed& changed, Ring& ring)
      : rows_(rows),
        row_floats_(row_floats),
        dim_(kDim != 0 ? kDim : dim),
        out_(out),
        changed_(changed),
        fetched_(ring.data()) {}

  // Has the row copied to out + position * dim by the time that finish() returns.
  [[gnu::always_inline]] void add(const SeenRow& row) {
    Fetched& fetched = fetched_[added_ % kRowsFetchedAhead];
    if (added_ >= kRowsFetchedAhead) [[likely]]
      copy(fetched);
    fetched = {rows_ + row.slot * row_floats_, row.guard, row.position, row.state};
    ++added_;
    prefetch_row(fetched.row, dim());
  }
  [[gnu::always_inline]] void finish() {
    const size_t left = added_ < kRowsFetchedAhead ? added_ : kRowsFetchedAhead;
    for (size_t i = added_ - left; i < added_; ++i) copy(fetched_[i % kRowsFetchedAhead]);
    added_ = 0;
  }

 private:
  size_t dim() const { return kDim != 0 ? kDim : dim_; }
  [[gnu::always_inline]] void copy(const Fetched& row) {
    copy_row<kDim>(out_ + row.position * dim(), row.row, static_cast<int>(dim()));
    if (!row.guard->unchanged_since(row.state)) [[unlikely]]
      changed_(row.position);
  }

  const float* const rows_;
  const size_t row_floats_;
  const size_t dim_;
  float* const out_;
  Changed& changed_;
  Fetched* const fetched_;
  size_t added_ = 0;
};

// Calls work(gather) with the RowGather for `dim`, or, without kByDim, with the one for any dim.
template <bool kByDim, class Changed, class Work>
void with_row_gather(const float* rows, size_t row_floats, int dim, float* out, Changed changed, Work work) {
  const auto gather_of = [&]<int kDim>() {
    typename RowGather<kDim, Changed>::Ring ring;
    RowGather<kDim, Changed> gather(rows, row_floats, static_cast<size_t>(dim), out, changed, ring);
    work(gather);
  };
  if constexpr (kByDim) {
    switch (dim) {
      case 4: return gather_of.template operator()<4>();
      case 8: return gather_of.template operator()<8>();
      case 16: return gather_of.template operator()<16>();
      case 32: return gather_of.template operator()<32>();
      case 64: return gather_of.template operator()<64>();
      case 128: return gather_of.template operator()<128>();
      default: break;
    }
  }
  gather_of.template operator()<0>();
}

}  // namespace embstore
