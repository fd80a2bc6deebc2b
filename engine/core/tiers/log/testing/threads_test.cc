// Runs readers, writers, erasers and compaction at once, as a table uses the tier, while checkpoints are
// committed and dropped. Meant to be run under the thread and address sanitizers, too.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "table.h"
#include "threads/apply_gate.h"

namespace embstore::log::testing {
namespace {

constexpr int64_t kKeys = 3000;
constexpr size_t kWriters = 2;
constexpr int64_t kRowsForACheckpoint = 5;  // that each writer adds to a pending checkpoint of a pool

// Keys are split over shards. A thread that changes a reference holds its shard's mutex, and erases under it;
// a reader holds nothing while it reads, and checks afterwards that the reference is still the same.
class ShardedIndex final : public Relocator {
 public:
  struct Where {
    Slot slot = 0;
    int64_t version = -1;  // -1: not in the tier
    int64_t last_version = -1;
  };
  static constexpr size_t kShards = 8;

  explicit ShardedIndex(size_t keys) : entries_(keys) {}

  void relocate(std::span<Relocation> rows) override {
    for (Relocation& row : rows) {
      const MutexLock lock(mutex(row.key));
      Where& entry = entries_[static_cast<size_t>(row.key)];
      row.done = entry.version >= 0 && entry.slot == row.from;
      if (row.done) entry.slot = row.to;
    }
  }
  Where find(int64_t key) const {
    const MutexLock lock(mutex(key));
    return entries_[static_cast<size_t>(key)];
  }
  // Takes the row out, and erases its place under the shard's mutex.
  void promote(int64_t key, Tier& tier) {
    const MutexLock lock(mutex(key));
    Where& entry = entries_[static_cast<size_t>(key)];
    if (entry.version < 0) return;
    const Place place{key, entry.slot};
    entry.version = -1;
    tier.erase(std::span(&place, 1));
  }
  // Returns false if another thread was faster; then nothing refers to the new place.
  bool demote(int64_t key, Slot slot, int64_t version) {
    const MutexLock lock(mutex(key));
    Where& entry = entries_[static_cast<size_t>(key)];
    if (entry.version >= 0 || entry.last_version >= version) return false;
    entry = {slot, version, version};
    return true;
  }
  Versions versions() const {
    Versions versions;
    for (int64_t key = 0; key < kKeys; ++key) {
      if (const Where entry = find(key); entry.version >= 0) versions.emplace(key, entry.version);
    }
    return versions;
  }

 private:
  Mutex& mutex(int64_t key) const { return mutexes_[static_cast<size_t>(key) % kShards]; }
  mutable Mutex mutexes_[kShards];
  std::vector<Where> entries_;  // each under its shard's mutex
};

// Returns the key of a row that writer w writes for checkpoints only.
int64_t key_for_checkpoint(size_t w, int64_t i) { return 1'000'000 + static_cast<int64_t>(w) * 1000 + i; }

struct Shared {
  Shared(Table& of, ShardedIndex& where)
      : table(of),
        tier(of.rows()),
        pool(dynamic_cast<PoolTier*>(&tier)),
        files(dynamic_cast<SsdHashTier*>(&tier)),
        index(where) {}

  Table& table;
  Tier& tier;
  PoolTier* const pool;  // null for files
  SsdHashTier* const files;
  ShardedIndex& index;
  ApplyGate gate;                    // held shared to change rows, and alone to begin a checkpoint
  std::atomic<uint64_t> pending{0};  // its number, until all writers have written for it
  std::array<std::atomic<uint64_t>, kWriters> written_for{};
  std::atomic<int64_t> next_version{0};
  std::atomic<size_t> rows_read{0};
  std::atomic<bool> stop{false};
};

void write_for_checkpoint(Shared& shared, size_t w, uint64_t number) {
  RowBatch rows(kLayout);
  rows.resize(1);
  for (int64_t i = 0; i < kRowsForACheckpoint; ++i) {
    if (!shared.pool->try_claim(1)) fail("there's no claim");
    fill_row(rows, 0, key_for_checkpoint(w, i), static_cast<int64_t>(number));
    const Slot slot = shared.pool->write_claimed(rows.header(0), rows.row(0), /*is_live=*/false);
    shared.pool->add_to_checkpoints(number, slot);
  }
  shared.pool->fence();
  shared.written_for[w] = number;
}

void write_some(Shared& shared, std::mt19937_64& random, size_t w) {
  const ApplyGate::Shared lock(shared.gate);
  const uint64_t pending = shared.pending;
  if (shared.pool != nullptr && pending != 0 && shared.written_for[w] != pending) {
    write_for_checkpoint(shared, w, pending);
  }
  const int64_t version = shared.next_version++;
  std::vector<int64_t> keys;
  for (uint64_t i = random() % 100; i > 0; --i) keys.push_back(static_cast<int64_t>(random() % kKeys));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (const int64_t key : keys) shared.index.promote(key, shared.tier);
  RowBatch rows(kLayout);
  rows.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) fill_row(rows, i, keys[i], version);
  std::vector<Slot> slots(keys.size());
  if (shared.pool != nullptr && random() % 2 == 0 && shared.pool->try_claim(keys.size())) {
    for (size_t i = 0; i < keys.size(); ++i) {
      slots[i] = shared.pool->write_claimed(rows.header(i), rows.row(i), /*is_live=*/true);
    }
    shared.pool->fence();
  } else {
    shared.tier.write(rows, slots);
  }
  std::vector<Place> refused;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (shared.pool != nullptr) shared.pool->promote_copy(slots[i], rows.header(i));
    if (!shared.index.demote(keys[i], slots[i], version)) refused.push_back({keys[i], slots[i]});
  }
  shared.tier.erase(refused);
}

