// Compares the index with a plain map, whatever is inserted, erased and reserved; tests the cost of a search
// after many generations of keys; and runs readers beside writers, which must never miss a key that is there.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "store/index/index_reader.h"
#include "testing/tests.h"

namespace embstore {
namespace {

// The kinds of key sets: for kFit, an array has compact buckets; kSomeFitNot adds keys that don't fit them;
// kCrowded adds more keys of a few homes than their neighbourhood has room for; for kWide, it has wide
// buckets.
enum class Keys { kFit, kSomeFitNot, kCrowded, kWide };
constexpr std::array<Keys, 4> kAllKinds = {Keys::kFit, Keys::kSomeFitNot, Keys::kCrowded, Keys::kWide};

// A shard, and a map with what must be in it. The keys belong to one shard, and some share few homes.
class ModelledShard {
 public:
  ModelledShard(Keys kind, uint64_t seed, size_t keys = 3000) : kind_(kind), random_(seed) {
    const CompactBuckets compact(nullptr, CompactBuckets::count_for(2000), kShard);
    const WideBuckets wide(nullptr, compact.count());
    while (keys_.size() < keys) {
      const bool is_wide = kind == Keys::kWide || (kind == Keys::kSomeFitNot && below(50) == 0);
      const auto key = static_cast<int64_t>(is_wide ? random_() : below(8 * kShards * keys));
      if (shard_of_key(key) != kShard) continue;
      // Every sixteenth key has its home in the first or the last part of an array.
      const uint32_t home = is_wide || !compact.fits(key) ? wide.seek(key).home : compact.seek(key).home;
      const bool is_at_an_end = home < 8 || home + 8 > compact.count();
      if (is_at_an_end || keys_.size() % 16 != 0) keys_.push_back(key);
    }
    if (kind == Keys::kCrowded) {
      crowd();
    } else if (kind != Keys::kFit) {
      for (uint64_t key = 0; key < 2 * kShards; ++key) {
        const auto end = static_cast<int64_t>(uint64_t{1} << 63 ^ key ^ (key % 2 == 0 ? 0 : ~uint64_t{0}));
        if (shard_of_key(end) == kShard) keys_.push_back(end);
      }
    }
  }

  uint64_t below(uint64_t end) { return random_() % end; }
  uint64_t size_bytes() {
    const MutexLock lock(shard_.mutex);
    return shard_.size_bytes();
  }
  const BucketArray* buckets() { return &shard_.buckets(); }
  bool is_full() const { return entries() > keys_.size() * 9 / 10; }
  size_t entries() const { return refs_.size(); }

  void insert() {
    const int64_t key = any_key();
    const MutexLock lock(shard_.mutex);
    if (refs_.contains(key)) return;
    shard_.reserve(1, key);
    insert_at(key, nullptr);
  }
  void insert_some() {
    const uint64_t count = 1 + below(40);
    const MutexLock lock(shard_.mutex);
    shard_.reserve(count, any_key());
    const BucketArray* const buckets = &shard_.buckets();
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t key = any_key();
      if (!refs_.contains(key)) insert_at(key, nullptr);
    }
    check(buckets == &shard_.buckets(), "an insert moved the buckets though room was reserved");
  }
  // Reserves another of several rooms; keys are inserted and erased beside them before all of their space is
  // used.
  void reserve_room() {
    const MutexLock lock(shard_.mutex);
    rooms_.push_back(shard_.reserve_room(below(60), any_key()));
  }
  void use_room() {
    if (rooms_.empty()) return;
    IndexShard::Room& room = rooms_[below(rooms_.size())];
    const MutexLock lock(shard_.mutex);
    const BucketArray* const buckets = &shard_.buckets();
    for (uint64_t i = below(room.left() + 1); i > 0; --i) {
      const int64_t key = any_key();
      if (!refs_.contains(key)) insert_at(key, &room);
    }
    check(buckets == &shard_.buckets(), "an insert into a room moved the buckets");
  }
  void give_room_back() {
    if (rooms_.empty()) return;
    std::swap(rooms_[below(rooms_.size())], rooms_.back());
    rooms_.pop_back();
  }
  void give_all_rooms_back() { rooms_.clear(); }

