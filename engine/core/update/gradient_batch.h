// One batch of gradients, grouped for the apply loop: by index shard, and within a shard one entry a key
// with the sum of its gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/page_vector.h"
#include "row/key_hash.h"

namespace embstore {

struct KeyGradient {
  int64_t key;
  KeyHash hash;
  const float* gradient;  // the caller's row, or the sum of several, added in the batch's order
  uint64_t occurrences;
  uint32_t last_position;  // in the batch
};

// Keeps its buffers from batch to batch.
class GradientBatch {
 public:
  // One whose buffers the thread has used before, and their return. A thread keeps no more than kMostSpareBytes: what
  // a larger batch needed goes back to the system.
  static std::unique_ptr<GradientBatch> take_spare();
  static void recycle(std::unique_ptr<GradientBatch> batch);

  // `gradients` holds ids.size() rows of `dim` floats and must outlive the use of the groups. `occurrences`, where
  // given, says how many ids each of `ids` stands for.
  void group(std::span<const int64_t> ids, const float* gradients, int dim,
             std::span<const uint32_t> occurrences = {});
  // Of ids that are distinct already: where each occurs last in the batch that they are of.
  void set_last_positions(std::span<const uint32_t> last_positions) {
    for (KeyGradient& key : keys_) key.last_position = last_positions[key.last_position];
  }

  // The keys of one index shard, in order of their first occurrence.
  std::span<const KeyGradient> shard(int i) const {
    return {keys_.data() + first_key_[i], first_key_[i + 1] - first_key_[i]};
  }
  std::span<const KeyGradient> keys() const { return keys_; }

 private:
  struct Occurrence {
    KeyHash hash;
    uint32_t position;
  };

  void sort_by_shard(std::span<const int64_t> ids);
  void group_shard(std::span<const Occurrence> occurrences, std::span<const int64_t> ids,
                   const float* gradients, int dim, std::span<const uint32_t> stand_for);
  size_t size_bytes() const;

  static constexpr size_t kMostSpareBytes = size_t{32} << 20;

  PageVector<KeyHash> hashes_;
  PageVector<Occurrence> occurrences_;  // by shard, in the batch's order within one
  size_t first_occurrence_[kShards + 1];
  PageVector<KeyGradient> keys_;
  size_t first_key_[kShards + 1];
  PageVector<uint32_t> table_;  // open addressing; position in keys_ + 1, 0 = empty

  PageVector<float> sums_;  // keys_ points into them: they never move within a batch
};

}  // namespace embstore
