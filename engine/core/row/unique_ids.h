// A batch whose keys occur once, for whoever sends it elsewhere: its ids, its rows and its gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace embstore {

struct UniqueIds {
  // REQUIRES: 0 < partition_count.
  explicit UniqueIds(std::span<const int64_t> ids, size_t partition_count = 1);

  // Copies each id's row to `out`: ids * dim floats, from keys * dim.
  void spread(const float* rows, size_t dim, float* out) const;
  // Adds each id's gradient to its key's, in the batch's order: ids * dim floats, to keys * dim.
  void sum(const float* gradients, size_t dim, float* sums) const;

  std::vector<int64_t> keys;   // by their partitions; each partition's in the order of their first occurrence
  std::vector<size_t> begins;  // in keys, of each partition; and the end
  std::vector<uint32_t> occurrences;  // of each key
  std::vector<uint32_t> firsts;       // where in the batch each key occurs first
  std::vector<uint32_t> positions;    // in keys, of each id's

 private:
  void order_by_partition(size_t partition_count);
};

}  // namespace embstore
