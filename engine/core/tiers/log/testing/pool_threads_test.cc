// Threads write, erase, rank and read rows while checkpoints are committed, dropped and given up.
#include <array>
#include <atomic>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "pool_table.h"
#include "threads/mutex.h"

namespace embstore::log::testing {
namespace {

const RowLayout kLayout(6, 1);
constexpr int64_t kKeys = 900;
constexpr int64_t kThreads = 3;
constexpr int64_t kRowsForACheckpoint = 5;  // of each thread, that are written when it's pending

// A key's slot and version in one word; 0 where it has no row.
uint64_t packed(Slot slot, int64_t version) {
  return (static_cast<uint64_t>(slot) + 1) << 32 | static_cast<uint64_t>(version);
}
Slot slot_of(uint64_t entry) { return static_cast<Slot>((entry >> 32) - 1); }
int64_t version_of(uint64_t entry) { return static_cast<int64_t>(entry & 0xffffffff); }

// Of the rows that thread t writes for checkpoints alone.
int64_t key_for_checkpoint(int64_t t, int64_t i) { return 1'000'000 + t * 1000 + i; }

struct Shared {
  explicit Shared(PoolTier& pool) : tier(pool) {}

  PoolTier& tier;
  // Taken shared by whoever works, and alone to begin a checkpoint; through the door, or those would never get in.
  SharedMutex gate;
  Mutex door;
  std::array<std::atomic<uint64_t>, kKeys> entries{};
  std::atomic<uint64_t> pending{0};  // the number, until all have written for it
  std::array<std::atomic<uint64_t>, kThreads> written_for{};
  std::atomic<bool> done{false};
  std::atomic<uint64_t> rows_read{0};
};

void write_for_checkpoint(Shared& shared, int64_t t, uint64_t number) {
  RowBatch rows(kLayout);
  rows.resize(1);
  for (int64_t i = 0; i < kRowsForACheckpoint; ++i) {
    if (!shared.tier.try_claim(1)) fail("there's no claim");
    fill_row(rows, 0, key_for_checkpoint(t, i), static_cast<int64_t>(number));
    const Slot slot = shared.tier.write_claimed(rows.header(0), rows.row(0), /*is_live=*/false);
    shared.tier.add_to_checkpoints(number, slot);
  }
  shared.tier.fence();
  shared.written_for[static_cast<size_t>(t)] = number;
}

void change_rows(Shared& shared, int64_t t, std::mt19937_64& random, int64_t version) {
  std::vector<int64_t> keys;
  for (int64_t key = t; key < kKeys; key += kThreads) {
    if (random() % 20 == 0) keys.push_back(key);
  }
  if (keys.empty()) return;
  RowBatch rows(kLayout);
  rows.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) fill_row(rows, i, keys[i], version);
  std::vector<Slot> slots(keys.size());
  const bool claimed = random() % 2 == 0 && shared.tier.try_claim(keys.size());
  if (claimed) {
    for (size_t i = 0; i < keys.size(); ++i) {
      slots[i] = shared.tier.write_claimed(rows.header(i), rows.row(i), /*is_live=*/true);
    }
    shared.tier.fence();
  } else {
    shared.tier.write(rows, slots);
  }
  std::vector<Place> replaced;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool removed = random() % 8 == 0;
    const uint64_t old =
        shared.entries[static_cast<size_t>(keys[i])].exchange(removed ? 0 : packed(slots[i], version));
    if (old != 0) replaced.push_back({keys[i], slot_of(old)});
    if (removed) {
      replaced.push_back({keys[i], slots[i]});
    } else {
      shared.tier.was_copy(slots[i], rows.header(i));
    }
  }
  shared.tier.erase(replaced);
}

void read_rows(Shared& shared, std::mt19937_64& random) {
  std::vector<Place> places;
  std::vector<uint64_t> entries;
  for (int i = 0; i < 40; ++i) {
    const auto key = static_cast<int64_t>(random() % kKeys);
    const uint64_t entry = shared.entries[static_cast<size_t>(key)];
    if (entry == 0) continue;
    places.push_back({key, slot_of(entry)});
    entries.push_back(entry);
  }
  RowBatch rows(kLayout);
  rows.set_places(places);
  shared.tier.read_rows(rows, RowPart::kAll);
  for (size_t i = 0; i < places.size(); ++i) {
    // Erased meanwhile, it may be anything.
    if (shared.entries[static_cast<size_t>(places[i].key)] != entries[i]) continue;
    check(!rows.is_damaged(i), "a row that is there is called damaged");
    const RowHeader& header = rows.header(i);
    check(header.key == places[i].key && header.version == version_of(entries[i]), "another row was read");
    ++shared.rows_read;
  }
}