  void set_ref() {
    const int64_t key = any_key();
    const MutexLock lock(shard_.mutex);
    const auto known = refs_.find(key);
    if (known == refs_.end()) return;
    known->second = next_ref();
    shard_.set_ref(shard_.entry(key), known->second);
  }
  void erase() {
    const int64_t key = any_key();
    const MutexLock lock(shard_.mutex);
    const IndexEntry entry = shard_.entry(key);
    check(static_cast<bool>(entry) == (refs_.erase(key) == 1), "a key is found that isn't there, or isn't");
    if (entry) shard_.erase(entry);
  }

  // Checks that what a reader found before an operation either still holds, or is rejected.
  template <class Operation>
  void check_what_was_found_before(Operation operation) {
    const Epochs::Guard guard = epochs_.enter();
    IndexReader reader(index_);
    std::vector<IndexHit> hits;
    for (const int64_t key : keys_) hits.push_back(reader.find(key));
    operation();
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto known = refs_.find(keys_[i]);
      const RowRef now = known == refs_.end() ? RowRef() : known->second;
      check(hits[i].ref == now || !hits[i].is_valid(), "a reader accepts what is no longer so");
    }
  }

  // Checks that reader and writer find exactly what is there, and that the array's overflow marks say neither
  // too much nor too little.
  void check_all() {
    const Epochs::Guard guard = epochs_.enter();
    IndexReader reader(index_);
    const MutexLock lock(shard_.mutex);
    for (const int64_t key : keys_) {
      const auto known = refs_.find(key);
      const RowRef expected = known == refs_.end() ? RowRef() : known->second;
      const IndexEntry entry = shard_.entry(key);
      check((entry ? entry.ref() : RowRef()) == expected, "a writer found something else");
      const IndexHit hit = reader.find(key);
      check(hit.ref == expected && hit.is_valid(), "a reader found something else");
    }
    check(shard_.entries() == refs_.size(), "the entries are counted wrongly");
    uint64_t visited = 0;
    shard_.for_each([&](int64_t key, RowRef ref) {
      ++visited;
      const auto known = refs_.find(key);
      check(known != refs_.end() && known->second == ref, "an entry is visited that isn't there");
    });
    check(visited == refs_.size(), "an entry wasn't visited, or twice");
    const BucketArray& array = shard_.buckets();
    check_marks(array.compact());
    if (!array.is_compact() || array.uses_stash()) check_marks(array.wide());
    // Reserved room must exist: if it were all used at once, the array would still be within its capacity.
    uint64_t held = 0;
    for (const IndexShard::Room& room : rooms_) held += room.left();
    check(shard_.entries() + held <= array.capacity(), "room that was reserved isn't there");
    if (array.capacity() < 300) return;  // an array with few entries can't foresee its keys
    check(kind_ == Keys::kSomeFitNot || array.is_compact() == (kind_ != Keys::kWide),
          "an array has the other kind of buckets");
    has_used_stash_ |= array.uses_stash();
  }
  void check_kind() const {
    check(has_used_stash_ == (kind_ == Keys::kSomeFitNot || kind_ == Keys::kCrowded),
          "keys lie where the test doesn't want them");
  }

 private:
  static constexpr int kShard = 5;

  // Inserts more keys of three homes than fit near them.
  void crowd() {
    const MutexLock lock(shard_.mutex);
    shard_.reserve(2000, keys_.front());
    const CompactBuckets compact = shard_.buckets().compact();
    const size_t before = keys_.size();
    for (uint64_t number = 0; keys_.size() < before + 900; ++number) {
      const int64_t key = key_of_shard(kShard, number);
      check(compact.fits(key), "the test finds too few keys");
      const uint32_t home = compact.seek(key).home;
      if (home < 70 || home > 72) continue;
      keys_.push_back(key);
      if (!refs_.contains(key)) insert_at(key, nullptr);
    }
  }

  int64_t any_key() { return keys_[below(keys_.size())]; }
  RowRef next_ref() { return {static_cast<uint32_t>(below(4)), next_slot_++}; }

  void insert_at(int64_t key, IndexShard::Room* room) REQUIRES(shard_.mutex) {
    const RowRef ref = next_ref();
    const IndexEntry entry = room != nullptr ? shard_.insert(key, ref, *room) : shard_.insert(key, ref);
    check(entry.ref() == ref && shard_.buckets().key(*entry.bucket, entry.position) == key,
          "an insert returned another entry");
    refs_[key] = ref;
  }

