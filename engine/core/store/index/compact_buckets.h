// Buckets whose entries have tags of 16 bits in place of keys, so that ten of them fit a cache line.
//
// A bijection of the numbers below 2^bits scrambles a key; multiplied by the count of buckets, its upper bits are its home, and
// the bits behind them, with the home, are all of it (J. G. Cleary, "Compact Hash Tables Using Bidirectional Linear Probing",
// IEEE Transactions on Computers, 1984). A tag is those bits and how many buckets passed the key on. So two keys never look alike.
// What it costs: keys must be below some 64 to 128 times as many as there is room for, or they are kept elsewhere.
#pragma once

#include <bit>
#include <cstdint>

#include "store/index/buckets.h"

namespace embstore {

// Where a search for a key of one shard begins, and how it goes on. As small as can be: readers have one of each shard.
struct CompactHomes {
  static constexpr int kRestBits = 10;
  // A tag with one more is none.
  static constexpr uint32_t kMostPassed = (1u << (16 - kRestBits)) - 2;

  // What is looked for, and where.
  struct Sought {
    uint32_t home;
    uint32_t rest;  // of the key
  };

  Bucket* first;
  uint64_t count;         // 0: there are no compact buckets
  uint64_t largest;       // that fits, of key_in_shard()
  uint64_t upper_factor;  // whose product with a key is the scrambled key in its upper bits

  bool fits(int64_t key) const { return key_in_shard(key) <= largest; }
  // REQUIRES: the key fits.
  Sought seek(int64_t key) const {
    __extension__ using Product = unsigned __int128;
    const Product place = Product{key_in_shard(key) * upper_factor} * count;
    return {static_cast<uint32_t>(place >> 64),
            static_cast<uint32_t>(static_cast<uint64_t>(place) >> (64 - kRestBits))};
  }
  // A key that doesn't fit has a home, too, but no entry has its tag.
  static constexpr uint16_t kNoTag = 0xffff;
  Sought seek_any(int64_t key) const {
    return fits(key) ? seek(key) : Sought{home_bucket(key, count), kNoTag};
  }

  uint32_t most_passed() const {
    return static_cast<uint32_t>(count - 1 < kMostPassed ? count - 1 : kMostPassed);
  }
  static uint16_t tag(uint32_t passed, uint32_t rest) {
    return static_cast<uint16_t>(passed << kRestBits | rest);
  }
  static int find(const Bucket& bucket, uint32_t passed, const Sought& sought) {
    return bucket.find_tag(tag(passed, sought.rest));
  }
};

class CompactBuckets : public Buckets {
 public:
  static constexpr int kEntries = Bucket::kTagged;
  // A bucket of ten can be fuller than one of five before it passes on as many keys.
  static uint32_t count_for(uint64_t keys) { return Buckets::count_for(keys, 0.8 * kEntries); }
  using Sought = CompactHomes::Sought;

  // Of keys of this shard.
  CompactBuckets(Bucket* first, uint32_t count, int shard)
      : Buckets(first, count),
        shard_(shard),
        // The count is at least two to this power.
        shift_(count == 0 ? 0 : std::bit_width(count) - 1),
        factor_(kGolden >> (64 - bits()) | 1),
        inverse_factor_(inverse(factor_)),
        homes_{first, count, (uint64_t{1} << bits()) - 1, factor_ << (64 - bits())} {}

  const CompactHomes& homes() const { return homes_; }
  bool fits(int64_t key) const { return homes_.fits(key); }
  Sought seek(int64_t key) const { return homes_.seek(key); }
  Sought seek_any(int64_t key) const { return homes_.seek_any(key); }

  void set(uint32_t i, int entry, uint32_t passed, const Sought& sought) const {
    first_[i].tag(entry).store(CompactHomes::tag(passed, sought.rest), std::memory_order_relaxed);
  }

  int64_t key_of(const Sought& sought) const {
    // Of the numbers whose product with the count begins so, there is but one.
    const uint64_t place = (uint64_t{sought.home} << kRestBits | sought.rest) << shift_;
    return key_of_shard(shard_, (place + count_ - 1) / count_ * inverse_factor_ & homes_.largest);
  }
  int64_t key(uint32_t i, int entry) const { return key_of(sought_at(i, entry)); }
  Sought sought_at(uint32_t i, int entry) const {
    const uint32_t passed_on = passed(i, entry);
    return {i >= passed_on ? i - passed_on : i + count_ - passed_on, first_[i].tag(entry) & kRestMask};
  }
  // How many buckets passed on the key of an entry.
  uint32_t passed(uint32_t i, int entry) const { return uint32_t{first_[i].tag(entry)} >> kRestBits; }

 private:
  // 2^64 divided by the golden ratio: its multiples are far from each other, so that dense keys fill all buckets alike.
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  static constexpr int kRestBits = CompactHomes::kRestBits;
  static constexpr uint32_t kRestMask = (1u << kRestBits) - 1;

  // The number by which an odd factor is undone. Each step doubles the bits that are right (Newton's method).
  static constexpr uint64_t inverse(uint64_t factor) {
    uint64_t x = factor;
    for (int right_bits = 3; right_bits < 64; right_bits *= 2) x *= 2 - factor * x;
    return x;
  }
  int bits() const { return shift_ + kRestBits; }

  int shard_;
  int shift_;
  uint64_t factor_;
  uint64_t inverse_factor_;
  CompactHomes homes_;
};

}  // namespace embstore
