// The keys of one shard that had no row when a batch began. The filter counts them only after it has decided
// about all of them. So the decision about a key depends on the counts before the batch and on the key's own
// occurrences, not on other keys of the batch, their order, or the kind of table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "admission/admission_filter.h"
#include "memory/page_vector.h"
#include "update/gradient_batch.h"

namespace embstore {

class KeysWithoutRow {
 public:
  // Makes room for the keys of any shard of the batch. Throws std::bad_alloc or Error(kStorage).
  void reserve(const GradientBatch& batch) {
    size_t most = 0;
    for (int s = 0; s < kShards; ++s) most = std::max(most, batch.shard(s).size());
    keys_.reserve(most);
  }
  // Notes a key. `before`: the filter's count() of it. REQUIRES: reserve() made room.
  void note(const KeyGradient& key, uint64_t before, bool gets_row) noexcept {
    keys_.push_back({&key, before, gets_row});
  }
  // Counts the noted keys in the filter and forgets them. REQUIRES: the mutex of the filter's shard, held
  // since before the first note().
  void count(AdmissionFilter& filter, int64_t global_step) noexcept {
    for (const Noted& noted : keys_) {
      const KeyGradient& key = *noted.key;
      filter.add_to(noted.before, key.key, key.hash, key.occurrences, global_step);
      if (noted.gets_row) filter.remove(key.key, key.hash);
    }
    keys_.clear();
  }

 private:
  struct Noted {
    const KeyGradient* key;
    uint64_t before;
    bool gets_row;
  };
  PageVector<Noted> keys_;
};

}  // namespace embstore
