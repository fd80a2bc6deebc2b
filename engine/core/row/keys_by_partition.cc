#include "row/keys_by_partition.h"

#include "row/key_partition.h"

namespace embstore {

KeysByPartition::KeysByPartition(std::span<const int64_t> keys, size_t partition_count)
    : positions(keys.size()), begins(partition_count + 1) {
  PageVector<uint32_t> partitions(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    partitions[i] = static_cast<uint32_t>(partition_of(keys[i], partition_count));
    ++begins[partitions[i] + 1];
  }
  for (size_t p = 1; p <= partition_count; ++p) begins[p] += begins[p - 1];
  std::vector<size_t> next(begins);
  for (size_t i = 0; i < keys.size(); ++i) positions[next[partitions[i]]++] = static_cast<int64_t>(i);
}

}  // namespace embstore
