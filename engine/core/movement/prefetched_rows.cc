#include "movement/prefetched_rows.h"

#include <algorithm>

namespace embstore {

std::vector<int64_t> PrefetchedRows::take_below(size_t most) {
  std::vector<int64_t> keys;
  for (auto& [turn, batch] : batches_) {
    const size_t count = std::min(most, batch.below.size() - batch.taken);
    if (count == 0) continue;
    const auto first = batch.below.begin() + static_cast<ptrdiff_t>(batch.taken);
    keys.assign(first, first + static_cast<ptrdiff_t>(count));
    batch.taken += count;
    break;
  }
  note_any_below();
  return keys;
}

void PrefetchedRows::note_any_below() {
  const bool any = std::any_of(batches_.begin(), batches_.end(), [](const auto& batch) {
    return batch.second.taken != batch.second.below.size();
  });
  any_below_.store(any, std::memory_order_release);
}

}  // namespace embstore
