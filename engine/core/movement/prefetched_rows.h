// The rows of batches that will be trained soon. In a table with a tier in a GPU's memory they come up to
// that tier beforehand, and stay there until their batch is trained, however they rank.
//
// No more rows are prefetched than the tier may hold. So whenever it has too many rows, as many of them may
// go.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace embstore {

// For one thread at a time, except any_below().
class PrefetchedRows {
 public:
  // A batch that is never trained is dropped after this many other batches.
  static constexpr size_t kMaxBatches = 16;

  explicit PrefetchedRows(uint64_t max_rows) : max_rows_(max_rows) {}

  enum class Where { kNowhere, kUp, kBelow };
  // Adds the rows of a batch until its turn is over (training_turns.h), as many as there is room for beside
  // the rows that were added before: first those that are up. `where` returns where a key has its row.
  template <class WhereIs>
  void add(uint64_t turn, std::span<const int64_t> keys, WhereIs where) {
    Batch& batch = batches_[turn];
    for (const Where place : {Where::kUp, Where::kBelow}) {
      for (const int64_t key : keys) {
        const auto known = turns_.find(key);
        if (known == turns_.end() ? turns_.size() >= max_rows_ : known->second >= turn) continue;
        if (where(key) != place) continue;
        batch.keys.push_back(key);
        turns_[key] = turn;
        if (place == Where::kBelow) batch.below.push_back(key);
      }
    }
    note_any_below();
  }

  // Drops batches whose turn is over, and the oldest if there are too many. Calls released(key) for each key
  // that no batch needs any more.
  template <class Released>
  void release(uint64_t last_over, Released released) {
    while (any_to_release(last_over)) {
      const auto batch = batches_.begin();
      for (const int64_t key : batch->second.keys) {
        const auto known = turns_.find(key);
        if (known == turns_.end() || known->second != batch->first) continue;  // a later batch needs it
        turns_.erase(known);
        released(key);
      }
      batches_.erase(batch);
    }
    note_any_below();
  }

  bool any_to_release(uint64_t last_over) const {
    return !batches_.empty() && (batches_.begin()->first <= last_over || batches_.size() > kMaxBatches);
  }

  // Returns at most `most` keys of the first batch that has rows to come up; each is returned once.
  std::vector<int64_t> take_below(size_t most);

  // Returns whether the row is to stay.
  bool contains(int64_t key) const { return !turns_.empty() && turns_.contains(key); }
  bool any() const { return !turns_.empty(); }
  // Returns whether rows are to come up. Thread-safe.
  bool any_below() const { return any_below_.load(std::memory_order_acquire); }

 private:
  struct Batch {
    std::vector<int64_t> keys;
    std::vector<int64_t> below;  // those of `keys` whose rows are to come up
    size_t taken = 0;            // how many of `below` were taken
  };
  void note_any_below();

  const uint64_t max_rows_;
  std::map<uint64_t, Batch> batches_;            // by turn
  std::unordered_map<int64_t, uint64_t> turns_;  // the turn of the last batch that needs the key
  std::atomic<bool> any_below_{false};
};

}  // namespace embstore
