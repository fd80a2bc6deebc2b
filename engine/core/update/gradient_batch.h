// Groups a batch of gradients for the update: by index shard, and within a shard by key, with the sum of each
// key's gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/page_vector.h"
#include "row/bags.h"
#include "row/key_hash.h"

namespace embstore {

struct KeyGradient {
  int64_t key;
  KeyHash hash;
  const float* gradient;  // the caller's row, or the sum of several rows in the batch's order
  uint64_t occurrences;
  uint32_t last_position;  // of the key in the batch
};

// Reuses its buffers from batch to batch.
class GradientBatch {
 public:
  // Take and return a batch whose buffers the thread reuses. `threads`: the number of threads that share a
  // batch. Together they keep at most kMaxSpareBytes; larger buffers are freed.
  static std::unique_ptr<GradientBatch> take_spare();
  static void recycle(std::unique_ptr<GradientBatch> batch, size_t threads);

  struct Gradients {
    std::span<const int64_t> ids;
    const float* rows;  // dim floats for each id, or for each bag; they outlive the use of the groups
    int dim;
    std::span<const uint32_t> occurrences{};  // the number of occurrences of each id; empty: one each
    // Only for ids that are distinct already: the position of each id's last occurrence in the original
    // batch.
    std::span<const uint32_t> last_positions{};
    // The bag of each id, whose gradient all of its ids share, or Bags::kLeftOut; empty: each id has its own
    // gradient.
    std::span<const uint32_t> bags{};

    bool are_distinct() const { return !last_positions.empty(); }
    bool leaves_out(size_t position) const { return !bags.empty() && bags[position] == Bags::kLeftOut; }
    const float* row(uint32_t position) const {
      return rows + size_t{bags.empty() ? position : bags[position]} * static_cast<size_t>(dim);
    }
    uint64_t occurrences_of(uint32_t position) const {
      return occurrences.empty() ? 1 : occurrences[position];
    }
  };
  // A range of the index's shards.
  struct Shards {
    int begin = 0;
    int end = kShards;
  };
  // Groups the ids that belong to `shards`.
  void group(const Gradients& gradients, Shards shards);
  void group(std::span<const int64_t> ids, const float* gradients, int dim) {
    group({ids, gradients, dim}, Shards());
  }

  // Returns the keys of one index shard, in the order of their first occurrences.
  std::span<const KeyGradient> shard(int i) const {
    return {keys_.data() + first_key_[i], first_key_[i + 1] - first_key_[i]};
  }
  // Returns the keys of all shards, shard by shard.
  std::span<const KeyGradient> keys() const { return {keys_.data(), first_key_[kShards]}; }
  // Returns false if a gradient was NaN or infinite. Gradients of distinct ids aren't checked.
  bool is_finite() const { return is_finite_; }

 private:
  struct Occurrence {
    KeyHash hash;
    uint32_t position;
  };

  void take_occurrences(const Gradients& gradients, Shards shards);
  void take_distinct(const Gradients& gradients);
  void sum_equal_keys(const Gradients& gradients);
  void sort_by_shard();
  size_t size_bytes() const;

  static constexpr size_t kMaxSpareBytes = size_t{32} << 20;

  PageVector<Occurrence> occurrences_;  // in the batch's order
  // The distinct keys, in the order of their first occurrences, so that frequent keys lie together. The first
  // entry is no key. Entries from found_end_ on belong to an earlier batch.
  PageVector<KeyGradient> found_;
  size_t found_end_ = 0;
  PageVector<uint32_t> table_;    // open addressing; position in found_, 0 = empty
  PageVector<float> sums_;        // keys point into it, so it must not move within a batch
  PageVector<KeyGradient> keys_;  // the distinct keys by shard; entries behind them are an earlier batch's
  PageVector<uint8_t> shards_;    // the shard of each entry of found_; may be longer
  size_t first_key_[kShards + 1];
  bool is_finite_ = true;
};

}  // namespace embstore
