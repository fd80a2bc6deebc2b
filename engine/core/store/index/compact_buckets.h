// Buckets whose entries have tags of 16 bits in place of keys, so that ten of them fit a cache line.
//
// A bijection of the numbers below 2^bits scrambles a key. In the product of the scrambled key and the count
// of buckets, the upper bits are the key's home, and the next lower bits are the rest: home and rest together
// identify the key (J. G. Cleary, "Compact Hash Tables Using Bidirectional Linear Probing", IEEE Transactions
// on Computers, 1984). A tag has the rest and the number of buckets that passed the key on. So two keys never
// look alike. The cost: keys must be below some 64 to 128 times the number of keys that there is room for, or
// they are kept elsewhere.
#pragma once

#include <bit>
#include <cstdint>

#include "store/index/buckets.h"

namespace embstore {

// Says where a search for a key of one shard begins, and how it goes on. It is as small as possible: readers
// have one for each shard.
struct CompactHomes {
  static constexpr int kRestBits = 10;
  // One more would make kNoTag possible.
  static constexpr uint32_t kMaxPassed = (1u << (16 - kRestBits)) - 2;

  // The home bucket of a key, and what to look for.
  struct Sought {
    uint32_t home;
    uint32_t rest;  // of the key, beside its home
  };

  Bucket* first;
  uint64_t count;         // 0: there are no compact buckets
  uint64_t largest;       // largest key_in_shard() that fits
  uint64_t upper_factor;  // its product with a key has the scrambled key in its upper bits

  bool fits(int64_t key) const { return key_in_shard(key) <= largest; }
  // REQUIRES: the key fits.
  Sought seek(int64_t key) const {
    __extension__ using Product = unsigned __int128;
    const Product place = Product{key_in_shard(key) * upper_factor} * count;
    return {static_cast<uint32_t>(place >> 64),
            static_cast<uint32_t>(static_cast<uint64_t>(place) >> (64 - kRestBits))};
  }
  // A key that doesn't fit has a home, too, but no entry has this tag.
  static constexpr uint16_t kNoTag = 0xffff;
  Sought seek_any(int64_t key) const {
    return fits(key) ? seek(key) : Sought{home_bucket(key, count), kNoTag};
  }

  uint32_t max_passed() const {
    return static_cast<uint32_t>(count - 1 < kMaxPassed ? count - 1 : kMaxPassed);
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
  // A bucket of ten entries can be fuller than one of five before it passes on as many keys.
  static uint32_t count_for(uint64_t keys) { return Buckets::count_for(keys, 0.8 * kEntries); }
  using Sought = CompactHomes::Sought;

  // For keys of this shard.
  CompactBuckets(Bucket* first, uint32_t count, int shard)
      : Buckets(first, count),
        shard_(shard),
        // 2 to this power is at most the count.
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
    // Exactly one number has a product with the count that begins with these bits.
    const uint64_t place = (uint64_t{sought.home} << kRestBits | sought.rest) << shift_;
    return key_of_shard(shard_, (place + count_ - 1) / count_ * inverse_factor_ & homes_.largest);
  }
  int64_t key(uint32_t i, int entry) const { return key_of(sought_at(i, entry)); }
  Sought sought_at(uint32_t i, int entry) const {
    const uint32_t passed_on = passed(i, entry);
    return {i >= passed_on ? i - passed_on : i + count_ - passed_on, first_[i].tag(entry) & kRestMask};
  }
  // Returns the number of buckets that passed on the key of this entry.
  uint32_t passed(uint32_t i, int entry) const { return uint32_t{first_[i].tag(entry)} >> kRestBits; }

 private:
  // 2^64 divided by the golden ratio: its multiples lie far apart, so that dense keys fill all buckets
  // evenly.
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  static constexpr int kRestBits = CompactHomes::kRestBits;
  static constexpr uint32_t kRestMask = (1u << kRestBits) - 1;

  // Returns the inverse of an odd factor modulo 2^64. Each step doubles the number of correct bits (Newton's
  // method).
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
