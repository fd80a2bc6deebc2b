// The index against a plain map, whatever is inserted, erased and reserved; what a search costs after many
// generations of keys; and readers beside writers, who must never miss a key that is there.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/index/index_reader.h"
#include "testing/tests.h"

namespace embstore {
namespace {

uint64_t capacity_bytes_at_most(uint64_t entries) { return entries * 23 + 16 * 64; }

// A shard, and a map of what must be in it. Keys of one shard, some of which share few homes.
class ModelledShard {
 public:
  explicit ModelledShard(uint64_t seed, size_t keys = 3000) : random_(seed) {
    for (int64_t key = 0; keys_.size() < keys; ++key) {
      const KeyHash hash = hash_key(key);
      // Half of the keys have their homes in the first and the last part of the array.
      const auto place = static_cast<uint32_t>(hash);
      const bool crowded = place < (1u << 27) || place > 0xffffffffu - (1u << 27);
      if (shard_of(hash) == kShard && (crowded || keys_.size() % 2 == 0)) keys_.push_back(key);
    }
    keys_.push_back(std::numeric_limits<int64_t>::min());
    keys_.push_back(std::numeric_limits<int64_t>::max());
    std::erase_if(keys_, [](int64_t key) { return shard_of(hash_key(key)) != kShard; });
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
    shard_.reserve(1);
    insert_at(key, nullptr);
  }
  void insert_some() {
    const uint64_t count = 1 + below(40);
    const MutexLock lock(shard_.mutex);
    shard_.reserve(count);
    const BucketArray* const buckets = &shard_.buckets();
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t key = any_key();
      if (!refs_.contains(key)) insert_at(key, nullptr);
    }
    check(buckets == &shard_.buckets(), "an insert moved the buckets though room was reserved");
  }
  // Of several rooms at once; others insert and erase before all of it is used.
  void reserve_room() {
    const MutexLock lock(shard_.mutex);
    rooms_.push_back(shard_.reserve_room(below(60)));
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
    shard_.set_ref(shard_.entry(hash_key(key), key), known->second);
  }
  void erase() {
    const int64_t key = any_key();
    const MutexLock lock(shard_.mutex);
    const IndexEntry entry = shard_.entry(hash_key(key), key);
    check(static_cast<bool>(entry) == (refs_.erase(key) == 1), "a key is found that isn't there, or isn't");
    if (entry) shard_.erase(entry);
  }

  // What a reader found before an operation is void after it, or still so.
  template <class Operation>
  void check_what_was_found_before(Operation operation) {
    const Epochs::Guard guard = epochs_.enter();
    IndexReader reader(index_);
    std::vector<IndexHit> hits;
    for (const int64_t key : keys_) hits.push_back(reader.find(hash_key(key), key));
    operation();
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto known = refs_.find(keys_[i]);
      const RowRef now = known == refs_.end() ? RowRef() : known->second;
      check(hits[i].ref == now || !hits[i].holds(), "a reader accepts what is no longer so");
    }
  }

  // Reader and writer find just what is there, and the array says neither too much nor too little of what
  // was passed on.
  void check_all() {
    const Epochs::Guard guard = epochs_.enter();
    IndexReader reader(index_);
    const MutexLock lock(shard_.mutex);
    for (const int64_t key : keys_) {
      const auto known = refs_.find(key);
      const RowRef expected = known == refs_.end() ? RowRef() : known->second;
      const IndexEntry entry = shard_.entry(hash_key(key), key);
      check((entry ? entry.ref() : RowRef()) == expected, "a writer found something else");
      const IndexHit hit = reader.find(hash_key(key), key);
      check(hit.ref == expected && hit.holds(), "a reader found something else");
    }
    check(shard_.entries() == refs_.size(), "the entries are counted wrongly");
    uint64_t visited = 0;
    shard_.for_each([&](int64_t key, RowRef ref) {
      ++visited;
      const auto known = refs_.find(key);
      check(known != refs_.end() && known->second == ref, "an entry is visited that isn't there");
    });
    check(visited == refs_.size(), "an entry wasn't visited, or twice");
    check_marks();
    // Room that is held is there: all of it at once leaves the array no fuller than it may be.
    uint64_t held = 0;
    for (const IndexShard::Room& room : rooms_) held += room.left();
    check(4 * (shard_.entries() + held) <= 3 * Bucket::kEntries * uint64_t{shard_.buckets().count()},
          "room that was reserved isn't there");
  }

