// Bags: groups of neighbouring ids in a batch, whose rows are summed to one row each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "memory/page_vector.h"

namespace embstore {

// Returns whether `offsets` can be the begins of bags of `ids` ids: they start at 0, ascend, and are at most
// `ids`.
bool are_valid_offsets(std::span<const int64_t> offsets, size_t ids);

struct Bags {
  // Writes the sum of each bag's rows, added in their order, to `sums`. rows: ids * dim floats; sums: offsets
  // * dim floats. REQUIRES: are_valid_offsets(offsets, ids.size()).
  void sum(std::span<const int64_t> ids, const float* rows, size_t dim, float* sums) const;
  // Returns the number of each id's bag, or kLeftOut. REQUIRES: are_valid_offsets(offsets, ids.size()).
  PageVector<uint32_t> numbers(std::span<const int64_t> ids) const;
  static constexpr uint32_t kLeftOut = std::numeric_limits<uint32_t>::max();

  std::span<const int64_t> offsets;  // where each bag begins; it ends where the next bag begins
  std::optional<int64_t> left_out;   // an id whose row isn't added
};

}  // namespace embstore
