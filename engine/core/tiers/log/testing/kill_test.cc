// Kills a process that trains and makes checkpoints, at random moments. The next process's table is compared
// with what was promised to the killed one, which is recorded in memory that outlives it.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <new>
#include <random>
#include <string>

#include "table.h"
#include "testing/child.h"

namespace embstore::log::testing {
namespace {

constexpr int64_t kKeys = 1500;
constexpr uint64_t kNoted = 8;
constexpr int kKills = scaled_count(120);

struct Shared {
  std::atomic<int64_t> versions[kNoted][kKeys];  // of checkpoint n at n % kNoted; -1: it lacks the key
  std::atomic<uint64_t> begun;                   // the newest
  std::atomic<uint64_t> committed;               // the newest; all before it were committed, too
  std::atomic<uint64_t> dropping;                // checkpoints up to here are dropped, or about to be
  std::atomic<uint64_t> dropped;
  std::atomic<int64_t> next_version;
  std::atomic<int64_t> compacted;
  std::atomic<int64_t> steps;  // of the current process
};

std::unique_ptr<Table> open_in_round(TableSite site, int round) {
  site.options.direct = round % 4 == 3;
  site.options.compaction = round % 2 == 0 ? CompactionMode::kWritingThread : CompactionMode::kOwnThread;
  return site.open();
}

void make_checkpoint(Table& table, Shared& shared) {
  const uint64_t number = table.begin();
  for (auto& version : shared.versions[number % kNoted]) version = -1;
  for (const auto& [key, version] : table.versions()) shared.versions[number % kNoted][key] = version;
  shared.begun = number;
  table.commit(number);
  shared.committed = number;
  const std::vector<uint64_t> kept = table.kept();
  if (kept.size() < 3) return;
  shared.dropping = kept.front();
  table.checkpoints->drop(kept.front());
  shared.dropped = kept.front();
}

// Writes, erases and makes checkpoints until it's killed.
[[noreturn]] void work(const TableSite& site, int round, Shared& shared) {
  std::mt19937_64 random(static_cast<uint64_t>(round));
  const std::unique_ptr<Table> opened = open_in_round(site, round);
  Table& table = *opened;
  SsdHashTier* const files = site.is_pool ? nullptr : static_cast<FileTable&>(table).tier.get();
  if (!table.kept().empty()) table.restore(table.kept().back());
  for (;; ++shared.steps) {
    std::vector<int64_t> keys;
    const auto first = static_cast<int64_t>(random() % kKeys);
    for (uint64_t i = 1 + random() % 150; i > 0; --i)
      keys.push_back((first + static_cast<int64_t>(i) * 7) % kKeys);
    const uint64_t what = random() % 8;
    if (what == 0) {
      table.erase(keys);
      if (files != nullptr) files->compact();
    } else if (what < 7) {
      table.write(keys, shared.next_version++);
    } else {
      make_checkpoint(table, shared);
    }
    if (files != nullptr) shared.compacted = static_cast<int64_t>(files->detailed_stats().compacted_files);
  }
}

void check_what_is_left(const TableSite& site, Shared& shared) {
  const std::unique_ptr<Table> opened = open_in_round(site, 0);
  Table& table = *opened;
  const std::vector<uint64_t> kept = table.kept();
  for (uint64_t number = shared.dropping + 1; number <= shared.committed; ++number) {
    check(std::find(kept.begin(), kept.end(), number) != kept.end(), "a committed checkpoint is gone");
  }
  if (kept.empty()) return;
  check(kept.front() > shared.dropped && kept.back() <= shared.begun, "a checkpoint is there that can't be");
  // Restores the newest, or an older one, which drops the newer ones.
  const uint64_t number = shared.next_version % 4 == 0 ? kept.front() : kept.back();
  table.restore(number);
  table.check_rows();
  for (int64_t key = 0; key < kKeys; ++key) {
    const auto found = table.index.find(key);
    check((found ? found->version : -1) == shared.versions[number % kNoted][key],
          "a row is of another moment");
  }
  // The next process goes on from there.
  shared.begun = shared.committed = number;
  shared.dropping = shared.dropped = kept.front() - 1;
}

void kill_processes(const TableSite& site) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "shared memory can't be had");
  Shared& shared = *new (memory) Shared;
  shared.next_version = 1;
  const std::string medium = tested_case();
  std::mt19937_64 random(2024);
  int64_t compacted = 0;
  for (int round = 0; round < kKills; ++round) {
    tested_case() = medium + ", round " + std::to_string(round);
    shared.steps = 0;
    const pid_t child = start_child([&] { work(site, round, shared); });
    // Kills it after some work, however slow the machine; then at any moment, sometimes during its start.
    const auto steps = static_cast<int64_t>(random() % 100);
    while (shared.steps < steps && waitpid(child, nullptr, WNOHANG) == 0) usleep(100);
    usleep(static_cast<useconds_t>(random() % 2000));
    kill(child, SIGKILL);
    check(end_of_child(child) == -SIGKILL, "the process ended by itself");
    compacted += shared.compacted.exchange(0);
    check_what_is_left(site, shared);
  }
  tested_case() = medium;
  check(site.is_pool || compacted > kKills / 4,
        "hardly anything was compacted: " + std::to_string(compacted));
  check(shared.committed > static_cast<uint64_t>(kKills), "hardly any checkpoint was made");
  std::printf("%d kills, %lld files compacted, %llu checkpoints\n", kKills, static_cast<long long>(compacted),
              static_cast<unsigned long long>(shared.committed.load()));
  munmap(memory, sizeof(Shared));
}
TEST(killed_processes_leave_every_checkpoint_whole) { on_both_media(kill_processes); }

}  // namespace
}  // namespace embstore::log::testing