  template <class Kind>
  void check_marks(const Kind& buckets) REQUIRES(shard_.mutex) {
    std::vector<bool> needed(buckets.count());
    for (uint32_t i = 0; i < buckets.count(); ++i) {
      for (int e = 0; e < Kind::kEntries; ++e) {
        if (!buckets[i].ref(e)) continue;
        const uint32_t home = buckets.seek(buckets.key(i, e)).home;
        for (uint32_t passed = home; passed != i; passed = buckets.next(passed)) needed[passed] = true;
      }
    }
    for (uint32_t i = 0; i < buckets.count(); ++i) {
      const bool marked = buckets[i].is_overflowed();
      check(marked || !needed[i], "a bucket that passed a key on isn't marked");
      check(needed[i] || !marked, "a bucket is marked that passes no key on");
      check(!marked || buckets[i].find_empty(Kind::kEntries) < 0, "a key lies further on than it must");
    }
  }

  const Keys kind_;
  bool has_used_stash_ = false;
  std::mt19937_64 random_;
  Epochs epochs_;
  Index index_{epochs_};
  IndexShard& shard_ = index_.shard(kShard);
  std::vector<int64_t> keys_;
  std::unordered_map<int64_t, RowRef> refs_;
  std::vector<IndexShard::Room> rooms_;  // destroyed before the shard
  Slot next_slot_ = 0;
};

// Keys are compared by halves: the keys of one bucket share halves here, and some were removed.
TEST(a_bucket_tells_keys_apart_by_both_halves) {
  static constexpr std::array<uint32_t, 4> kHalves = {0, 1, 0x80000000, 0xffffffff};
  std::mt19937_64 random(5);
  const auto any_key = [&random] {
    const uint64_t upper = kHalves[random() % kHalves.size()];
    return static_cast<int64_t>(upper << 32 | kHalves[random() % kHalves.size()]);
  };
  const auto any_tag = [&random] { return static_cast<uint16_t>(kHalves[random() % kHalves.size()] >> 7); };
  for (int round = 0; round < 20'000; ++round) {
    // Fills the entries from the last to the first, so that the last match is the first in its bucket.
    const auto check_bucket = [&random](int entries, auto any, auto at, auto matches_of, auto find) {
      const auto sought = any();
      Bucket bucket{};
      unsigned matches = 0;
      int found = -1;
      int empty = -1;
      for (int e = entries - 1; e >= 0; --e) {
        at(bucket, e).store(any());
        bucket.set_ref(e, random() % 4 == 0 ? RowRef() : RowRef(0, 7));
        if (!bucket.ref(e)) empty = e;
        if (at(bucket, e).load() != sought) continue;
        matches |= 1u << e;
        if (bucket.ref(e)) found = e;
      }
      check((bucket.*matches_of)(sought) == matches, "a bucket takes another key for the one that is sought");
      check((bucket.*find)(sought) == found,
            "a bucket finds a removed entry, or not the first that is there");
      check(bucket.find_empty(entries) == empty, "a bucket finds another entry that is empty");
    };
    check_bucket(
        Bucket::kKeyed, any_key, [](Bucket& bucket, int e) -> auto& { return bucket.key(e); },
        &Bucket::matches_of_key, &Bucket::find_key);
    check_bucket(
        Bucket::kTagged, any_tag, [](Bucket& bucket, int e) -> auto& { return bucket.tag(e); },
        &Bucket::matches_of_tag, &Bucket::find_tag);
  }
}

// A key is determined by its home and its tag, however many buckets there are.
TEST(compact_buckets_give_back_each_key_that_fits) {
  std::mt19937_64 random(7);
  for (uint32_t count : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 1000u, 16'383u, 16'384u, 16'385u, 100'000'000u}) {
    std::vector<Bucket> one(1);
    for (int shard = 0; shard < kShards; ++shard) {
      const CompactBuckets buckets(one.data(), count, shard);
      int64_t largest = key_of_shard(shard, 0);
      for (int bits = 0; bits < 60; ++bits) {
        const int64_t key = key_of_shard(shard, uint64_t{1} << bits);
        if (buckets.fits(key)) largest = key;
      }
      check(largest >= int64_t{kShards} * 256 * count, "too few keys fit");
      for (int i = 0; i < 2000; ++i) {
        const auto number = static_cast<uint64_t>(largest) >> kShardBits;
        const int64_t key = key_of_shard(shard, i < 100 ? static_cast<uint64_t>(i) : random() % (2 * number));
        check(shard_of_key(key) == shard, "a key is in another shard");
        if (!buckets.fits(key)) continue;
        const CompactBuckets::Sought sought = buckets.seek(key);
        check(sought.home < count, "a home lies behind the last bucket");
        check(buckets.key_of(sought) == key, "another key comes back");
      }
    }
  }
}

