// System calls that fail: the error names the file, what was acknowledged stays readable, and the tier goes
// on when the fault is gone.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>
#include <string>

#include "table.h"

namespace embstore::log::testing {
namespace {

// Fails on order, or now and then at random.
class FaultyCalls final : public UnwaitingCalls {
 public:
  std::atomic<int> pwrite_errno{0};
  std::atomic<int> pread_errno{0};
  std::atomic<int> open_errno{0};
  std::atomic<int> unlink_errno{0};
  std::atomic<int64_t> bytes_left{INT64_MAX};  // on the device; then ENOSPC
  std::atomic<bool> short_counts{false};       // reads and writes of a part of what was asked
  std::atomic<bool> interrupts{false};
  std::atomic<unsigned> calls{0};

  int open(const char* path, int flags, mode_t mode) override {
    return fails(open_errno) ? -1 : files::FileCalls::open(path, flags, mode);
  }
  ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) override {
    if (fails(pread_errno) || is_interrupted()) return -1;
    return files::FileCalls::pread(descriptor, data, shortened(bytes), offset);
  }
  ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) override {
    if (fails(pwrite_errno) || is_interrupted()) return -1;
    const int64_t left = bytes_left;
    if (left <= 0) {
      errno = ENOSPC;
      return -1;
    }
    const size_t some = std::min<size_t>(shortened(bytes), static_cast<size_t>(left));
    if (left != INT64_MAX) bytes_left -= static_cast<int64_t>(some);
    return files::FileCalls::pwrite(descriptor, data, some, offset);
  }
  int unlink(const char* path) override { return fails(unlink_errno) ? -1 : files::FileCalls::unlink(path); }

 private:
  static bool fails(const std::atomic<int>& reason) {
    if (reason == 0) return false;
    errno = reason;
    return true;
  }
  bool is_interrupted() {
    if (!interrupts || ++calls % 3 != 0) return false;
    errno = EINTR;
    return true;
  }
  size_t shortened(size_t bytes) { return short_counts ? (bytes + 1) / 2 : bytes; }
};

// A file system that makes the file and then has no O_DIRECT for it.
class NoDirectIo final : public files::FileCalls {
  int open(const char* path, int flags, mode_t mode) override {
    const int descriptor = files::FileCalls::open(path, flags & ~O_DIRECT, mode);
    if ((flags & O_DIRECT) == 0 || descriptor < 0) return descriptor;
    close(descriptor);
    errno = EINVAL;
    return -1;
  }
};

TEST(a_file_system_without_direct_io_is_told_of_at_once) {
  const TemporaryDirectory directory;
  NoDirectIo calls;
  SsdHashOptions options = small_files();
  options.file_calls = &calls;
  options.direct = true;
  check_throws(ErrorKind::kStorage, "has no O_DIRECT",
               [&] { SsdHashTier(table_of(), directory / "rows", options); });
  check(files_in(directory / "rows").empty(), "the try left a file");
}

SsdHashOptions with(files::FileCalls& calls, SsdHashOptions options) {
  options.io_scheme = IoScheme::kPread;
  options.file_calls = &calls;
  return options;
}

struct Fixture {
  explicit Fixture(const SsdHashOptions& options = small_files())
      : table(directory.path(), with(calls, options)) {}

  TemporaryDirectory directory;
  FaultyCalls calls;
  FileTable table;
};

void nothing_is_lost_on(std::atomic<int> FaultyCalls::* fault, int reason, const std::string& text) {
  Fixture f;
  f.table.write(0, 2000, 1);
  const uint64_t rows = f.table.tier->stats().rows;
  f.calls.*fault = reason;
  for (int round = 0; round < 3; ++round) {
    const std::string message = error_of(ErrorKind::kStorage, [&] { f.table.write(1000, 2500, 2); });
    check(message.find(text) != std::string::npos, message);
    check(message.find((f.directory / "rows") + "/rows-") == 0, message);
    check(f.table.tier->stats().rows == rows, "a write that failed took places");
  }
  f.calls.*fault = 0;
  f.table.check_rows();
  f.table.write(1000, 2500, 3);
  f.table.check_rows();
}

TEST(a_full_disk_loses_nothing) {
  nothing_is_lost_on(&FaultyCalls::pwrite_errno, ENOSPC, "No space left on device");
}
TEST(a_write_error_loses_nothing) {
  nothing_is_lost_on(&FaultyCalls::pwrite_errno, EIO, "Input/output error");
}
TEST(a_file_that_cannot_be_made_loses_nothing) {
  nothing_is_lost_on(&FaultyCalls::open_errno, EMFILE, "can't be created: Too many open files");
}

