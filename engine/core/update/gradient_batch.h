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
  // One whose buffers the thread has used before, and their return. The threads that share a batch, so many, keep no more than
  // kMostSpareBytes together: what a larger one needed goes back to the system.
  static std::unique_ptr<GradientBatch> take_spare();
  static void recycle(std::unique_ptr<GradientBatch> batch, size_t threads);

  struct Gradients {
    std::span<const int64_t> ids;
    const float* rows;  // of `dim` floats each, which outlive the use of the groups
    int dim;
    std::span<const uint32_t> occurrences{};  // how many ids each of `ids` stands for; none: one
    // Of ids that are distinct already: where each occurs last in the batch that they are of.
    std::span<const uint32_t> last_positions{};

    bool are_distinct() const { return !last_positions.empty(); }
    const float* row(uint32_t position) const { return rows + size_t{position} * static_cast<size_t>(dim); }
    uint64_t occurrences_of(uint32_t position) const {
      return occurrences.empty() ? 1 : occurrences[position];
    }
  };
  // Neighbouring shards of the index.
  struct Shards {
    int begin = 0;
    int end = kShards;
  };
  // Ids of other shards are left out.
  void group(const Gradients& of, Shards shards);
  void group(std::span<const int64_t> ids, const float* gradients, int dim) {
    group({ids, gradients, dim}, Shards());
  }

  // The keys of one index shard, in order of their first occurrence.
  std::span<const KeyGradient> shard(int i) const {
    return {keys_.data() + first_key_[i], first_key_[i + 1] - first_key_[i]};
  }
  // The keys of all shards, one shard behind the other.
  std::span<const KeyGradient> keys() const { return {keys_.data(), first_key_[kShards]}; }
  // False if a gradient was NaN or infinite. Gradients of distinct ids aren't looked at.
  bool is_finite() const { return is_finite_; }

 private:
  struct Occurrence {
    KeyHash hash;
    uint32_t position;
  };

  void take_occurrences(std::span<const int64_t> ids, Shards of);
  void take_distinct(const Gradients& of);
  void sum_equal_keys(const Gradients& of);
  void sort_by_shard();
  size_t size_bytes() const;

  static constexpr size_t kMostSpareBytes = size_t{32} << 20;

  PageVector<Occurrence> occurrences_;  // in the batch's order
  // In the order of their first occurrence, so that frequent ones lie together; the first is no key. What is behind the end is an
  // earlier batch's.
  PageVector<KeyGradient> found_;
  size_t found_end_ = 0;
  PageVector<uint32_t> table_;    // open addressing; position in found_, 0 = empty
  PageVector<float> sums_;        // keys point into them: they never move within a batch
  PageVector<KeyGradient> keys_;  // by shard, and then an earlier batch's
  PageVector<uint8_t> shards_;    // of found_, or an earlier batch's
  size_t first_key_[kShards + 1];
  bool is_finite_ = true;
};

}  // namespace embstore
