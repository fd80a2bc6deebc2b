#include "row/unique_ids.h"

#include <algorithm>
#include <bit>

#include "platform/prefetch.h"
#include "row/key_hash.h"

namespace embstore {
namespace {

// Rows and sums are visited out of order.
constexpr size_t kFetchedAhead = 8;

}  // namespace

UniqueIds::UniqueIds(std::span<const int64_t> ids) : positions(ids.size()) {
  const size_t size = std::bit_ceil(2 * ids.size() + 1);
  std::vector<uint32_t> table(size, 0);  // open addressing; position in keys + 1, 0 = empty
  for (size_t i = 0; i < ids.size(); ++i) {
    size_t probe = hash_key(ids[i]) & (size - 1);
    while (table[probe] != 0 && keys[table[probe] - 1] != ids[i]) probe = (probe + 1) & (size - 1);
    if (table[probe] == 0) {
      keys.push_back(ids[i]);
      occurrences.push_back(0);
      table[probe] = static_cast<uint32_t>(keys.size());
    }
    positions[i] = table[probe] - 1;
    ++occurrences[positions[i]];
  }
}

void UniqueIds::spread(const float* rows, size_t dim, float* out) const {
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i + kFetchedAhead < positions.size()) prefetch_line(rows + positions[i + kFetchedAhead] * dim);
    std::copy_n(rows + positions[i] * dim, dim, out + i * dim);
  }
}

void UniqueIds::sum(const float* gradients, size_t dim, float* sums) const {
  uint32_t seen = 0;  // keys come in the order of their first occurrence
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i + kFetchedAhead < positions.size()) prefetch_line(sums + positions[i + kFetchedAhead] * dim);
    const float* const gradient = gradients + i * dim;
    float* __restrict const sum = sums + positions[i] * dim;
    if (positions[i] == seen) {
      std::copy_n(gradient, dim, sum);
      ++seen;
    } else {
      for (size_t d = 0; d < dim; ++d) sum[d] += gradient[d];
    }
  }
}

}  // namespace embstore