void erase_some(Shared& shared, std::mt19937_64& random) {
  {
    const ApplyGate::Shared lock(shared.gate);
    for (int i = 0; i < 20; ++i) shared.index.promote(static_cast<int64_t>(random() % kKeys), shared.tier);
  }
  if (shared.files != nullptr) {
    shared.files->compact();
    if (random() % 8 == 0) shared.files->drain();
    shared.files->detailed_stats();
  }
  std::this_thread::yield();
}

void read_some(Shared& shared, std::mt19937_64& random, RowBatch& rows) {
  std::vector<Place> places;
  std::vector<int64_t> versions;
  for (int i = 0; i < 200; ++i) {
    const auto key = static_cast<int64_t>(random() % kKeys);
    const ShardedIndex::Where entry = shared.index.find(key);
    if (entry.version < 0) continue;
    places.push_back({key, entry.slot});
    versions.push_back(entry.version);
  }
  rows.set_places(places);
  shared.tier.read_rows(rows, RowPart::kAll);
  for (size_t i = 0; i < places.size(); ++i) {
    // If the row was erased meanwhile, it may be anything.
    const ShardedIndex::Where now = shared.index.find(places[i].key);
    if (now.version != versions[i] || now.slot != places[i].slot) continue;
    check(!rows.is_damaged(i), "a row that is there is called damaged");
    // A pool returns the row's current rank, which a writer may be about to set.
    const RowHeader& header = rows.header(i);
    if (shared.pool == nullptr) check_row(rows, i, places[i].key, versions[i]);
    check(header.key == places[i].key && header.version == versions[i], "another row was read");
    ++shared.rows_read;
  }
}

// Makes the next checkpoint, or drops it while other threads write for it. Returns its rows; nullopt if it
// was dropped.
std::optional<Versions> make_checkpoint(Shared& shared, bool gives_up) {
  Versions versions;
  uint64_t number = 0;
  const auto alone = [&](const auto& work) {
    const ApplyGate::Alone lock(shared.gate);
    work();
  };
  alone([&] {
    number = shared.table.begin();
    versions = shared.index.versions();
    shared.pending = number;
  });
  if (gives_up) {
    shared.table.checkpoints->drop(number);
    shared.pending = 0;
    alone([] {});  // no thread writes for it any more
    return std::nullopt;
  }
  if (shared.pool != nullptr) {
    const auto wrote = [&](const auto& of) { return of == number; };
    while (!std::all_of(shared.written_for.begin(), shared.written_for.end(), wrote))
      std::this_thread::yield();
    for (size_t w = 0; w < kWriters; ++w) {
      for (int64_t i = 0; i < kRowsForACheckpoint; ++i) {
        versions.emplace(key_for_checkpoint(w, i), static_cast<int64_t>(number));
      }
    }
  }
  shared.pending = 0;
  shared.table.commit(number);
  check(shared.table.checkpoints->kept().back().rows == versions.size(), "a checkpoint has other rows");
  return versions;
}

