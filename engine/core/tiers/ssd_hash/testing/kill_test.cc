// A process that writes is killed at random moments. What its files hold afterwards is checked against what
// it had been promised, noted in memory that outlives it.
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

#include "testing.h"

namespace embstore::ssd_hash::testing {
namespace {

constexpr int64_t kKeys = 1500;
constexpr int kKills = scenes(200);
const RowLayout kLayout(6, 1);

// What the killed process was promised about one key. Each is noted after the call that promised it.
struct Promise {
  std::atomic<int64_t> attempted;  // the newest version that it began to write
  std::atomic<int64_t> in_tier;    // the version that is in the tier now; -1 where none is
  std::atomic<int64_t> flushed;    // the newest version that was written out
  std::atomic<int64_t> buried;     // versions up to this are gone for good, and that was written out
};

struct Shared {
  Promise promises[kKeys];
  std::atomic<int64_t> next_version;
  std::atomic<int64_t> compacted;
  std::atomic<int64_t> steps;  // of the process that works now
};

std::string recover_into(SsdHashTier& tier, PlainIndex& index, RecoveryReport& report) {
  report = tier.recover([&](const RowBatch& rows, std::span<const Slot> slots) {
    for (size_t i = 0; i < slots.size(); ++i) {
      const int64_t key = rows.header(i).key;
      index.put(key, slots[i], checked_version(rows, i, key));
    }
  });
  return report.first_damage;
}

SsdHashOptions options_for(uint64_t round) {
  SsdHashOptions options = small_files();
  options.keeps = Keeps::kFiles;
  options.direct = round % 4 == 3;
  options.compaction = round % 2 == 0 ? CompactionMode::kWritingThread : CompactionMode::kOwnThread;
  return options;
}

// Writes, promotes and buries at random until it's killed.
[[noreturn]] void work(const std::string& path, uint64_t round, Shared& shared) {
  std::mt19937_64 random(round);
  SsdHashTier tier("var", kLayout, path, options_for(round));
  PlainIndex index;
  RecoveryReport report;
  recover_into(tier, index, report);
  tier.start_compaction(index);
  for (;;) {
    std::vector<int64_t> keys;
    const auto first = static_cast<int64_t>(random() % kKeys);
    for (uint64_t i = 1 + random() % 150; i > 0; --i) {
      keys.push_back((first + static_cast<int64_t>(i) * 7) % kKeys);
    }
    std::vector<Place> promoted;
    for (const int64_t key : keys) {
      Promise& promise = shared.promises[key];
      promise.in_tier = -1;
      if (const auto old = index.take(key)) promoted.push_back({key, old->slot});
    }
    tier.erase(promoted);
    const uint64_t what = random() % 8;
    if (what == 0) {
      // Gone for good. From here on older versions may or may not come back, until it's written out.
      tier.bury(keys);
      const int64_t up_to = shared.next_version - 1;
      tier.flush();
      for (const int64_t key : keys) shared.promises[key].buried = up_to;
    } else if (what < 7) {
      const int64_t version = shared.next_version++;
      for (const int64_t key : keys) shared.promises[key].attempted = version;
      write_rows(tier, index, kLayout, keys, version);
      for (const int64_t key : keys) shared.promises[key].in_tier = version;
      if (random() % 4 == 0) {
        tier.flush();
        for (Promise& promise : shared.promises) {
          if (promise.in_tier >= 0) promise.flushed = promise.in_tier.load();
        }
      }
    } else {
      tier.compact();
    }
    shared.compacted = static_cast<int64_t>(tier.detailed_stats().compacted_files);
    ++shared.steps;
  }
}

void killed_processes_leave_consistent_files() {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "shared memory can't be had");
  Shared& shared = *new (memory) Shared;
  for (Promise& promise : shared.promises) {
    promise.attempted = promise.in_tier = promise.flushed = promise.buried = -1;
  }
  shared.next_version = 1;
  shared.compacted = 0;
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  std::mt19937_64 random(2024);
  uint64_t torn = 0;
  uint64_t unwritten = 0;
  uint64_t most_rows = 0;
  int64_t compacted = 0;
  for (int round = 0; round < kKills; ++round) {
    shared.steps = 0;
    const pid_t child = fork();
    check(child >= 0, "no process can be started");
    if (child == 0) work(path, static_cast<uint64_t>(round), shared);
    // After some work, however slow the machine; then at any moment, its start sometimes included.
    const auto steps = static_cast<int64_t>(random() % 100);
    while (shared.steps < steps && waitpid(child, nullptr, WNOHANG) == 0) usleep(100);
    usleep(static_cast<useconds_t>(random() % 2000));
    kill(child, SIGKILL);
    int status = 0;
    check(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
          "the process ended by itself");
    compacted += shared.compacted.exchange(0);

    SsdHashTier tier("var", kLayout, path, options_for(0));
    PlainIndex index;
    RecoveryReport report;
    const std::string damage = recover_into(tier, index, report);
    check(report.damaged == 0, "damage: " + damage);
    check(report.torn < 100, "a whole buffer is torn");
    torn += report.torn;
    most_rows = std::max<uint64_t>(most_rows, report.rows);
    check_all(tier, index, kLayout);
    uint64_t lost = 0;  // rows that were in the tier and aren't, or are older
    for (int64_t key = 0; key < kKeys; ++key) {
      Promise& promise = shared.promises[key];
      const auto found = index.find(key);
      const std::string which = "round " + std::to_string(round) + ", key " + std::to_string(key);
      if (promise.in_tier >= 0 && (!found || found->version < promise.in_tier)) ++lost;
      // In the tier and written out: it's there.
      if (promise.in_tier >= 0 && promise.in_tier == promise.flushed) {
        check(found.has_value(), which + ": a row that was written out is missing");
      }
      if (found) {
        check(found->version <= promise.attempted, which + ": a version that was never written");
        check(found->version >= promise.flushed, which + ": an older row than was written out");
        check(found->version > promise.buried, which + ": a buried row came back");
      }
      // The next process starts from what was found, which is on the files.
      promise.in_tier = promise.flushed = found ? found->version : -1;
      if (found && promise.attempted < found->version) promise.attempted = found->version;
    }
    // Nothing is missing without a word; and what is said fits a buffer.
    check(report.unwritten.has_value() && lost <= *report.unwritten,
          std::to_string(lost) + " rows are missing, and the report says " +
              std::to_string(report.unwritten.value_or(0)));
    check(*report.unwritten * ssd_hash::RecordShape(kLayout).bytes <= options_for(0).buffer_bytes,
          "more is missing than was ever gathered: " + std::to_string(*report.unwritten));
    unwritten += *report.unwritten;
    tier.close();
  }
  check(unwritten > 0, "no kill lost anything");
  check(compacted > kKills / 4, "hardly anything was compacted: " + std::to_string(compacted));
  check(most_rows > kKeys / 2, "hardly any rows were found");
  std::printf("%d kills, %lld files compacted, %llu torn records skipped, %llu never written out\n", kKills,
              static_cast<long long>(compacted), static_cast<unsigned long long>(torn),
              static_cast<unsigned long long>(unwritten));
  munmap(memory, sizeof(Shared));
}

constexpr Test kTests[] = {
    {"killed_processes_leave_consistent_files", killed_processes_leave_consistent_files},
};

}  // namespace

std::span<const Test> kill_tests() { return kTests; }

}  // namespace embstore::ssd_hash::testing
