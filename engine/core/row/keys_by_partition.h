// A batch of keys, taken apart by the partitions that they lie in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/page_vector.h"

namespace embstore {

struct KeysByPartition {
  KeysByPartition(std::span<const int64_t> keys, size_t partition_count);

  // Where in the batch the keys are: those of the first partition, then those of the next; each
  // partition's in the batch's order, so that sums of a key's gradients stay the same.
  PageVector<int64_t> positions;
  std::vector<size_t> begins;  // in positions, of each partition; and the end
};

}  // namespace embstore
