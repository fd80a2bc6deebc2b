// The references to each record of an extent: from a live row, and from checkpoints. A record without
// references is free, or garbage.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "row/place.h"
#include "threads/mutex.h"
#include "tiers/log/durable_tier.h"
#include "tiers/log/row_bits.h"

namespace embstore::log {

class RecordReferences {
 public:
  // kNone: only live rows refer to records.
  enum class Checkpoints { kNone, kSome };
  explicit RecordReferences(uint64_t records, Checkpoints checkpoints = Checkpoints::kSome);

  // --- Live rows. Thread-safe.
  bool is_live(uint64_t record) const { return bits_.contains(record); }
  // REQUIRES: the record isn't live.
  void add_live(uint64_t record) {
    bits_.add(record);
    live_.fetch_add(1, std::memory_order_acq_rel);
  }
  // Returns false if the record wasn't live.
  bool remove_live(uint64_t record);
  // The same, for an extent whose free records are reused. Returns true if nothing refers to the record any
  // more. If several callers remove references to a record, by this, drop() and add_to_pending(), only the
  // last one gets true.
  bool free_live(uint64_t record);
  uint64_t live() const { return live_.load(std::memory_order_acquire); }

  // --- Checkpoints, by their numbers. REQUIRES, unless stated otherwise: no other call about checkpoints is
  // under way. Begins a pending checkpoint that has all live records. REQUIRES: rows neither come nor go
  // meanwhile.
  void begin(uint64_t number);
  // Adds a kept checkpoint of an earlier process.
  void load(uint64_t number, std::span<const uint64_t> words);
  // Makes the records of the checkpoint live, and no others. REQUIRES: no other call.
  void make_live(uint64_t number) noexcept;
  RowWords taken() const;  // all records with a reference
  bool has(uint64_t number) const { return find(number) < kMaxCheckpoints; }
  bool has_any() const;  // thread-safe
  bool any_has(uint64_t record) const;
  RowWords rows_of(uint64_t number) const;
  // Returns the smallest pending number; 0 if none is pending.
  uint64_t oldest_pending() const;
  // Adds the record to each pending checkpoint from `first_number` on. Returns true if there's none and
  // nothing else refers to the record. Thread-safe.
  bool add_to_pending(uint64_t first_number, uint64_t record);
  // Ends the pending state: the checkpoint's bits don't change until it's dropped. Thread-safe.
  void end_pending(uint64_t number);
  // Removes the checkpoint's references, and calls `freed` with the records that have none left, the highest
  // first. Thread-safe.
  using Freed = std::function<void(std::span<const Slot> records)>;
  void drop(uint64_t number, const Freed& freed);

 private:
  struct Checkpoint {
    std::atomic<uint64_t> number{0};   // 0: no checkpoint, and its bits are 0
    std::atomic<uint64_t> pending{0};  // the number; 0 if not pending
  };
  // Neighbouring records share a lock. Callers that remove references hold it: of two at once, one must see
  // that it was the last.
  static constexpr size_t kMaxStripes = 64;
  static constexpr size_t kWordsARun = 64;
  struct alignas(64) Stripe {
    Mutex mutex;
  };
  Mutex& stripe(size_t word) { return stripes_[word / kWordsARun % stripe_count_].mutex; }

  // bits_ has the set of live records first, then the sets of each of checkpoints_.
  size_t first_word(size_t checkpoint) const { return (checkpoint + 1) * words_; }
  uint64_t word(size_t checkpoint, size_t i) const { return bits_.word(first_word(checkpoint) + i); }
  size_t find(uint64_t number) const;  // its index in checkpoints_, or kMaxCheckpoints

  const size_t words_;  // of one set
  RowBits bits_;
  std::atomic<uint64_t> live_{0};
  std::array<Checkpoint, kMaxCheckpoints> checkpoints_;
  const size_t stripe_count_;
  const std::unique_ptr<Stripe[]> stripes_;
};

}  // namespace embstore::log