void run(TableSite site, uint64_t checkpoints) {
  const TemporaryDirectory directory;
  UnwaitingCalls calls;
  site.root = directory.path();
  site.calls = &calls;
  ShardedIndex index(kKeys);  // outlives the tier's compaction thread
  site.relocator = &index;
  std::unique_ptr<Table> table = site.open();
  Shared shared(*table, index);
  std::vector<std::jthread> threads;
  const auto start = [&](auto work) {
    threads.emplace_back([&, work, seed = threads.size()] {
      std::mt19937_64 random(seed);
      try {
        while (!shared.stop) work(random);
      } catch (const std::exception& error) {
        fail(error.what());
      }
    });
  };
  for (size_t w = 0; w < kWriters; ++w) {
    start([&, w](std::mt19937_64& random) { write_some(shared, random, w); });
    start([&](std::mt19937_64& random) {
      RowBatch rows(kLayout);
      read_some(shared, random, rows);
    });
  }
  start([&](std::mt19937_64& random) { erase_some(shared, random); });
  Versions last;
  uint64_t last_number = 0;
  for (uint64_t i = 1; i <= checkpoints; ++i) {
    const std::optional<Versions> versions = make_checkpoint(shared, /*gives_up=*/i % 5 == 3);
    if (!versions) continue;
    if (last_number != 0) table->checkpoints->drop(last_number);
    last = *versions;
    last_number = table->kept().back();
  }
  const auto did_enough = [&] {
    return shared.next_version >= 1500 && shared.rows_read > 1000 &&
           (shared.files == nullptr || shared.files->detailed_stats().compacted_files >= 50);
  };
  for (int waited = 0; waited < 400 && !did_enough(); ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  shared.stop = true;
  threads.clear();
  check(
      shared.rows_read > 0 && (shared.files == nullptr || shared.files->detailed_stats().compacted_files > 0),
      "the threads did nothing");
  table->check_space();
  const Versions versions = index.versions();
  check(table->rows().stats().rows == versions.size(), "the tier counts other rows");
  RowBatch rows(kLayout);
  for (const auto& [key, version] : versions) {
    table->rows().read(std::vector{Place{key, index.find(key).slot}}, rows);
    check_row(rows, 0, key, version);
  }
  if (checkpoints == 0) return;
  table.reset();
  site.relocator = nullptr;
  table = site.open();
  check(table->kept() == std::vector<uint64_t>{last_number}, "other checkpoints are kept");
  table->restore(last_number, 3);
  check(table->versions() == last, "other rows came back");
  table->check_rows();
  table->checkpoints->drop(last_number);
  table->check_space();
}

TableSite files_by(IoScheme scheme, SsdHashOptions options) {
  options.io_scheme = scheme;
  return {.is_pool = false, .root = {}, .options = options};
}

TEST(threads_on_a_pool) { run({.is_pool = true, .root = {}}, 150); }
TEST(threads_on_files_by_what_is_quickest) {
  run(files_by(IoScheme::kAuto, small_files_for_checkpoints()), 30);
}
TEST(threads_on_files_by_pread) { run(files_by(IoScheme::kPread, small_files()), 0); }
TEST(threads_on_files_by_io_uring) { run(files_by(IoScheme::kIoUring, small_files()), 0); }
TEST(threads_on_files_past_the_page_cache) {
  SsdHashOptions options = small_files();
  options.direct = true;
  run(files_by(IoScheme::kAuto, options), 0);
}
TEST(threads_on_files_with_a_compaction_thread) {
  for (const uint64_t checkpoints : {0, 30}) {
    SsdHashOptions options = checkpoints == 0 ? small_files() : small_files_for_checkpoints();
    options.compaction = CompactionMode::kOwnThread;
    run(files_by(IoScheme::kAuto, options), checkpoints);
  }
}

// If two threads take the last references to a slot away at once, exactly one of them must free it.
TEST(every_slot_is_freed_once) {
  const TemporaryDirectory directory;
  UnwaitingCalls calls;
  PoolTable pool(directory / "var", kLayout, 2000, libpmem(), calls);
  for (uint64_t number = 1; number <= 1000; ++number) {
    pool.write(0, 1000, static_cast<int64_t>(number));
    pool.checkpoint();
    std::vector<Place> places = pool.index.places();
    // In the order in which a drop frees them: the last slots first.
    std::sort(places.begin(), places.end(), [](auto a, auto b) { return a.slot > b.slot; });
    pool.index.clear();
    std::atomic<bool> is_dropping{false};
    {
      const std::jthread dropping([&] {
        is_dropping = true;
        pool.tier->drop_checkpoint(number);
      });
      while (!is_dropping) std::this_thread::yield();
      pool.tier->erase(places);
    }
    pool.checkpoints->drop(number);
    pool.check_taken(0);
  }
}

}  // namespace
}  // namespace embstore::log::testing
