// A batch whose keys occur once, for whoever sends it elsewhere: its ids, its rows and its gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace embstore {

struct UniqueIds {
  explicit UniqueIds(std::span<const int64_t> ids);

  // Copies each id's row to `out`: ids * dim floats, from keys * dim.
  void spread(const float* rows, size_t dim, float* out) const;
  // Adds each id's gradient to its key's, in the batch's order: ids * dim floats, to keys * dim.
  void sum(const float* gradients, size_t dim, float* sums) const;

  std::vector<int64_t> keys;          // in the order of their first occurrence
  std::vector<uint32_t> occurrences;  // of each key
  std::vector<uint32_t> positions;    // in keys, of each id's
};

}  // namespace embstore
