// Splits a batch of keys by partition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/page_vector.h"

namespace embstore {

struct KeysByPartition {
  KeysByPartition(std::span<const int64_t> keys, size_t partition_count);

  // The keys' positions in the batch, partition by partition. Within a partition they keep the batch's order,
  // so that a key's gradients are summed in the same order as without partitions.
  PageVector<int64_t> positions;
  std::vector<size_t> begins;  // where each partition begins in `positions`; then the end
};

}  // namespace embstore
