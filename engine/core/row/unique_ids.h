// The distinct keys of a batch, so that each key's row and summed gradient are sent to other processes once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace embstore {

struct UniqueIds {
  // REQUIRES: 0 < partition_count.
  explicit UniqueIds(std::span<const int64_t> ids, size_t partition_count = 1);

  // Copies the row of its key to each id's place. rows: keys * dim floats; out: ids * dim floats.
  void spread(const float* rows, size_t dim, float* out) const;
  // Sums the gradients of each key's ids in the batch's order. gradients: ids * dim floats; sums: keys * dim
  // floats.
  void sum(const float* gradients, size_t dim, float* sums) const;

  std::vector<int64_t> keys;          // partition by partition, each in the order of first occurrences
  std::vector<size_t> begins;         // where each partition begins in `keys`; then the end
  std::vector<uint32_t> occurrences;  // of each key
  std::vector<uint32_t> firsts;       // the position of each key's first occurrence in the batch
  std::vector<uint32_t> positions;    // the position of each id's key in `keys`

 private:
  void order_by_partition(size_t partition_count);
};

}  // namespace embstore