void work(Shared& shared, int64_t t) {
  std::mt19937_64 random(static_cast<uint64_t>(t) + 5);
  for (int64_t version = 1; !shared.done; ++version) {
    {
      const MutexLock through(shared.door);
    }
    const SharedLock lock(shared.gate);
    const uint64_t pending = shared.pending;
    if (pending != 0 && shared.written_for[static_cast<size_t>(t)] != pending) {
      write_for_checkpoint(shared, t, pending);
    }
    change_rows(shared, t, random, version);
    read_rows(shared, random);
  }
}

TEST(rows_and_checkpoints_from_many_threads) {
  constexpr uint64_t kCheckpoints = 150;
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, PoolTier::kHeadroomSlots + 8000);
  Shared shared(*pool.tier);
  std::vector<std::jthread> threads;
  for (int64_t t = 0; t < kThreads; ++t) threads.emplace_back([&shared, t] { work(shared, t); });
  Versions last;
  uint64_t kept = 0;
  for (uint64_t number = 1; number <= kCheckpoints; ++number) {
    Versions versions;
    {
      const MutexLock door(shared.door);
      const ExclusiveLock alone(shared.gate);
      check(pool.checkpoints->begin({}) == number, "another number is given");
      for (int64_t key = 0; key < kKeys; ++key) {
        const uint64_t entry = shared.entries[static_cast<size_t>(key)];
        if (entry != 0) versions.emplace(key, version_of(entry));
      }
      shared.pending = number;
    }
    const auto all_wrote = [&] {
      bool all = true;
      for (const auto& of : shared.written_for) all = all && of == number;
      return all;
    };
    // Some are given up, while threads write for them.
    if (number % 5 == 3) {
      pool.checkpoints->drop(number);
      shared.pending = 0;
      // None writes for it any more.
      const MutexLock door(shared.door);
      const ExclusiveLock alone(shared.gate);
      continue;
    }
    while (!all_wrote()) std::this_thread::yield();
    shared.pending = 0;
    pool.checkpoints->commit(number, id_of(number));
    for (int64_t t = 0; t < kThreads; ++t) {
      for (int64_t i = 0; i < kRowsForACheckpoint; ++i) {
        versions.emplace(key_for_checkpoint(t, i), static_cast<int64_t>(number));
      }
    }
    check(pool.checkpoints->kept().back().rows == versions.size(), "a checkpoint has another number of rows");
    if (kept != 0) pool.checkpoints->drop(kept);
    kept = number;
    last = std::move(versions);
  }
  shared.done = true;
  threads.clear();

  for (int64_t key = 0; key < kKeys; ++key) {
    const uint64_t entry = shared.entries[static_cast<size_t>(key)];
    if (entry != 0) pool.index[key] = {slot_of(entry), version_of(entry)};
  }
  pool.check_all();
  check(pool.checkpoints->kept().size() == 1, "dropped checkpoints are there");
  pool.reopen();
  pool.restore(kept, 3);
  check(versions_of(pool.index) == last, "other rows came back");
  pool.check_all();
  pool.checkpoints->drop(kept);
  pool.expect_taken(last.size());
  check(shared.rows_read > 1000, "hardly anything was read");
  std::printf("%llu rows read\n", static_cast<unsigned long long>(shared.rows_read.load()));
}

// Of a slot that two take the last references from at once, one must free it, and only one.
TEST(every_slot_is_freed_once) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 2000);
  for (uint64_t number = 1; number <= 300; ++number) {
    pool.write(keys_from(0, 1000), static_cast<int64_t>(number));
    check(pool.checkpoint() == number, "another number is given");
    {
      const std::jthread dropping([&] { pool.checkpoints->drop(number); });
      for (int64_t first = 0; first < 1000; first += 10) pool.erase(keys_from(first, 10));
    }
    pool.expect_taken(0);
  }
}

}  // namespace

}  // namespace embstore::log::testing