 private:
  static constexpr int kShard = 5;

  int64_t any_key() { return keys_[below(keys_.size())]; }
  RowRef next_ref() { return {static_cast<uint32_t>(below(4)), next_slot_++}; }

  void insert_at(int64_t key, IndexShard::Room* room) REQUIRES(shard_.mutex) {
    const RowRef ref = next_ref();
    const KeyHash hash = hash_key(key);
    const IndexEntry entry =
        room != nullptr ? shard_.insert(hash, key, ref, *room) : shard_.insert(hash, key, ref);
    check(entry.ref() == ref && entry.key() == key, "an insert returned another entry");
    refs_[key] = ref;
  }

  void check_marks() REQUIRES(shard_.mutex) {
    const BucketArray& buckets = shard_.buckets();
    std::vector<bool> needed(buckets.count());
    for (uint32_t i = 0; i < buckets.count(); ++i) {
      for (int e = 0; e < Bucket::kEntries; ++e) {
        if (!buckets[i].ref(e)) continue;
        const uint32_t home = home_bucket(hash_key(buckets[i].keys[e].load()), buckets.count());
        for (uint32_t passed = home; passed != i; passed = buckets.next(passed)) needed[passed] = true;
      }
    }
    for (uint32_t i = 0; i < buckets.count(); ++i) {
      const bool marked = (buckets[i].guard.state.load() & Bucket::kOverflowed) != 0;
      check(marked || !needed[i], "a bucket that passed a key on isn't marked");
      check(needed[i] || !marked, "a bucket is marked that passes no key on");
      check(!marked || buckets[i].find_empty() < 0, "a key lies further on than it must");
    }
  }

  std::mt19937_64 random_;
  Epochs epochs_;
  Index index_{epochs_};
  IndexShard& shard_ = index_.shard(kShard);
  std::vector<int64_t> keys_;
  std::unordered_map<int64_t, RowRef> refs_;
  std::vector<IndexShard::Room> rooms_;  // given back before the shard goes
  Slot next_slot_ = 0;
};

// Keys are compared by halves: those of one bucket share them here, and some were removed.
TEST(a_bucket_tells_keys_apart_by_both_halves) {
  static constexpr std::array<uint32_t, 4> kHalves = {0, 1, 0x80000000, 0xffffffff};
  std::mt19937_64 random(5);
  const auto any_key = [&random] {
    const uint64_t upper = kHalves[random() % kHalves.size()];
    return static_cast<int64_t>(upper << 32 | kHalves[random() % kHalves.size()]);
  };
  for (int round = 0; round < 20'000; ++round) {
    Bucket bucket{};
    for (int e = 0; e < Bucket::kEntries; ++e) {
      bucket.keys[e].store(any_key());
      bucket.refs[e].store(random() % 4 == 0 ? 0 : RowRef(0, static_cast<Slot>(e)).raw());
    }
    const int64_t sought = any_key();
    unsigned matches = 0;
    int found = -1;
    for (int e = Bucket::kEntries - 1; e >= 0; --e) {
      if (bucket.keys[e].load() != sought) continue;
      matches |= 1u << e;
      if (bucket.ref(e)) found = e;
    }
    check(bucket.matches(sought) == matches, "a bucket takes another key for the one that is sought");
    check(bucket.find(sought) == found, "a bucket finds a removed entry, or not the first that is there");
  }
}

