// Admission: a key gets a row once it was seen often enough. A filter counts the keys of one shard of the
// index that wait for a row, so that shards count independently.
//
// Calls that change a filter need the shard's mutex, and so do all others that don't say otherwise. They are
// made for keys without a row only: a key that has one costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <variant>

#include "row/key_hash.h"

namespace embstore {

struct WaitingKey {
  int64_t key;
  uint64_t count;   // at least 1
  int64_t version;  // global_step of its last batch; kNoVersion if unknown
};

// The shape of a sketch. Sketches of the same shape can be merged.
struct SketchShape {
  uint64_t counters;
  uint32_t hashes;        // counters per key
  uint32_t counter_bits;  // 0: the filter keeps no sketch

  bool operator==(const SketchShape&) const = default;
};

class AdmissionFilter {
 public:
  static constexpr int64_t kNoVersion = -1;

  virtual ~AdmissionFilter() = default;

  // A key is admitted when it has been seen this many times.
  uint64_t threshold() const { return threshold_; }

  // Prefetches what add_to() and count() will read. As cheap as hashing: call it for a key of a batch some
  // keys ahead of those calls.
  virtual void prefetch(KeyHash hash) const = 0;
  // Prefetches what admits() will read. Needs no mutex.
  virtual void prefetch_admits(KeyHash hash) const = 0;

  // Returns whether a batch admits a key without a row, if count() was `before` when the batch began and the
  // batch has `occurrences` of the key.
  bool admits_after(uint64_t before, uint64_t occurrences) const {
    return before >= threshold_ || occurrences >= threshold_ - before;
  }
  // Counts `occurrences` (at least 1) of `key` in a batch of step `global_step`, and returns how often it was
  // seen so far, these included. `before` is what count() was when the batch began: keys of one batch that
  // share counters of a sketch don't raise each other's counts, so their order makes no difference. If the
  // batch gives the key a row, the caller calls remove() afterwards.
  virtual uint64_t add_to(uint64_t before, int64_t key, KeyHash hash, uint64_t occurrences,
                          int64_t global_step) = 0;
  // The same for a batch of one key.
  uint64_t add(int64_t key, KeyHash hash, uint64_t occurrences, int64_t global_step) {
    return add_to(count(key, hash), key, hash, occurrences, global_step);
  }
  // Returns whether this many more keys fit without make_room().
  virtual bool has_room(uint64_t) const { return true; }
  // Makes room for this many more keys, so that adding them can't fail. Throws std::bad_alloc.
  virtual void make_room(uint64_t) {}
  // Forgets a key that has got a row.
  virtual void remove(int64_t key, KeyHash hash) = 0;
  // Forgets the keys whose last batch was of an earlier step, and frees their memory. A sketch knows no keys,
  // and forgets none.
  virtual void forget_before(int64_t /*global_step*/) {}
  // Forgets every key, in place: a concurrent admits() answers as before or as after.
  virtual void reset() = 0;

  // Returns how often a key without a row was seen; 0: never.
  virtual uint64_t count(int64_t key, KeyHash hash) const = 0;
  // Returns the global_step of the key's last batch; kNoVersion: never seen, or not known.
  virtual int64_t version(int64_t key, KeyHash hash) const = 0;

  // Returns whether a key without a row is at the threshold already, so that it reads its initial value.
  // Needs no mutex. Rare: admission and the row come in one step, but a checkpoint may have been made with a
  // higher threshold, a row may have been evicted, and a sketch may overestimate.
  virtual bool admits(int64_t key, KeyHash hash) const = 0;

  virtual uint64_t waiting_keys() const = 0;
  virtual uint64_t size_bytes() const = 0;

  // --- Checkpoints. A filter either knows its keys or keeps a sketch.

  // Visits the keys that wait, in no order; none if the filter keeps a sketch.
  virtual void for_each(const std::function<void(const WaitingKey&)>& visit) const = 0;
  // Sets the count and version of a key; in a sketch, raises its count to at least this one.
  virtual void restore(const WaitingKey& waiting) = 0;

  virtual SketchShape sketch_shape() const { return {}; }
  virtual std::span<const std::byte> sketch() const { return {}; }
  // Merges a sketch of the same shape, which counted other keys, or the same keys earlier: no key's count is
  // then below what either sketch knew. `waiting` is the other filter's waiting_keys(). Throws
  // Error(kInvalidArgument) if the shapes differ.
  virtual void merge_sketch(const SketchShape& shape, std::span<const std::byte> sketch, uint64_t waiting);

 protected:
  explicit AdmissionFilter(uint64_t threshold) : threshold_(threshold) {}

 private:
  const uint64_t threshold_;
};

// Admits every key at its first occurrence.
struct NoFilter {};

struct CounterFilterSpec {
  uint64_t filter_freq;
};

struct BloomFilterSpec {
  uint64_t filter_freq;
  uint64_t max_element_size;          // distinct keys of the table
  double false_positive_probability;  // that an unseen key counts as seen, after max_element_size keys
  uint32_t counter_bits = 64;         // 8, 16, 32 or 64
};

using FilterSpec = std::variant<NoFilter, CounterFilterSpec, BloomFilterSpec>;

// Returns the filter of one of `shards` shards; null for NoFilter and for a filter_freq of 0, which admits at
// once. Throws Error(kInvalidArgument) which names the field.
std::unique_ptr<AdmissionFilter> make_filter(const FilterSpec& spec, int shards = kShards);

}  // namespace embstore
