// A filter with exact counts of the waiting keys: an open-addressing hash table of 24 bytes an entry,
// between three eighths and three quarters full.
#pragma once

#include <atomic>
#include <unordered_set>
#include <vector>

#include "admission/admission_filter.h"
#include "platform/prefetch.h"
#include "threads/mutex.h"

namespace embstore {

class CounterFilter final : public AdmissionFilter {
 public:
  // REQUIRES: filter_freq > 0.
  explicit CounterFilter(uint64_t filter_freq) : AdmissionFilter(filter_freq) {}

  void prefetch(KeyHash hash) const override {
    if (!entries_.empty()) prefetch_line(&entries_[home(hash)]);
  }
  void prefetch_admits(KeyHash) const override {}  // admits() nearly always reads one flag alone
  uint64_t add_to(uint64_t before, int64_t key, KeyHash hash, uint64_t occurrences,
                  int64_t global_step) override;
  bool has_room(uint64_t keys) const override { return entries_for(keys) == entries_.size(); }
  void make_room(uint64_t keys) override;
  void remove(int64_t key, KeyHash hash) override;
  void forget_before(int64_t global_step) override;
  void reset() override;
  uint64_t count(int64_t key, KeyHash hash) const override;
  int64_t version(int64_t key, KeyHash hash) const override;
  bool admits(int64_t key, KeyHash hash) const override;
  uint64_t waiting_keys() const override { return waiting_; }
  uint64_t size_bytes() const override { return entries_.size() * sizeof(WaitingKey); }
  void for_each(const std::function<void(const WaitingKey&)>& visit) const override;
  void restore(const WaitingKey& waiting) override;

 private:
  static constexpr size_t kFirstEntries = 16;

  size_t home(KeyHash hash) const { return hash & (entries_.size() - 1); }
  size_t next(size_t i) const { return (i + 1) & (entries_.size() - 1); }
  // Returns the key's entry, or the empty entry that it would get. REQUIRES: there are entries.
  size_t find(int64_t key, KeyHash hash) const;
  WaitingKey& entry_of(int64_t key, KeyHash hash);
  // Returns how many entries the table needs for this many more keys.
  size_t entries_for(uint64_t more_keys) const;
  void resize_to(size_t entries);

  std::vector<WaitingKey> entries_;  // their number is a power of two, or 0; count 0: an empty entry
  size_t waiting_ = 0;

  // Restored keys that are at the threshold. Read without the shard's mutex.
  mutable Mutex admitted_mutex_;
  std::unordered_set<int64_t> admitted_ GUARDED_BY(admitted_mutex_);
  std::atomic<bool> has_admitted_{false};
};

}  // namespace embstore
