#include "row/unique_ids.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "platform/prefetch.h"
#include "row/key_hash.h"
#include "row/keys_by_partition.h"

namespace embstore {
namespace {

// Rows and sums are accessed in random order, so their first lines are prefetched.
constexpr size_t kFetchedAhead = 8;

}  // namespace

UniqueIds::UniqueIds(std::span<const int64_t> ids, size_t partition_count) : positions(ids.size()) {
  const size_t size = std::bit_ceil(2 * ids.size() + 1);
  std::vector<uint32_t> table(size, 0);  // open addressing; position in keys + 1, 0 = empty
  for (size_t i = 0; i < ids.size(); ++i) {
    size_t probe = hash_key(ids[i]) & (size - 1);
    while (table[probe] != 0 && keys[table[probe] - 1] != ids[i]) probe = (probe + 1) & (size - 1);
    if (table[probe] == 0) {
      keys.push_back(ids[i]);
      occurrences.push_back(0);
      firsts.push_back(static_cast<uint32_t>(i));
      table[probe] = static_cast<uint32_t>(keys.size());
    }
    positions[i] = table[probe] - 1;
    ++occurrences[positions[i]];
  }
  begins = {0, keys.size()};
  if (partition_count > 1) order_by_partition(partition_count);
}

void UniqueIds::order_by_partition(size_t partition_count) {
  KeysByPartition parts(keys, partition_count);
  const std::vector<int64_t> unordered_keys = std::move(keys);
  const std::vector<uint32_t> unordered_occurrences = std::move(occurrences);
  const std::vector<uint32_t> unordered_firsts = std::move(firsts);
  keys.resize(unordered_keys.size());
  occurrences.resize(keys.size());
  firsts.resize(keys.size());
  std::vector<uint32_t> places(keys.size());  // the new position of each key
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto from = static_cast<size_t>(parts.positions[i]);
    keys[i] = unordered_keys[from];
    occurrences[i] = unordered_occurrences[from];
    firsts[i] = unordered_firsts[from];
    places[from] = static_cast<uint32_t>(i);
  }
  for (uint32_t& position : positions) position = places[position];
  begins = std::move(parts.begins);
}

void UniqueIds::spread(const float* rows, size_t dim, float* out) const {
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i + kFetchedAhead < positions.size()) prefetch_line(rows + positions[i + kFetchedAhead] * dim);
    std::copy_n(rows + positions[i] * dim, dim, out + i * dim);
  }
}

void UniqueIds::sum(const float* gradients, size_t dim, float* sums) const {
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i + kFetchedAhead < positions.size()) prefetch_line(sums + positions[i + kFetchedAhead] * dim);
    const float* const gradient = gradients + i * dim;
    float* __restrict const sum = sums + positions[i] * dim;
    if (firsts[positions[i]] == i) {
      std::copy_n(gradient, dim, sum);
    } else {
      for (size_t d = 0; d < dim; ++d) sum[d] += gradient[d];
    }
  }
}

}  // namespace embstore