TEST(a_disk_that_fills_up_at_any_byte_loses_nothing) {
  for (int64_t left = 0; left < 300000; left += 4093) {
    const TemporaryDirectory directory;
    FaultyCalls calls;
    const SsdHashOptions options = with(calls, small_files_for_checkpoints());
    Versions expected;
    {
      FileTable table(directory.path(), options);
      table.write(0, 700, 1);
      table.checkpoint();
      const Versions first = table.versions();
      calls.bytes_left = left;
      check_throws(ErrorKind::kStorage, "No space left", [&] {
        for (int64_t version = 2; version < 100; ++version) table.write(version * 50, 700, version);
      });
      table.check_rows();
      check_throws(ErrorKind::kStorage, "No space left", [&] { table.checkpoint(); });
      table.checkpoints->drop_pending();
      calls.bytes_left = INT64_MAX;
      table.check_rows();
      table.write(100, 900, 100);
      table.check_rows();
      expected = table.versions();
      table.checkpoint();
      table.restore(1);
      check(table.versions() == first, "a checkpoint has other rows");
      table.restore(1);
      table.write(100, 900, 101);
      expected = table.versions();
      table.checkpoint();
    }
    FileTable table(directory.path(), options);
    table.restore(table.kept().back());
    table.check_rows();
    check(table.versions() == expected, "a row is missing or stale");
  }
}

TEST(short_counts_and_interrupts_are_no_errors) {
  Fixture f;
  f.calls.short_counts = true;
  f.calls.interrupts = true;
  for (int64_t version = 0; version < 10; ++version) f.table.write(version * 100, 1500, version);
  f.table.check_rows();
  check(f.table.tier->detailed_stats().compacted_files > 0, "nothing was compacted");
}

TEST(a_read_error_names_the_file_and_passes) {
  Fixture f;
  f.table.write(0, 3000, 1);
  f.calls.pread_errno = EIO;
  RowBatch rows(kLayout);
  const std::vector<Place> places{{0, f.table.index.find(0)->slot}};
  check_throws(ErrorKind::kDamagedRows, "rows-0000000001.ssdhash: can't read",
               [&] { f.table.tier->read(places, rows); });
  f.calls.pread_errno = 0;
  f.table.check_rows();
}

TEST(files_that_cannot_be_compacted_turn_no_rows_away_and_are_told_of_once) {
  Fixture f;
  f.table.write(0, 2000, 1);
  f.calls.pread_errno = EIO;
  for (int64_t version = 2; version < 300; ++version) f.table.write(version * 37 % 1900, 100, version);
  check(f.table.tier->detailed_stats().compaction_error.find("can't be read") != std::string::npos,
        "stats() don't tell of it");
  check_throws(ErrorKind::kStorage, "can't be read", [&] { f.table.tier->drain(); });
  f.table.tier->drain();  // nothing new
  f.calls.pread_errno = 0;
  f.table.check_rows();
  f.table.check_space();
  f.table.check_rows();
}

TEST(a_file_that_cannot_be_removed_turns_no_rows_away) {
  Fixture f;
  f.table.write(0, 2000, 1);
  f.calls.unlink_errno = EPERM;
  for (int64_t version = 2; version < 50; ++version) f.table.write(0, 1900, version);
  check_throws(ErrorKind::kStorage, "can't be removed", [&] { f.table.tier->drain(); });
  f.table.tier->drain();  // nothing new
  f.table.check_rows();
  f.calls.unlink_errno = 0;
  f.table.write(0, 1900, 100);
  f.table.check_space();
  f.table.check_rows();
}

TEST(operations_at_random_under_faults_at_random) {
  for (uint64_t seed = 1; seed <= scenes(20); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    std::mt19937_64 random(seed);
    Fixture f;
    int failures = 0;
    for (int step = 0; step < 300; ++step) {
      f.calls.pwrite_errno = random() % 6 == 0 ? (random() % 2 == 0 ? ENOSPC : EIO) : 0;
      f.calls.pread_errno = random() % 10 == 0 ? EIO : 0;
      f.calls.unlink_errno = random() % 10 == 0 ? EPERM : 0;
      f.calls.open_errno = random() % 10 == 0 ? EMFILE : 0;
      f.calls.short_counts = random() % 2 == 0;
      f.calls.interrupts = random() % 2 == 0;
      const auto first = static_cast<int64_t>(random() % 2000);
      try {
        switch (random() % 4) {
          case 0: f.table.tier->drain(); break;
          case 1: f.table.erase(keys_from(first, 300)); break;
          default: f.table.write(first, 1 + static_cast<int64_t>(random() % 800), step);
        }
      } catch (const Error& error) {
        check(error.kind() == ErrorKind::kStorage, error.what());
        ++failures;
      }
      f.calls.pread_errno = f.calls.open_errno = 0;
      if (step % 10 == 0) f.table.check_rows();
    }
    check(failures > 10, "hardly anything failed");
    f.calls.pwrite_errno = f.calls.pread_errno = f.calls.unlink_errno = f.calls.open_errno = 0;
    f.table.check_space();  // with all faults gone there is nothing to tell
    f.table.check_rows();
  }
  tested_case().clear();
}

}  // namespace
}  // namespace embstore::log::testing