void the_index_is_a_map(uint64_t seed) {
  ModelledShard shard(seed);
  for (int step = 0; step < 12'000; ++step) {
    // It fills and empties by turns.
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
}

// At each size it stays for a while where two arrays are kept alike.
void what_changes_while_a_larger_array_is_filled_changes_in_both(uint64_t seed) {
  ModelledShard shard(seed, 40'000);
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

// One batch seldom waits for the growth of several.
void shards_grow_at_different_sizes() {
  Epochs epochs;
  const Index index(epochs);
  std::array<const BucketArray*, kShards> arrays{};
  int most = 0;
  int all = 0;
  for (int64_t key = 0; key < 400'000; ++key) {
    const KeyHash hash = hash_key(key);
    IndexShard& shard = index.shard(shard_of(hash));
    const MutexLock lock(shard.mutex);
    shard.reserve(1);
    shard.insert(hash, key, RowRef(0, 7));
    if (key < 100'000 || key % 1000 != 0) continue;
    int grown = 0;
    for (int s = 0; s < kShards; ++s) {
      const BucketArray* const array = &index.shard(s).buckets();
      grown += std::exchange(arrays[static_cast<size_t>(s)], array) != array ? 1 : 0;
    }
    if (key == 100'000) continue;  // which are the first that were seen
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
    const KeyHash hash = hash_key(key);
    IndexShard& shard = index_.shard(shard_of(hash));
    const MutexLock lock(shard.mutex);
    shard.reserve(1);
    shard.insert(hash, key, RowRef(0, 7));
  }
  void erase(int64_t key) {
    const KeyHash hash = hash_key(key);
    IndexShard& shard = index_.shard(shard_of(hash));
    const MutexLock lock(shard.mutex);
    const IndexEntry entry = shard.entry(hash, key);
    check(static_cast<bool>(entry), "a key is missing");
    shard.erase(entry);
  }

  // How many buckets a search for an absent key looks at: on average over its homes.
  double buckets_searched() {
    uint64_t homes = 0;
    uint64_t searched = 0;
    for (int s = 0; s < kShards; ++s) {
      const BucketArray& buckets = index_.shard(s).buckets();
      homes += buckets.count();
      for (uint32_t home = 0; home < buckets.count(); ++home) {
        uint64_t run = 1;
        for (uint32_t i = home; (buckets[i].guard.state.load() & Bucket::kOverflowed) != 0; ++run) {
          i = buckets.next(i);
          check(run < buckets.count(), "a search never ends");
        }
        searched += run;
      }
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

void searches_stay_short_over_generations(double share_that_goes) {
  constexpr size_t kRows = 20'000;
  std::mt19937_64 random(3);
  const auto any_key = [&random] { return static_cast<int64_t>(random()); };
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

void memory_comes_back_where_most_entries_went() {
  Generations index;
  constexpr int64_t kRows = 200'000;
  for (int64_t key = 0; key < kRows; ++key) index.insert(key);
  const uint64_t full = index.size_bytes();
  check(full <= capacity_bytes_at_most(kRows), "an entry takes more than 23 bytes");
  check(full >= 17 * kRows, "an index is fuller than its searches allow");
  for (int64_t key = kRows / 20; key < kRows; ++key) index.erase(key);
  for (int64_t key = kRows; key < kRows + 1000; ++key) index.insert(key);
  check(index.size_bytes() < full / 5, "an index of few entries is as large as it was");
  for (int64_t key = 0; key < kRows / 20; ++key) index.erase(key);
}

TEST(room_is_kept_whatever_others_insert) {
  Epochs epochs;
  IndexShard shard(epochs);
  IndexShard::Room room;
  {
    const MutexLock lock(shard.mutex);
    room = shard.reserve_room(1000);
  }
  std::vector<std::thread> others;
  std::atomic<int64_t> next_key{1'000'000};
  for (int t = 0; t < 3; ++t) {
    others.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        const int64_t key = next_key++;
        const MutexLock lock(shard.mutex);
        shard.reserve(1);
        shard.insert(hash_key(key), key, RowRef(0, 1));
      }
    });
  }
  for (int64_t key = 0; key < 900; ++key) {
    const MutexLock lock(shard.mutex);
    const BucketArray* const buckets = &shard.buckets();
    shard.insert(hash_key(key), key, RowRef(0, 1), room);
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
  // What was given back can be had again: without growth, as often as one likes.
  room = {};
  for (int i = 0; i < 1000; ++i) {
    const MutexLock lock(shard.mutex);
    IndexShard::Room again;
    again = shard.reserve_room(100);
    for (int64_t n = 0; n < 100; ++n) {
      const int64_t key = -1 - n;
      shard.insert(hash_key(key), key, RowRef(0, 1), again);
    }
    for (int64_t n = 0; n < 100; ++n) shard.erase(shard.entry(hash_key(-1 - n), -1 - n));
  }
  for (int i = 0; i < 1000; ++i) {
    IndexShard::Room again;  // outlives the lock, which it takes in the end
    const MutexLock lock(shard.mutex);
    again = shard.reserve_room(100);
  }
  check(size_bytes() == before, "room that is given back is kept");
}

// Writers erase and insert keys around others that stay, which move about by that and by growing and shrinking
// arrays. Each key that stays names itself by its slot.
void readers_find_what_stays(int rounds) {
  Epochs epochs;
  const Index index(epochs);
  constexpr int64_t kStaying = 2000;
  constexpr int64_t kGoing = 20'000;  // keys from kStaying on, a part of them at a time
  const auto insert = [&index](int64_t key) {
    const KeyHash hash = hash_key(key);
    IndexShard& shard = index.shard(shard_of(hash));
    const MutexLock lock(shard.mutex);
    if (shard.entry(hash, key)) return;
    shard.reserve(1);
    shard.insert(hash, key, RowRef(0, static_cast<Slot>(key)));
  };
  const auto erase = [&index](int64_t key) {
    const KeyHash hash = hash_key(key);
    IndexShard& shard = index.shard(shard_of(hash));
    const MutexLock lock(shard.mutex);
    if (const IndexEntry entry = shard.entry(hash, key)) shard.erase(entry);
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
          const auto key = static_cast<int64_t>(random() % kStaying);
          const IndexHit hit = reader.find(hash_key(key), key);
          check(static_cast<bool>(hit.ref), "a key that stays isn't found");
          if (!hit.holds()) continue;
          check(hit.ref == RowRef(0, static_cast<Slot>(key)), "a reader accepted another key's row");
          ++held;
        }
      }
      found += held;
    });
  }
  std::mt19937_64 random(9);
  for (int round = 0; round < rounds; ++round) {
    // By turns few and many, so that arrays grow and shrink; in between, one out and one in.
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

// A key that was passed on by full buckets moves back, bucket by bucket, as others are erased in front of it.
// Whoever looks for it meanwhile, and walks towards it, must not be passed by it.
void readers_find_a_key_that_moves_towards_them(int rounds) {
  Epochs epochs;
  const Index index(epochs);
  constexpr uint32_t kBuckets = 8;
  // Five buckets full of keys of one home, and the one that is looked for.
  std::vector<int64_t> keys;
  for (int64_t key = 0; keys.size() < 5 * Bucket::kEntries + 1; ++key) {
    const KeyHash hash = hash_key(key);
    if (shard_of(hash) == 0 && home_bucket(hash, kBuckets) == 6) keys.push_back(key);
  }
  const int64_t sought = keys.back();
  keys.pop_back();
  IndexShard& shard = index.shard(0);
  const auto insert = [&shard](int64_t key) {
    const MutexLock lock(shard.mutex);
    shard.reserve(1);
    shard.insert(hash_key(key), key, RowRef(0, 1));
  };
  const auto erase = [&shard](int64_t key) {
    const MutexLock lock(shard.mutex);
    shard.erase(shard.entry(hash_key(key), key));
  };
  std::atomic<int> round{0};  // 0: the key needn't be there; -1: the end
  std::atomic<uint64_t> looked{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      uint64_t found = 0;
      for (int now; (now = round.load()) >= 0;) {
        const Epochs::Guard guard = epochs.enter();
        IndexReader reader(index);
        for (int i = 0; i < 100; ++i, now = round.load()) {
          const bool is_there = static_cast<bool>(reader.find(hash_key(sought), sought).ref);
          if (now <= 0 || round.load() != now) continue;
          check(is_there, "a key that moved back was missed");
          ++found;
        }
      }
      looked += found;
    });
  }
  for (int n = 1; n <= rounds; ++n) {
    for (const int64_t key : keys) insert(key);
    insert(sought);
    check(shard.buckets().count() == kBuckets, "the test is made for another number of buckets");
    round = n;
    for (const int64_t key : keys) erase(key);
    round = 0;
    erase(sought);
  }
  round = -1;
  for (std::thread& reader : readers) reader.join();
  check(looked > 0, "no reader looked while the key moved");
}

// By one thread: the thread sanitizer has nothing to see.
TEST(what_one_thread_does_is_right) {
  if (kUnderThreadSanitizer) return;
  for (uint64_t seed = 1; seed <= 3; ++seed) the_index_is_a_map(seed);
  for (uint64_t seed = 1; seed <= 3; ++seed)
    what_changes_while_a_larger_array_is_filled_changes_in_both(seed);
  shards_grow_at_different_sizes();
  for (const double share : {0.02, 0.3, 1.0}) searches_stay_short_over_generations(share);
  memory_comes_back_where_most_entries_went();
}

TEST(readers_without_locks_find_what_is_there) {
  readers_find_what_stays(static_cast<int>(scenes(40)));
  readers_find_a_key_that_moves_towards_them(static_cast<int>(scenes(240'000)));
}

}  // namespace
}  // namespace embstore