void the_index_is_a_map(Keys kind, uint64_t seed) {
  ModelledShard shard(kind, seed);
  shard.check_all();
  for (int step = 0; step < 12'000; ++step) {
    // The shard fills and empties in turns.
    const bool filling = step / 2'000 % 2 == 0;
    const auto change = [&] {
      switch (shard.below(10)) {
        case 0: shard.insert_some(); break;
        case 1: shard.set_ref(); break;
        case 2:
          if (shard.below(10) == 0) shard.reserve_room();
          break;
        case 3: shard.use_room(); break;
        case 4:
          if (shard.below(10) == 0) shard.give_room_back();
          break;
        case 5: shard.insert(); break;
        default:
          for (int i = 0; i < (filling ? 3 : 20); ++i) shard.erase();
      }
    };
    step % 20 == 0 ? shard.check_what_was_found_before(change) : change();
    if (step % 500 == 0) shard.check_all();
  }
  shard.give_all_rooms_back();
  shard.check_all();
  shard.check_kind();
}

// At each size, the shard stays for a while in the state in which two arrays are updated together.
void changes_while_a_larger_array_is_filled_reach_both(Keys kind, uint64_t seed) {
  ModelledShard shard(kind, seed, 40'000);
  int filled = 0;
  while (!shard.is_full()) {
    const uint64_t size_bytes = shard.size_bytes();
    while (!shard.is_full() && shard.size_bytes() == size_bytes) shard.insert();
    if (shard.entries() < 3000 || shard.is_full()) continue;
    const BucketArray* const buckets = shard.buckets();
    const size_t entries = shard.entries();
    for (int turn = 0; turn < 40; ++turn) {
      for (int i = 0; i < 10; ++i) {
        shard.set_ref();
        shard.erase();
      }
      while (shard.entries() < entries) shard.insert();
      for (int i = 0; i < 10; ++i) shard.set_ref();
    }
    check(shard.buckets() == buckets, "an array changed though it had room");
    while (shard.buckets() == buckets) shard.insert();
    check(shard.entries() > entries + entries / 200, "an array changed long before it was full");
    shard.check_all();
    ++filled;
  }
  check(filled > 5, "the shard grew too seldom for this test");
}

// Checks that a batch seldom waits for the growth of several shards.
void shards_grow_at_different_sizes() {
  Epochs epochs;
  const Index index(epochs);
  std::array<const BucketArray*, kShards> arrays{};
  int most = 0;
  int all = 0;
  for (int64_t key = 0; key < 400'000; ++key) {
    IndexShard& shard = index.shard(shard_of_key(key));
    const MutexLock lock(shard.mutex);
    shard.reserve(1, key);
    shard.insert(key, RowRef(0, 7));
    if (key < 100'000 || key % 1000 != 0) continue;
    int grown = 0;
    for (int s = 0; s < kShards; ++s) {
      const BucketArray* const array = &index.shard(s).buckets();
      grown += std::exchange(arrays[static_cast<size_t>(s)], array) != array ? 1 : 0;
    }
    if (key == 100'000) continue;  // the first look only stores the arrays
    most = std::max(most, grown);
    all += grown;
  }
  check(all >= 4 * kShards, "the shards grew too seldom for this test");
  check(most <= 3, std::to_string(most) + " of " + std::to_string(kShards) + " shards grew together");
}

class Generations {
 public:
  uint64_t size_bytes() {
    return sum([](uint64_t bytes, uint64_t) { return bytes; });
  }
  uint64_t entries() {
    return sum([](uint64_t, uint64_t entries) { return entries; });
  }

  void insert(int64_t key) {
    IndexShard& shard = index_.shard(shard_of_key(key));
    const MutexLock lock(shard.mutex);
    shard.reserve(1, key);
    shard.insert(key, RowRef(0, 7));
  }
  void erase(int64_t key) {
    IndexShard& shard = index_.shard(shard_of_key(key));
    const MutexLock lock(shard.mutex);
    const IndexEntry entry = shard.entry(key);
    check(static_cast<bool>(entry), "a key is missing");
    shard.erase(entry);
  }

  const BucketArray& buckets(int shard) const { return index_.shard(shard).buckets(); }
  uint64_t fullest_shard() {
    uint64_t fullest = 0;
    sum([&fullest](uint64_t, uint64_t entries) {
      fullest = std::max(fullest, entries);
      return entries;
    });
    return fullest;
  }

  // Returns how many buckets a search for an absent key reads, on average over its homes.
  double buckets_searched() {
    uint64_t homes = 0;
    uint64_t searched = 0;
    for (int s = 0; s < kShards; ++s) {
      const BucketArray& array = index_.shard(s).buckets();
      const auto look_at = [&](const auto& buckets) {
        homes += buckets.count();
        for (uint32_t home = 0; home < buckets.count(); ++home) {
          uint64_t run = 1;
          for (uint32_t i = home; buckets[i].is_overflowed(); ++run) {
            i = buckets.next(i);
            check(run < buckets.count(), "a search never ends");
          }
          searched += run;
        }
      };
      array.is_compact() ? look_at(array.compact()) : look_at(array.wide());
    }
    return static_cast<double>(searched) / static_cast<double>(homes);
  }

 private:
  template <class Choose>
  uint64_t sum(Choose choose) {
    uint64_t sum = 0;
    for (int s = 0; s < kShards; ++s) {
      IndexShard& shard = index_.shard(s);
      const MutexLock lock(shard.mutex);
      sum += choose(shard.size_bytes(), shard.entries());
    }
    return sum;
  }

  Epochs epochs_;
  Index index_{epochs_};
};

void searches_stay_short_over_generations(Keys kind, double share_that_goes) {
  constexpr size_t kRows = 20'000;
  std::mt19937_64 random(3);
  std::unordered_set<int64_t> drawn;
  const auto any_key = [&] {
    for (;;) {
      const auto key = static_cast<int64_t>(kind == Keys::kWide ? random() : random() % (64 * kRows));
      if (drawn.insert(key).second) return key;
    }
  };
  std::vector<int64_t> keys(kRows);
  std::generate(keys.begin(), keys.end(), any_key);
  Generations aged;
  for (const int64_t key : keys) aged.insert(key);
  for (int generation = 0; generation < 60; ++generation) {
    std::shuffle(keys.begin(), keys.end(), random);
    const auto going = static_cast<size_t>(share_that_goes * kRows);
    for (size_t i = 0; i < going; ++i) aged.erase(keys[i]);
    for (size_t i = 0; i < going; ++i) aged.insert(keys[i] = any_key());
  }
  Generations fresh;
  for (const int64_t key : keys) fresh.insert(key);
  check(aged.entries() == kRows && fresh.entries() == kRows, "keys were lost");
  // A generation may have had more keys in a shard than its array was for; each such shard is a third larger.
  check(aged.size_bytes() >= fresh.size_bytes() && aged.size_bytes() < fresh.size_bytes() * 9 / 8,
        "an index that lived has another size than a new one");
  check(aged.buckets_searched() < 1.05 * fresh.buckets_searched(),
        "searches grow longer: " + std::to_string(aged.buckets_searched()) +
            " buckets where a new index has " + std::to_string(fresh.buckets_searched()));
}

// Checks that homes pass few keys on and that no key is stashed, whatever pattern the keys follow. key_at(i)
// is the pattern's key number i.
void keys_of_a_pattern_lie_near_their_homes(const std::string& pattern, bool are_wide,
                                            const std::function<uint64_t(uint64_t)>& key_at) {
  constexpr uint64_t kRows = 100'000;
  Generations index;
  for (uint64_t i = 0; i < kRows; ++i) index.insert(static_cast<int64_t>(key_at(i)));
  for (int s = 0; s < kShards; ++s) {
    check(index.buckets(s).is_compact() != are_wide, pattern + ": keys lie in buckets of another kind");
    check(are_wide || !index.buckets(s).uses_stash(), pattern + ": keys had to be stashed");
  }
  const double searched = index.buckets_searched();
  check(searched < 2, pattern + ": a search takes " + std::to_string(searched) + " buckets");
  const uint64_t fullest = index.fullest_shard();
  check(fullest * kShards < kRows * 11 / 10, pattern + ": a shard has " + std::to_string(fullest) + " keys");
}

void keys_of_any_pattern_lie_near_their_homes() {
  for (uint64_t stride = 1; stride <= 64; ++stride) {
    keys_of_a_pattern_lie_near_their_homes("every key that is divided by " + std::to_string(stride), false,
                                           [stride](uint64_t i) { return i * stride; });
  }
  for (const uint64_t block : {2, 10, 16, 100, 1000, 10'000}) {
    for (const uint64_t times : {3, 8, 32}) {
      keys_of_a_pattern_lie_near_their_homes(
          "blocks of " + std::to_string(block) + " in " + std::to_string(times * block), false,
          [=](uint64_t i) { return i / block * block * times + i % block; });
    }
  }
  for (int bits = 8; bits <= 46; ++bits) {
    const std::string behind = " behind " + std::to_string(bits) + " bits";
    keys_of_a_pattern_lie_near_their_homes("keys" + behind, true, [bits](uint64_t i) { return i << bits; });
    if (bits < 20) continue;
    keys_of_a_pattern_lie_near_their_homes("fields" + behind, true,
                                           [bits](uint64_t i) { return (1 + i % 26) << bits | i / 26; });
  }
}

void memory_comes_back_when_most_entries_are_erased(Keys kind) {
  Generations index;
  constexpr int64_t kRows = 200'000;
  const auto key = [kind](int64_t i) {
    return kind == Keys::kWide ? static_cast<int64_t>(spread(static_cast<uint64_t>(i))) : i;
  };
  for (int64_t i = 0; i < kRows; ++i) index.insert(key(i));
  const uint64_t full = index.size_bytes();
  const uint64_t fullest = kind == Keys::kWide ? 17 : 8;  // bytes an entry
  check(full <= kRows * fullest * 27 / 20 + 16 * 64, "an entry takes more than it may");
  check(full >= fullest * kRows, "an index is fuller than its searches allow");
  for (int64_t i = kRows / 20; i < kRows; ++i) index.erase(key(i));
  for (int64_t i = kRows; i < kRows + 1000; ++i) index.insert(key(i));
  check(index.size_bytes() < full / 5, "an index of few entries is as large as it was");
  for (int64_t i = 0; i < kRows / 20; ++i) index.erase(key(i));
}

TEST(room_is_kept_whatever_others_insert) {
  constexpr int kShard = 3;
  const auto key_at = [](int64_t i) { return key_of_shard(kShard, static_cast<uint64_t>(i)); };
  Epochs epochs;
  IndexShard shard(epochs, kShard);
  IndexShard::Room room;
  {
    const MutexLock lock(shard.mutex);
    room = shard.reserve_room(1000, key_at(0));
  }
  std::vector<std::thread> others;
  std::atomic<int64_t> next_key{1000};
  for (int t = 0; t < 3; ++t) {
    others.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        const int64_t key = key_at(next_key++);
        const MutexLock lock(shard.mutex);
        shard.reserve(1, key);
        shard.insert(key, RowRef(0, 1));
      }
    });
  }
  for (int64_t key = 0; key < 900; ++key) {
    const MutexLock lock(shard.mutex);
    const BucketArray* const buckets = &shard.buckets();
    shard.insert(key_at(key), RowRef(0, 1), room);
    check(buckets == &shard.buckets(), "an insert into a room moved the buckets");
  }
  for (std::thread& other : others) other.join();
  check(room.left() == 100, "a room has another rest than what wasn't used");
  const auto size_bytes = [&shard] {
    const MutexLock lock(shard.mutex);
    check(shard.entries() == 60'900, "inserts were lost");
    return shard.size_bytes();
  };
  const uint64_t before = size_bytes();
  // Room that was given back can be reserved again, without growth, any number of times.
  room = {};
  for (int i = 0; i < 1000; ++i) {
    const MutexLock lock(shard.mutex);
    IndexShard::Room again;
    again = shard.reserve_room(100, key_at(0));
    for (int64_t n = 0; n < 100; ++n) {
      shard.insert(key_at(100'000 + n), RowRef(0, 1), again);
    }
    for (int64_t n = 0; n < 100; ++n) shard.erase(shard.entry(key_at(100'000 + n)));
  }
  for (int i = 0; i < 1000; ++i) {
    IndexShard::Room again;  // outlives the lock, since its destructor takes it
    const MutexLock lock(shard.mutex);
    again = shard.reserve_room(100, key_at(0));
  }
  check(size_bytes() == before, "room that is given back is kept");
}

// Writers erase and insert keys around others that stay. The staying keys move, because of that and because
// arrays grow and shrink. A key that stays is identified by its slot.
void readers_find_what_stays(int rounds) {
  Epochs epochs;
  const Index index(epochs);
  constexpr int64_t kStaying = 2000;
  constexpr int64_t kGoing = 20'000;  // keys from kStaying on, some of them at a time
  // Some keys don't fit compact buckets.
  const auto key_at = [](int64_t i) { return i % 40 == 0 ? i << 40 : i; };
  const auto insert = [&](int64_t i) {
    const int64_t key = key_at(i);
    IndexShard& shard = index.shard(shard_of_key(key));
    const MutexLock lock(shard.mutex);
    if (shard.entry(key)) return;
    shard.reserve(1, key);
    shard.insert(key, RowRef(0, static_cast<Slot>(i)));
  };
  const auto erase = [&](int64_t i) {
    const int64_t key = key_at(i);
    IndexShard& shard = index.shard(shard_of_key(key));
    const MutexLock lock(shard.mutex);
    if (const IndexEntry entry = shard.entry(key)) shard.erase(entry);
  };
  for (int64_t key = 0; key < kStaying; ++key) {
    insert(kStaying + key);
    insert(key);
  }
  std::atomic<bool> writing{true};
  std::atomic<uint64_t> found{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      uint64_t held = 0;
      while (writing.load()) {
        const Epochs::Guard guard = epochs.enter();
        IndexReader reader(index);
        for (int i = 0; i < 2000; ++i) {
          const auto which = static_cast<int64_t>(random() % kStaying);
          const IndexHit hit = reader.find(key_at(which));
          check(static_cast<bool>(hit.ref), "a key that stays isn't found");
          if (!hit.is_valid()) continue;
          check(hit.ref == RowRef(0, static_cast<Slot>(which)), "a reader accepted another key's row");
          ++held;
        }
      }
      found += held;
    });
  }
  std::mt19937_64 random(9);
  for (int round = 0; round < rounds; ++round) {
    // In turns few and many keys, so that arrays grow and shrink; in between, keys are erased and inserted
    // one by one.
    const auto any_key = [&random] { return kStaying + static_cast<int64_t>(random() % kGoing); };
    for (int i = 0; i < 10'000; ++i) {
      erase(any_key());
      insert(any_key());
    }
    for (int64_t key = kStaying; key < kStaying + kGoing; ++key) round % 2 == 0 ? erase(key) : insert(key);
  }
  writing = false;
  for (std::thread& reader : readers) reader.join();
  check(found > 0, "no reader accepted anything");
}

void insert(IndexShard& shard, int64_t key) {
  const MutexLock lock(shard.mutex);
  shard.reserve(1, key);
  shard.insert(key, RowRef(0, 1));
}

void erase(IndexShard& shard, int64_t key) {
  const MutexLock lock(shard.mutex);
  shard.erase(shard.entry(key));
}

// A key that full buckets passed on moves back, bucket by bucket, as keys in front of it are erased. A reader
// that looks for it meanwhile, and walks towards it, must not miss it.
template <class Kind>
void readers_find_a_key_that_moves_towards_them(const Kind& (BucketArray::*buckets_of)() const, int64_t step,
                                                int rounds) {
  Epochs epochs;
  const Index index(epochs);
  constexpr size_t kKeys = 5 * Kind::kEntries;
  const auto number = [step](uint64_t i) { return i * static_cast<uint64_t>(step); };
  IndexShard::Room room;  // so that the array never shrinks
  {
    IndexShard& shard = index.shard(0);
    const MutexLock lock(shard.mutex);
    shard.reserve(3 * kKeys, key_of_shard(0, number(1)));
    room = shard.reserve_room(kKeys, key_of_shard(0, number(1)));
  }
  const BucketArray* const array = &index.shard(0).buckets();
  const Kind& buckets = (array->*buckets_of)();
  check(
      buckets.count() > 6 && array->is_compact() == (&buckets == static_cast<const void*>(&array->compact())),
      "the test is made for another array");
  // Five buckets full of keys of one home, and the key to find. The keys wrap around behind the last bucket.
  std::vector<int64_t> keys;
  for (uint64_t i = 0; keys.size() < kKeys + 1; ++i) {
    const int64_t key = key_of_shard(0, number(i));
    if (buckets.seek(key).home == buckets.count() - 2) keys.push_back(key);
  }
  const int64_t sought = keys.back();
  keys.pop_back();
  IndexShard& shard = index.shard(0);
  std::atomic<int> round{0};  // 0: the key may be absent; -1: the end
  std::atomic<uint64_t> looked{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      uint64_t found = 0;
      for (int now; (now = round.load()) >= 0;) {
        const Epochs::Guard guard = epochs.enter();
        IndexReader reader(index);
        for (int i = 0; i < 100; ++i, now = round.load()) {
          const bool is_there = static_cast<bool>(reader.find(sought).ref);
          if (now <= 0 || round.load() != now) continue;
          check(is_there, "a key that moved back was missed");
          ++found;
        }
      }
      looked += found;
    });
  }
  for (int n = 1; n <= rounds; ++n) {
    for (const int64_t key : keys) insert(shard, key);
    insert(shard, sought);
    check(&shard.buckets() == array, "the array was replaced");
    round = n;
    for (const int64_t key : keys) erase(shard, key);
    round = 0;
    erase(shard, sought);
  }
  round = -1;
  for (std::thread& reader : readers) reader.join();
  check(looked > 0, "no reader looked while the key moved");
}

// A key comes and goes, behind its full home or in the stash. A reader that found it absent must learn that
// it came, even while it comes.
void readers_learn_of_a_key_that_comes(bool is_stashed, int rounds) {
  Epochs epochs;
  const Index index(epochs);
  IndexShard& shard = index.shard(0);
  IndexShard::Room room;  // so that the array stays the same
  {
    const MutexLock lock(shard.mutex);
    room = shard.reserve_room(100, key_of_shard(0, 1));
  }
  const CompactBuckets compact = shard.buckets().compact();
  std::vector<int64_t> keys;  // all of one home, so many that the last one lies behind it
  for (uint64_t number = 0; keys.size() < CompactBuckets::kEntries + 1; ++number) {
    const int64_t key = key_of_shard(0, number);
    if (compact.seek(key).home == 3) keys.push_back(key);
  }
  const int64_t coming = is_stashed ? key_of_shard(0, uint64_t{1} << 50) : keys.back();
  keys.pop_back();
  for (const int64_t key : keys) insert(shard, key);
  std::atomic<int> came{0};
  std::atomic<uint64_t> learnt{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      while (came.load() >= 0) {
        const Epochs::Guard guard = epochs.enter();
        IndexReader reader(index);
        for (int i = 0; i < 100; ++i) {
          const IndexHit hit = reader.find(coming);
          if (hit.ref) continue;
          const int before = came.load();
          for (int spin = 0; spin < 100 && came.load() == before; ++spin) {
          }
          if (came.load() <= before) continue;
          check(!hit.is_valid(), "a reader holds on to a key's absence although it came");
          ++learnt;
        }
      }
    });
  }
  for (int n = 1; n <= rounds || learnt == 0; ++n) {  // until a reader has looked while it came
    insert(shard, coming);
    came = n;
    erase(shard, coming);
  }
  came = -1;
  for (std::thread& reader : readers) reader.join();
  check(shard.buckets().is_compact() && shard.buckets().uses_stash() == is_stashed,
        "the key lies where the test doesn't want it");
}

// One thread only, so the thread sanitizer has nothing to find.
TEST(the_index_is_right_in_one_thread) {
  if (kUnderThreadSanitizer) return;
  for (const Keys kind : kAllKinds) {
    for (uint64_t seed = 1; seed <= 3; ++seed) the_index_is_a_map(kind, seed);
  }
  for (const Keys kind : {Keys::kFit, Keys::kSomeFitNot, Keys::kWide}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) changes_while_a_larger_array_is_filled_reach_both(kind, seed);
  }
  shards_grow_at_different_sizes();
  keys_of_any_pattern_lie_near_their_homes();
  for (const Keys kind : {Keys::kFit, Keys::kWide}) {
    for (const double share : {0.02, 0.3, 1.0}) searches_stay_short_over_generations(kind, share);
    memory_comes_back_when_most_entries_are_erased(kind);
  }
}

TEST(readers_without_locks_find_what_is_there) {
  readers_find_what_stays(static_cast<int>(scaled_count(40)));
  const int rounds = static_cast<int>(scaled_count(120'000));
  readers_find_a_key_that_moves_towards_them(&BucketArray::compact, 1, rounds);
  readers_find_a_key_that_moves_towards_them(&BucketArray::wide, int64_t{1} << 35, rounds);
  for (const bool is_stashed : {false, true}) readers_learn_of_a_key_that_comes(is_stashed, 10 * rounds);
}

}  // namespace
}  // namespace embstore
