// Readers, writers, erasers and compaction at once, as a table uses the tier: made to be run under the
// thread and address sanitizers too.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "file_table.h"
#include "threads/mutex.h"

namespace embstore::log::testing {
namespace {

// Keys are split over shards. Whoever changes a reference holds its shard's mutex, and erases under it;
// readers hold nothing while they read, and look afterwards whether the reference is still the same.
class ShardedIndex final : public Relocator {
 public:
  struct Entry {
    Slot slot = 0;
    int64_t version = -1;  // -1: not in the tier
    int64_t last_version = -1;
  };
  static constexpr size_t kShards = 8;

  explicit ShardedIndex(size_t keys) : entries_(keys) {}

  void relocate(std::span<Relocation> rows) override {
    for (Relocation& row : rows) {
      const ExclusiveLock lock(mutex(row.key));
      Entry& entry = entries_[static_cast<size_t>(row.key)];
      row.done = entry.version >= 0 && entry.slot == row.from;
      if (row.done) entry.slot = row.to;
    }
  }
  Entry find(int64_t key) const {
    const SharedLock lock(mutex(key));
    return entries_[static_cast<size_t>(key)];
  }
  // The row is taken out; the place is erased under the shard's mutex.
  void promote(int64_t key, SsdHashTier& tier) {
    const ExclusiveLock lock(mutex(key));
    Entry& entry = entries_[static_cast<size_t>(key)];
    if (entry.version < 0) return;
    const Place place{key, entry.slot};
    entry.version = -1;
    tier.erase(std::span(&place, 1));
  }
  // False where another thread was faster; then the new place is nobody's.
  bool demote(int64_t key, Slot slot, int64_t version) {
    const ExclusiveLock lock(mutex(key));
    Entry& entry = entries_[static_cast<size_t>(key)];
    if (entry.version >= 0 || entry.last_version >= version) return false;
    entry = {slot, version, version};
    return true;
  }
  size_t size() const { return entries_.size(); }

 private:
  SharedMutex& mutex(int64_t key) const { return mutexes_[static_cast<size_t>(key) % kShards]; }
  mutable SharedMutex mutexes_[kShards];
  std::vector<Entry> entries_;  // each under its shard's mutex
};

constexpr int64_t kKeys = 3000;

void write_some(SsdHashTier& tier, ShardedIndex& index, std::mt19937_64& random,
                std::atomic<int64_t>& next_version) {
  const int64_t version = next_version++;
  std::vector<int64_t> keys;
  for (uint64_t i = random() % 100; i > 0; --i) keys.push_back(static_cast<int64_t>(random() % kKeys));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (const int64_t key : keys) index.promote(key, tier);
  RowBatch rows(kLayout);
  rows.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) fill_row(rows, i, keys[i], version);
  std::vector<Slot> slots(keys.size());
  tier.write(rows, slots);
  std::vector<Place> refused;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!index.demote(keys[i], slots[i], version)) refused.push_back({keys[i], slots[i]});
  }
  tier.erase(refused);
}

// Returns how many rows counted.
size_t read_some(const SsdHashTier& tier, const ShardedIndex& index, std::mt19937_64& random,
                 RowBatch& rows) {
  std::vector<Place> places;
  std::vector<int64_t> versions;
  for (int i = 0; i < 200; ++i) {
    const auto key = static_cast<int64_t>(random() % kKeys);
    const ShardedIndex::Entry entry = index.find(key);
    if (entry.version < 0) continue;
    places.push_back({key, entry.slot});
    versions.push_back(entry.version);
  }
  tier.read(places, rows);
  size_t valid = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const ShardedIndex::Entry now = index.find(places[i].key);
    if (now.version != versions[i] || now.slot != places[i].slot) continue;
    check(checked_version(rows, i, places[i].key) == versions[i], "a row has another version");
    ++valid;
  }
  return valid;
}

void run(IoScheme scheme, bool direct, CompactionMode mode) {
  const TemporaryDirectory directory;
  SsdHashOptions options = small_files();
  options.io_scheme = scheme;
  options.direct = direct;
  options.compaction = mode;
  ShardedIndex index(kKeys);  // outlives the tier's own thread
  SsdHashTier tier(table_of(), directory / "rows", options);
  tier.start_compaction(index);
  std::atomic<int64_t> next_version{0};
  std::atomic<bool> stop{false};
  std::atomic<size_t> rows_read{0};
  std::vector<std::thread> threads;
  const auto start = [&](auto work) {
    threads.emplace_back([&, work, seed = threads.size()] {
      std::mt19937_64 random(seed);
      try {
        while (!stop) work(random);
      } catch (const std::exception& error) {
        fail(error.what());
      }
    });
  };
  for (int i = 0; i < 2; ++i) {
    start([&](std::mt19937_64& random) { write_some(tier, index, random, next_version); });
    start([&](std::mt19937_64& random) {
      RowBatch rows(kLayout);
      rows_read += read_some(tier, index, random, rows);
    });
  }
  start([&](std::mt19937_64& random) {
    for (int i = 0; i < 20; ++i) index.promote(static_cast<int64_t>(random() % kKeys), tier);
    tier.compact();
    if (random() % 8 == 0) tier.drain();
    tier.detailed_stats();
    std::this_thread::yield();
  });
  for (int waited = 0; waited < 400 && (next_version < 1500 || tier.detailed_stats().compacted_files < 50);
       ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  check(rows_read > 0 && tier.detailed_stats().compacted_files > 0, "the threads did nothing");
  tier.drain();

  const SsdHashStats stats = tier.detailed_stats();
  size_t live = 0;
  RowBatch rows(kLayout);
  for (int64_t key = 0; key < kKeys; ++key) {
    const ShardedIndex::Entry entry = index.find(key);
    if (entry.version < 0) continue;
    ++live;
    tier.read(std::vector{Place{key, entry.slot}}, rows);
    check(checked_version(rows, 0, key) == entry.version, "a row has another version");
  }
  check(stats.live_rows == live,
        "the tier counts " + std::to_string(stats.live_rows) + " rows of " + std::to_string(live));
  check(stats.compaction_error.empty(), stats.compaction_error);
  check(bytes_in(directory / "rows") <= 2 * live * stats.record_bytes + options.buffer_bytes,
        "the files are over their bound");
}

TEST(threads_by_what_is_quickest) { run(IoScheme::kAuto, false, CompactionMode::kWritingThread); }
TEST(threads_by_pread) { run(IoScheme::kPread, false, CompactionMode::kWritingThread); }
TEST(threads_by_io_uring) { run(IoScheme::kIoUring, false, CompactionMode::kWritingThread); }
TEST(threads_direct) { run(IoScheme::kAuto, true, CompactionMode::kWritingThread); }
TEST(threads_with_a_compaction_thread) { run(IoScheme::kAuto, false, CompactionMode::kOwnThread); }

}  // namespace
}  // namespace embstore::log::testing
