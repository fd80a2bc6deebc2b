// Tests of system calls that fail: the error names the file, acknowledged rows stay readable, and the tier
// works again when the fault is gone.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <string>

#include "table.h"

namespace embstore::log::testing {
namespace {

// File calls that fail as the test says.
struct Faults {
  Faults() {
    calls.before = [this](FileCall& call) { return fault_of(call); };
  }

  WatchedCalls calls;
  std::map<FileCall::Kind, int> errnos;  // 0: none of these fails
  uint64_t bytes_left = UINT64_MAX;      // left on the device; then ENOSPC
  bool short_counts = false;             // reads and writes transfer only a part of what was asked for
  bool interrupts = false;

 private:
  int fault_of(FileCall& call) {
    if (const int reason = errnos[call.kind]; reason != 0) return reason;
    if (call.kind != FileCall::kRead && call.kind != FileCall::kWrite) return 0;
    if (interrupts && ++reads_and_writes_ % 3 == 0) return EINTR;
    if (short_counts) call.bytes = (call.bytes + 1) / 2;
    if (call.kind == FileCall::kRead || bytes_left == UINT64_MAX) return 0;
    call.bytes = std::min<uint64_t>(call.bytes, bytes_left);
    bytes_left -= call.bytes;
    return call.bytes == 0 ? ENOSPC : 0;
  }
  unsigned reads_and_writes_ = 0;
};

// A file system that creates the file although it has no O_DIRECT for it.
class NoDirectIo final : public files::FileCalls {
  int open(const char* path, int flags, mode_t mode) override {
    const int descriptor = files::FileCalls::open(path, flags & ~O_DIRECT, mode);
    if ((flags & O_DIRECT) == 0 || descriptor < 0) return descriptor;
    close(descriptor);
    errno = EINVAL;
    return -1;
  }
};

TEST(a_file_system_without_direct_io_is_reported_at_once) {
  const TemporaryDirectory directory;
  NoDirectIo calls;
  SsdHashOptions options = small_files(calls);
  options.direct = true;
  check_throws(ErrorKind::kStorage, "has no O_DIRECT",
               [&] { SsdHashTier(table_of(), directory / "rows", options); });
  check(files_in(directory / "rows").empty(), "the try left a file");
}

SsdHashOptions by_calls(SsdHashOptions options) {
  options.io_scheme = IoScheme::kPread;
  return options;
}

struct Fixture {
  TemporaryDirectory directory;
  Faults faults;
  FileTable table{directory.path(), by_calls(small_files(faults.calls))};
};

void nothing_is_lost_on(FileCall::Kind call, int reason, const std::string& text) {
  Fixture f;
  f.table.write(0, 2000, 1);
  const uint64_t rows = f.table.tier->stats().rows;
  f.faults.errnos[call] = reason;
  for (int round = 0; round < 3; ++round) {
    const std::string message = error_of(ErrorKind::kStorage, [&] { f.table.write(1000, 2500, 2); });
    check(message.find(text) != std::string::npos, message);
    check(message.find((f.directory / "rows") + "/rows-") == 0, message);
    check(f.table.tier->stats().rows == rows, "a write that failed took places");
  }
  f.faults.errnos.clear();
  f.table.check_rows();
  f.table.write(1000, 2500, 3);
  f.table.check_rows();
}

TEST(a_write_that_fails_loses_nothing) {
  nothing_is_lost_on(FileCall::kWrite, ENOSPC, "No space left on device");
  nothing_is_lost_on(FileCall::kWrite, EIO, "Input/output error");
  nothing_is_lost_on(FileCall::kOpen, EMFILE, "can't be created: Too many open files");
}

TEST(a_disk_that_fills_up_at_any_byte_loses_nothing) {
  for (uint64_t left = 0; left < 300000; left += 4093) {
    const TemporaryDirectory directory;
    Faults faults;
    const SsdHashOptions options = by_calls(small_files_for_checkpoints(faults.calls));
    Versions expected;
    {
      FileTable table(directory.path(), options);
      table.write(0, 700, 1);
      table.checkpoint();
      const Versions first = table.versions();
      faults.bytes_left = left;
      check_throws(ErrorKind::kStorage, "No space left", [&] {
        for (int64_t version = 2; version < 100; ++version) table.write(version * 50, 700, version);
      });
      table.check_rows();
      check_throws(ErrorKind::kStorage, "No space left", [&] { table.checkpoint(); });
      table.checkpoints->drop_pending();
      faults.bytes_left = UINT64_MAX;
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
  f.faults.short_counts = true;
  f.faults.interrupts = true;
  for (int64_t version = 0; version < 10; ++version) f.table.write(version * 100, 1500, version);
  f.table.check_rows();
  check(f.table.tier->detailed_stats().compacted_files > 0, "nothing was compacted");
}

TEST(a_read_error_names_the_file_and_passes) {
  Fixture f;
  f.table.write(0, 3000, 1);
  f.faults.errnos[FileCall::kRead] = EIO;
  RowBatch rows(kLayout);
  const std::vector<Place> places{{0, f.table.index.find(0)->slot}};
  check_throws(ErrorKind::kDamagedRows, "rows-0000000001.ssdhash: can't read",
               [&] { f.table.tier->read(places, rows); });
  f.faults.errnos.clear();
  f.table.check_rows();
}

TEST(files_that_cannot_be_compacted_refuse_no_rows_and_are_reported_once) {
  Fixture f;
  f.table.write(0, 2000, 1);
  f.faults.errnos[FileCall::kRead] = EIO;
  for (int64_t version = 2; version < 300; ++version) f.table.write(version * 37 % 1900, 100, version);
  check(f.table.tier->detailed_stats().compaction_error.find("can't be read") != std::string::npos,
        "stats() don't tell of it");
  check_throws(ErrorKind::kStorage, "can't be read", [&] { f.table.tier->drain(); });
  f.table.tier->drain();  // no new error
  f.faults.errnos.clear();
  f.table.check_rows();
  f.table.check_space();
  f.table.check_rows();
}

TEST(a_file_that_cannot_be_removed_refuses_no_rows) {
  Fixture f;
  f.table.write(0, 2000, 1);
  f.faults.errnos[FileCall::kRemove] = EPERM;
  for (int64_t version = 2; version < 50; ++version) f.table.write(0, 1900, version);
  check_throws(ErrorKind::kStorage, "can't be removed", [&] { f.table.tier->drain(); });
  f.table.tier->drain();  // no new error
  f.table.check_rows();
  f.faults.errnos.clear();
  f.table.write(0, 1900, 100);
  f.table.check_space();
  f.table.check_rows();
}

TEST(operations_at_random_under_faults_at_random) {
  for (uint64_t seed = 1; seed <= scaled_count(20); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    std::mt19937_64 random(seed);
    Fixture f;
    int failures = 0;
    for (int step = 0; step < 300; ++step) {
      f.faults.errnos = {{FileCall::kWrite, random() % 6 == 0 ? (random() % 2 == 0 ? ENOSPC : EIO) : 0},
                         {FileCall::kRead, random() % 10 == 0 ? EIO : 0},
                         {FileCall::kRemove, random() % 10 == 0 ? EPERM : 0},
                         {FileCall::kOpen, random() % 10 == 0 ? EMFILE : 0}};
      f.faults.short_counts = random() % 2 == 0;
      f.faults.interrupts = random() % 2 == 0;
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
      f.faults.errnos[FileCall::kRead] = f.faults.errnos[FileCall::kOpen] = 0;
      if (step % 10 == 0) f.table.check_rows();
    }
    check(failures > 10, "hardly anything failed");
    f.faults.errnos.clear();
    f.table.check_space();  // all faults are gone, so no error is left to report
    f.table.check_rows();
  }
  tested_case().clear();
}

}  // namespace
}  // namespace embstore::log::testing
