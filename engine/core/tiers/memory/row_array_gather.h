// RowArray::gather, which is a template for its caller's sake.
#pragma once

#include <algorithm>

#include "row/row_copy.h"
#include "tiers/memory/row_array.h"

namespace embstore {

template <class Changed>
void RowArray::gather(std::span<const SeenRow> rows, float* out, Changed changed) const {
  switch (layout_.dim()) {
    case 4: return gather_rows<4>(rows, out, changed);
    case 8: return gather_rows<8>(rows, out, changed);
    case 16: return gather_rows<16>(rows, out, changed);
    case 32: return gather_rows<32>(rows, out, changed);
    case 64: return gather_rows<64>(rows, out, changed);
    case 128: return gather_rows<128>(rows, out, changed);
    default: return gather_rows<0>(rows, out, changed);
  }
}

// A row is fetched so many rows before it is copied: a copy then never waits for its own cache misses, and the
// fetches of long rows don't queue up.
template <int kDim, class Changed>
void RowArray::gather_rows(std::span<const SeenRow> rows, float* out, Changed changed) const {
  constexpr size_t kRowsFetchedAhead = 16;
  const size_t dim = kDim != 0 ? kDim : static_cast<size_t>(layout_.dim());
  for (size_t i = 0; i < std::min(kRowsFetchedAhead, rows.size()); ++i) prefetch_row(row(rows[i].slot), dim);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kRowsFetchedAhead < rows.size()) prefetch_row(row(rows[i + kRowsFetchedAhead].slot), dim);
    const SeenRow& seen = rows[i];
    copy_row<kDim>(out + seen.position * dim, row(seen.slot), static_cast<int>(dim));
    if (!seen.guard->unchanged_since(seen.state)) [[unlikely]]
      changed(seen);
  }
}

}  // namespace embstore
