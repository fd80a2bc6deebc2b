// What refers to each record of an extent: a live row, and checkpoints. A record that nothing refers to is free, or garbage.
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
  // With no checkpoints, live rows alone refer to records.
  enum class Checkpoints { kNone, kSome };
  explicit RecordReferences(uint64_t records, Checkpoints checkpoints = Checkpoints::kSome);

  // --- Live rows. Thread-safe.
  bool is_live(uint64_t record) const { return bits_.contains(record); }
  // REQUIRES: it isn't live.
  void add_live(uint64_t record) {
    bits_.add(record);
    live_.fetch_add(1, std::memory_order_acq_rel);
  }
  // False where it wasn't live.
  bool remove_live(uint64_t record);
  // The same, for an extent whose free records are written again. True: nothing refers to the record any more. Of the callers that
  // take references to a record away, by this, drop() and add_to_pending(), the last is told so, and no other.
  bool free_live(uint64_t record);
  uint64_t live() const { return live_.load(std::memory_order_acquire); }

  // --- Checkpoints, by their numbers. REQUIRES, unless said otherwise: no other call about checkpoints is under way.
  // All that is live belongs to it, and it's pending. REQUIRES: rows neither come nor go meanwhile.
  void begin(uint64_t number);
  // One that is kept, from an earlier process.
  void load(uint64_t number, std::span<const uint64_t> words);
  // The records of the checkpoint are live, and nothing else. REQUIRES: no other call.
  void make_live(uint64_t number) noexcept;
  RowWords taken() const;  // all that something refers to
  bool has(uint64_t number) const { return find(number) < kMostCheckpoints; }
  bool has_any() const;  // thread-safe
  bool any_has(uint64_t record) const;
  RowWords rows_of(uint64_t number) const;
  // The smallest that is pending; 0 where none is.
  uint64_t oldest_pending() const;
  // To each pending one from `first_number` on. True: nothing refers to the record, for there's none. Thread-safe.
  bool add_to_pending(uint64_t first_number, uint64_t record);
  // It's pending no more, and its bits don't change until it's dropped. Thread-safe.
  void settle(uint64_t number);
  // Takes its references away, and tells of records that nothing refers to any more, the highest first. Thread-safe.
  using Freed = std::function<void(std::span<const Slot> records)>;
  void drop(uint64_t number, const Freed& freed);

 private:
  struct Checkpoint {
    std::atomic<uint64_t> number{0};   // 0: no checkpoint, and its bits are 0
    std::atomic<uint64_t> pending{0};  // the number; 0 where it isn't pending
  };
  // Records that lie together share a lock. Those who take references away hold it: of two at once, one must see that it was
  // the last.
  static constexpr size_t kMostStripes = 64;
  static constexpr size_t kWordsARun = 64;
  struct alignas(64) Stripe {
    Mutex mutex;
  };
  Mutex& stripe(size_t word) { return stripes_[word / kWordsARun % stripe_count_].mutex; }

  // In bits_, the live records come first, and then those of each of checkpoints_.
  size_t first_word(size_t checkpoint) const { return (checkpoint + 1) * words_; }
  uint64_t word(size_t checkpoint, size_t i) const { return bits_.word(first_word(checkpoint) + i); }
  size_t find(uint64_t number) const;  // its place in checkpoints_; kMostCheckpoints where there's none

  const size_t words_;  // of one set
  RowBits bits_;
  std::atomic<uint64_t> live_{0};
  std::array<Checkpoint, kMostCheckpoints> checkpoints_;
  const size_t stripe_count_;
  const std::unique_ptr<Stripe[]> stripes_;
};

}  // namespace embstore::log
