// Bags: neighbouring ids of a batch, whose rows become one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace embstore {

// Whether bags of so many ids can begin there: from 0, ascending, within them.
bool may_begin(std::span<const int64_t> offsets, size_t ids);

struct Bags {
  // Adds the rows of each bag, in their order, to 0: ids * dim floats, to offsets * dim.
  // REQUIRES: may_begin(offsets, ids.size()).
  void sum(std::span<const int64_t> ids, const float* rows, size_t dim, float* sums) const;

  std::span<const int64_t> offsets;  // where each begins; it ends where the next one begins
  std::optional<int64_t> left_out;   // an id whose rows aren't added
};

}  // namespace embstore
