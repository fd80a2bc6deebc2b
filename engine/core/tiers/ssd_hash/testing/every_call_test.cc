// One scenario, in which every system call on a file fails once, each in turn.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <random>
#include <string>

#include "testing.h"

namespace embstore::ssd_hash::testing {
namespace {

const RowLayout kLayout(8, 1);

enum class Fault { kIoError, kNoSpace, kShort };

// The call of a number fails, or does less than was asked.
class OneFault final : public files::FileCalls {
 public:
  OneFault(int64_t call, Fault fault) : call_(call), fault_(fault) {}
  int64_t calls() const { return calls_; }
  bool struck() const { return calls_ > call_; }

  int open(const char* path, int flags, mode_t mode) override {
    return fails() ? -1 : files::FileCalls::open(path, flags, mode);
  }
  ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) override {
    if (calls_++ != call_) return files::FileCalls::pread(descriptor, data, bytes, offset);
    if (fault_ == Fault::kShort) return files::FileCalls::pread(descriptor, data, (bytes + 1) / 2, offset);
    return refused();
  }
  ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) override {
    if (calls_++ != call_) return files::FileCalls::pwrite(descriptor, data, bytes, offset);
    const ssize_t some = files::FileCalls::pwrite(descriptor, data, (bytes + 1) / 2, offset);
    return fault_ == Fault::kShort ? some : refused();
  }
  // The medium isn't waited for: no machine goes down here.
  int fdatasync(int) override { return fails() ? -1 : 0; }
  int fsync(int) override { return fails() ? -1 : 0; }
  int unlink(const char* path) override { return fails() ? -1 : files::FileCalls::unlink(path); }
  int rename(const char* from, const char* to) override {
    return fails() ? -1 : files::FileCalls::rename(from, to);
  }

 private:
  int refused() const {
    errno = fault_ == Fault::kNoSpace ? ENOSPC : EIO;
    return -1;
  }
  bool fails() {
    if (calls_++ != call_ || fault_ == Fault::kShort) return false;
    refused();
    return true;
  }

  const int64_t call_;
  const Fault fault_;
  std::atomic<int64_t> calls_{0};
};

// Does `step` again where it fails, which it may once.
template <class Step>
void with_one_retry(const OneFault& calls, const Step& step) {
  const bool struck_before = calls.struck();
  try {
    step();
  } catch (const Error& error) {
    check(error.kind() == ErrorKind::kStorage || error.kind() == ErrorKind::kDamagedRows, error.what());
    check(!struck_before && calls.struck(),
          std::string("there is an error without a fault: ") + error.what());
    step();
  }
}

struct Scenario {
  bool keep_files;
  bool sync;
};

// Returns how many calls were made.
int64_t run(const Scenario& scenario, int64_t call, Fault fault) {
  const TemporaryDirectory directory;
  OneFault calls(call, fault);
  SsdHashOptions options = small_files();
  options.file_bytes = 32 << 10;
  options.io_scheme = IoScheme::kPread;
  options.file_calls = &calls;
  options.keeps = scenario.keep_files ? Keeps::kFiles : Keeps::kNothing;
  options.sync = scenario.sync;
  std::optional<SsdHashTier> tier;
  with_one_retry(calls, [&] { tier.emplace("var", kLayout, directory / "rows", options); });
  PlainIndex index;
  if (scenario.keep_files) {
    with_one_retry(calls, [&] { tier->recover([](const RowBatch&, std::span<const Slot>) {}); });
  }
  tier->start_compaction(index);
  std::mt19937_64 random(7);
  for (int64_t step = 1; step <= 14; ++step) {
    std::vector<int64_t> keys;
    const auto first = static_cast<int64_t>(random() % 500);
    for (int64_t key = first; key < first + 400; ++key) keys.push_back(key);
    // All or nothing: a try that failed left every row as it was.
    with_one_retry(calls, [&] {
      const uint64_t rows = tier->stats().rows;
      try {
        write_rows(*tier, index, kLayout, keys, step);
      } catch (const Error&) {
        check(tier->stats().rows == rows, "a write that failed took places");
        throw;
      }
    });
    if (step % 3 == 0) with_one_retry(calls, [&] { tier->flush(); });
    if (step % 5 == 0) {
      std::vector<Place> gone;
      std::vector<int64_t> gone_keys;
      for (int64_t key = first; key < first + 150; ++key) {
        if (const auto where = index.take(key)) {
          gone.push_back({key, where->slot});
          gone_keys.push_back(key);
        }
      }
      tier->erase(gone);
      with_one_retry(calls, [&] { tier->bury(gone_keys); });
    }
    tier->compact();
    if (step % 4 == 0) with_one_retry(calls, [&] { tier->drain(); });
    with_one_retry(calls, [&] { check_all(*tier, index, kLayout); });
  }
  with_one_retry(calls, [&] { tier->drain(); });
  const SsdHashStats stats = tier->detailed_stats();
  check(stats.lost_records == 0 && stats.compaction_error.empty(), "something is lost, or still in the way");
  check(stats.compacted_files > 0, "nothing was compacted");
  with_one_retry(calls, [&] { tier->close(); });
  tier.reset();
  if (scenario.keep_files) {
    PlainIndex found;
    with_one_retry(calls, [&] { tier.emplace("var", kLayout, directory / "rows", options); });
    with_one_retry(calls, [&] {
      tier->recover([&](const RowBatch& rows, std::span<const Slot> slots) {
        for (size_t i = 0; i < slots.size(); ++i) {
          found.put(rows.header(i).key, slots[i], checked_version(rows, i, rows.header(i).key));
        }
      });
    });
    for (const auto& [key, where] : index.all()) {
      check(found.find(key) && found.find(key)->version == where.version, "a row is missing or stale");
    }
    with_one_retry(calls, [&] { tier->close(); });
  }
  return calls.calls();
}

void nothing_is_lost_whichever_call_fails(const Scenario& scenario) {
  const int64_t calls = run(scenario, INT64_MAX, Fault::kIoError);
  check(calls > 100, "too few calls for this test");
  for (const Fault fault : {Fault::kIoError, Fault::kNoSpace, Fault::kShort}) {
    for (int64_t call = 0; call < calls; ++call) {
      try {
        run(scenario, call, fault);
      } catch (const std::exception& error) {
        fail("call " + std::to_string(call) + ", fault " + std::to_string(static_cast<int>(fault)) + ": " +
             error.what());
      }
    }
  }
  std::printf("%lld calls, each failing in turn\n", static_cast<long long>(calls));
}
void nothing_is_lost_whichever_call_fails() { nothing_is_lost_whichever_call_fails({false, false}); }
void nothing_that_is_kept_is_lost_whichever_call_fails() {
  nothing_is_lost_whichever_call_fails({true, false});
  nothing_is_lost_whichever_call_fails({true, true});
}

constexpr Test kTests[] = {
    {"nothing_is_lost_whichever_call_fails", nothing_is_lost_whichever_call_fails},
    {"nothing_that_is_kept_is_lost_whichever_call_fails", nothing_that_is_kept_is_lost_whichever_call_fails},
};

}  // namespace

std::span<const Test> every_call_tests() { return kTests; }

}  // namespace embstore::ssd_hash::testing
