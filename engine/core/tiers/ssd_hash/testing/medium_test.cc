// A medium that doesn't give back what was written, or doesn't take it: syncs that fail, bytes that are
// damaged, pages that can't be read.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <set>
#include <string>

#include "keep/checkpoint/reader.h"
#include "keep/checkpoint/writer.h"
#include "testing.h"
#include "tiers/ssd_hash/guarded_copy.h"

namespace embstore::ssd_hash::testing {
namespace {

namespace fs = std::filesystem;

const RowLayout kLayout(8, 1);

ino_t inode_of(int descriptor) {
  struct stat status{};
  check(fstat(descriptor, &status) == 0, "a file can't be looked at");
  return status.st_ino;
}

// As Linux does it: a sync that fails drops what it couldn't write, and the next one is a success.
class ForgetfulMedium final : public files::FileCalls {
 public:
  ~ForgetfulMedium() override {
    for (const int held : held_) ::close(held);
  }

  std::atomic<int> syncs_to_fail{0};
  std::atomic<int> syncs{0};

  int fdatasync(int descriptor) override {
    ++syncs;
    if (--syncs_to_fail < 0) return files::FileCalls::fdatasync(descriptor);
    const std::lock_guard lock(mutex_);
    in_doubt_.insert(inode_of(descriptor));
    held_.push_back(dup(descriptor));  // so that no other file gets the number
    errno = EIO;
    return -1;
  }
  size_t failures() const {
    const std::lock_guard lock(mutex_);
    return in_doubt_.size();
  }
  // None of the files of `directory` is one whose sync failed.
  void check_files(const std::string& directory) const {
    const std::lock_guard lock(mutex_);
    for (const std::string& path : files_in(directory)) {
      struct stat status{};
      check(stat(path.c_str(), &status) == 0, "a file is gone");
      check(!in_doubt_.contains(status.st_ino), path + " is believed after a sync that failed");
    }
  }

 private:
  mutable std::mutex mutex_;
  std::set<ino_t> in_doubt_;
  std::vector<int> held_;
};

void write_keys(SsdHashTier& tier, PlainIndex& index, int64_t first, int64_t count, int64_t version) {
  std::vector<int64_t> keys(static_cast<size_t>(count));
  std::iota(keys.begin(), keys.end(), first);
  write_rows(tier, index, kLayout, keys, version);
}

PlainIndex& recover_into(PlainIndex& index, SsdHashTier& tier) {
  const RecoveryReport report = tier.recover([&](const RowBatch& rows, std::span<const Slot> slots) {
    for (size_t i = 0; i < slots.size(); ++i) {
      index.put(rows.header(i).key, slots[i], checked_version(rows, i, rows.header(i).key));
    }
  });
  check(report.damaged + report.torn == 0, report.first_damage);
  return index;
}

void a_file_whose_sync_failed_takes_nothing_more() {
  const TemporaryDirectory directory;
  ForgetfulMedium calls;
  files::File file(calls, directory / "file", O_RDWR | O_CREAT, {.for_the_medium = true});
  file.write_at("some", 4, 0);
  calls.syncs_to_fail = 1;
  check_throws(ErrorKind::kStorage, "can't be brought to its medium", [&] { file.sync(); });
  check(file.in_doubt(), "the file isn't in doubt");
  check_throws(ErrorKind::kStorage, "only a new file can take its place", [&] { file.sync(); });
  check_throws(ErrorKind::kStorage, "only a new file can take its place", [&] { file.write_at("x", 1, 4); });
  check(calls.syncs == 1, "a sync was tried again");
  char bytes[4];
  check(file.read_at(bytes, 4, 0) == 4, "the file can't be read");
}

void rows_go_into_a_new_file_after_a_sync_that_failed() {
  for (int fail_at = 0; fail_at < 30; ++fail_at) {
    const TemporaryDirectory directory;
    const std::string path = directory / "rows";
    ForgetfulMedium calls;
    SsdHashOptions options = small_files();
    options.file_calls = &calls;
    options.keeps = Keeps::kFiles;
    options.sync = fail_at % 2 == 0;
    {
      SsdHashTier tier("var", kLayout, path, options);
      PlainIndex index;
      tier.recover([](const RowBatch&, std::span<const Slot>) {});
      tier.start_compaction(index);
      for (int64_t version = 1; version < 8; ++version) {
        if (calls.syncs >= fail_at && calls.failures() == 0) calls.syncs_to_fail = 1;
        write_keys(tier, index, version * 100, 900, version);
        check_all(tier, index, kLayout);
      }
      if (calls.failures() == 0) calls.syncs_to_fail = 1;
      tier.close();
      check(calls.failures() == 1 && tier.detailed_stats().rewritten_files + 1 >= 1, "no sync failed");
      check(tier.detailed_stats().lost_records == 0, "rows were lost");
    }
    calls.check_files(path);
    SsdHashTier tier("var", kLayout, path, options);
    PlainIndex index;
    check(recover_into(index, tier).size() == 1500, "rows are missing");
    check_all(tier, index, kLayout);
  }
}

void a_close_whose_syncs_go_on_failing_may_be_called_again() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  ForgetfulMedium calls;
  SsdHashOptions options = small_files();
  options.file_calls = &calls;
  options.keeps = Keeps::kFiles;
  SsdHashTier tier("var", kLayout, path, options);
  PlainIndex index;
  tier.recover([](const RowBatch&, std::span<const Slot>) {});
  write_keys(tier, index, 0, 3000, 1);
  for (int again = 0; again < 3; ++again) {
    calls.syncs_to_fail = 1000;
    check_throws(ErrorKind::kStorage, "can't be brought to its medium", [&] { tier.close(); });
    check_all(tier, index, kLayout);
  }
  calls.syncs_to_fail = 0;
  tier.close();
  calls.check_files(path);
  SsdHashTier second("var", kLayout, path, options);
  PlainIndex found;
  check(recover_into(found, second).size() == 3000, "rows are missing");
}

void a_checkpoint_whose_sync_failed_fails() {
  const TemporaryDirectory directory;
  ForgetfulMedium calls;
  RowBatch rows(kLayout);
  rows.resize(1);
  fill_row(rows, 0, 7, 1);
  const checkpoint::FileIdentity identity{{}, 0, 1, false};
  {
    checkpoint::Writer writer(directory / "first", kLayout, identity, calls);
    writer.add_row(rows.header(0), rows.row(0));
    calls.syncs_to_fail = 1;
    check_throws(ErrorKind::kStorage, "first: can't be brought to its medium", [&] { writer.finish(); });
    check_throws(ErrorKind::kStorage, "first: what was written is in doubt", [&] { writer.finish(); });
  }
  checkpoint::Writer again(directory / "second", kLayout, identity, calls);
  again.add_row(rows.header(0), rows.row(0));
  again.finish();
  checkpoint::Reader reader(directory / "second", calls);
  check(reader.next()->count == 1 && !reader.next(), "the second try isn't whole");
  check_throws(ErrorKind::kCheckpoint, "can't be opened",
               [&] { checkpoint::Reader(directory / "third", calls); });
}

// Reads of some bytes of one file fail.
class UnreadableBytes final : public files::FileCalls {
 public:
  std::atomic<ino_t> inode{0};
  std::atomic<uint64_t> begin{0};
  std::atomic<uint64_t> end{0};

  ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) override {
    const auto first = static_cast<uint64_t>(offset);
    if (first < end && first + bytes > begin && inode_of(descriptor) == inode) {
      errno = EIO;
      return -1;
    }
    return files::FileCalls::pread(descriptor, data, bytes, offset);
  }
};

struct stat status_of(const std::string& path) {
  struct stat status{};
  check(stat(path.c_str(), &status) == 0, "a file is gone");
  return status;
}

void flip(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
}

void bad_rows_are_told_of_and_all_others_read() {
  for (const IoScheme scheme : {IoScheme::kPread, IoScheme::kAuto}) {
    const TemporaryDirectory directory;
    UnreadableBytes calls;
    SsdHashOptions options = small_files();
    options.file_calls = &calls;
    options.io_scheme = scheme;
    SsdHashTier tier("var", kLayout, directory / "rows", options);
    PlainIndex index;
    write_keys(tier, index, 0, 3000, 1);
    const size_t record = RecordShape(kLayout).bytes;
    const std::vector<std::string> paths = files_in(directory / "rows");
    flip(paths[0], record_offset(5, record) + 70);
    flip(paths[1], record_offset(7, record) + 70);
    fs::resize_file(paths[2], record_offset(40, record) + 1);
    const bool by_calls = scheme == IoScheme::kPread;
    if (by_calls) {
      calls.inode = status_of(paths[3]).st_ino;
      calls.begin = record_offset(20, record);
      calls.end = record_offset(22, record);
    }
    std::vector<Place> places;
    for (const auto& [key, where] : index.all()) places.push_back({key, where.slot});
    RowBatch rows(kLayout);
    std::vector<DamagedRow> damaged;
    tier.read_rows(places, RowPart::kAll, rows, damaged);
    std::set<size_t> bad;
    size_t cut_off = 0;
    size_t unreadable = 0;
    for (const DamagedRow& row : damaged) {
      check(bad.insert(row.position).second, "a row is told of twice");
      check(
          row.reason.find("rows-") != std::string::npos && row.reason.find("record at") != std::string::npos,
          row.reason);
      cut_off += row.reason.find("cut off") != std::string::npos ? 1 : 0;
      unreadable += row.reason.find("Input/output error") != std::string::npos ? 1 : 0;
    }
    check(cut_off > 10 && unreadable == (by_calls ? 2 : 0), "other reasons are told");
    check(bad.size() == 2 + cut_off + unreadable, std::to_string(bad.size()) + " rows are told of");
    for (size_t i = 0; i < places.size(); ++i) {
      if (!bad.contains(i)) check(checked_version(rows, i, places[i].key) == 1, "a row isn't as it was");
    }
  }
}

void a_torn_tail_turns_no_other_rows_away(bool keep_files) {
  const TemporaryDirectory directory;
  SsdHashOptions options = small_files();
  options.keeps = keep_files ? Keeps::kFiles : Keeps::kNothing;
  SsdHashTier tier("var", kLayout, directory / "rows", options);
  if (keep_files) tier.recover([](const RowBatch&, std::span<const Slot>) {});
  PlainIndex index;
  tier.start_compaction(index);
  write_keys(tier, index, 0, 3000, 1);
  const size_t record = RecordShape(kLayout).bytes;
  const std::string torn = files_in(directory / "rows").front();
  const uint64_t records = (fs::file_size(torn) - kHeaderBytes) / record;
  fs::resize_file(torn, record_offset(records - 32, record));
  flip(torn, record_offset(3, record) + 70);
  // Most rows of the torn file go, so that it's worth compacting.
  write_keys(tier, index, 0, 3, 2);
  write_keys(tier, index, 4, static_cast<int64_t>(records) - 36, 2);
  std::vector<Place> gone;
  for (int64_t key = 700; key < 3000; ++key) gone.push_back({key, index.take(key)->slot});
  tier.erase(gone);
  for (int64_t version = 2; version < 152; ++version) {
    write_keys(tier, index, 200 + version * 37 % 400, 100, version);
  }
  const SsdHashStats stats = tier.detailed_stats();
  check(stats.compaction_error.find(torn) != std::string::npos, "stats() don't name the file");
  check(stats.damaged_records >= 33, std::to_string(stats.damaged_records) + " damaged records");
  check(stats.file_bytes <= 2 * stats.live_rows * stats.record_bytes + options.buffer_bytes,
        "one file keeps the others from being compacted");
  check_throws(ErrorKind::kStorage, torn, [&] { tier.drain(); });
  tier.drain();
  // Those of the torn file are told of by whoever reads them, and the others are there.
  std::vector<Place> places;
  for (const auto& [key, where] : index.all()) places.push_back({key, where.slot});
  RowBatch rows(kLayout);
  std::vector<DamagedRow> damaged;
  tier.read_rows(places, RowPart::kAll, rows, damaged);
  check(damaged.size() >= 32 && damaged.size() <= 34, std::to_string(damaged.size()) + " rows can't be read");
  std::vector<Place> given_up;
  for (const DamagedRow& row : damaged) given_up.push_back(places[row.position]);
  // Once nobody wants them, the file goes.
  for (const Place& place : given_up) index.take(place.key);
  tier.erase(given_up);
  for (int64_t version = 200; version < 230; ++version) write_keys(tier, index, 0, 2000, version);
  tier.drain();
  check(!fs::exists(torn) && tier.detailed_stats().compaction_error.empty(), "the torn file stays");
  check_all(tier, index, kLayout);
  if (!keep_files) return;
  tier.close();
  SsdHashTier second("var", kLayout, directory / "rows", options);
  PlainIndex found;
  recover_into(found, second);
  for (const auto& [key, where] : index.all()) {
    check(found.find(key) && found.find(key)->version == where.version, "a row is missing or stale");
  }
}
void a_torn_tail_turns_no_other_rows_away() {
  a_torn_tail_turns_no_other_rows_away(false);
  a_torn_tail_turns_no_other_rows_away(true);
}

void pages_that_cannot_be_read_are_errors_of_their_rows() {
  const TemporaryDirectory directory;
  SsdHashTier tier("var", kLayout, directory / "rows", small_files());
  PlainIndex index;
  write_keys(tier, index, 0, 3000, 1);
  std::vector<Place> places;
  for (const auto& [key, where] : index.all()) places.push_back({key, where.slot});
  RowBatch rows(kLayout);
  tier.read(places, rows);  // from here on the pages are taken for resident, for a while
  const uint64_t mapped = tier.detailed_stats().mapped_rows;
  check(mapped > 1000, "hardly anything is mapped");
  const std::string cut = files_in(directory / "rows")[1];
  const uint64_t bytes = fs::file_size(cut);
  fs::resize_file(cut, 2 * kBlockBytes);  // whole pages are gone: to touch them is a SIGBUS
  std::vector<DamagedRow> damaged;
  tier.read_rows(places, RowPart::kWeights, rows, damaged);
  check(damaged.size() > (bytes - 2 * kBlockBytes) / RecordShape(kLayout).bytes / 2, "rows aren't missed");
  std::set<size_t> bad;
  for (const DamagedRow& row : damaged) {
    check(row.reason.find(cut) == 0 && row.reason.find("cut off") != std::string::npos, row.reason);
    bad.insert(row.position);
  }
  damaged.clear();
  tier.read_rows(places, RowPart::kAll, rows, damaged);
  check(damaged.size() == bad.size(), "other rows are missed by calls");
  for (size_t i = 0; i < places.size(); ++i) {
    if (!bad.contains(i)) check(checked_version(rows, i, places[i].key) == 1, "a row isn't as it was");
  }
  check(tier.detailed_stats().mapped_rows > mapped, "other files are mapped no more");
}

#if !defined(__SANITIZE_THREAD__)
// Touches a page of a file that was cut off, as somebody else's code might.
void touch_a_page_that_is_gone(const std::string& path) {
  std::ofstream(path) << std::string(8192, 'x');
  const int descriptor = open(path.c_str(), O_RDONLY);
  const void* page = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, descriptor, 0);
  check(page != MAP_FAILED && truncate(path.c_str(), 0) == 0, "the page can't be made");
  *static_cast<const volatile char*>(page);
}

// How the process ends: its exit code, or minus the signal.
template <class Child>
int end_of(const Child& child) {
  const pid_t process = fork();
  check(process >= 0, "no process can be started");
  if (process == 0) {
    child();
    _exit(0);
  }
  int status = 0;
  check(waitpid(process, &status, 0) == process, "the process is lost");
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

void handle_bus_errors(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(SIGBUS, &action, nullptr);
}

void bus_errors_of_others_are_handed_on() {
  const TemporaryDirectory directory;
  const std::string path = directory / "page";
  const auto end_with_42 = [](int) { _exit(42); };
  check(end_of([&] {
          handle_bus_errors(end_with_42);
          catch_bus_errors();
          touch_a_page_that_is_gone(path);
        }) == 42,
        "an earlier handler isn't called");
  check(end_of([&] {
          catch_bus_errors();
          handle_bus_errors(end_with_42);
          catch_bus_errors();
          touch_a_page_that_is_gone(path);
        }) == 42,
        "a later handler isn't called");
  check(end_of([&] {
          handle_bus_errors(end_with_42);
          catch_bus_errors();
          raise(SIGBUS);
        }) == 42,
        "a signal that was sent isn't handed on");
  // As faulthandler: it puts back what was there before it, and raises the signal anew.
  check(end_of([&] {
          handle_bus_errors(SIG_DFL);
          catch_bus_errors();
          static struct sigaction before;
          sigaction(SIGBUS, nullptr, &before);
          struct sigaction action = {};
          action.sa_flags = SA_NODEFER;
          action.sa_handler = [](int signal) {
            sigaction(signal, &before, nullptr);
            raise(signal);
          };
          sigaction(SIGBUS, &action, nullptr);
          catch_bus_errors();
          touch_a_page_that_is_gone(path);
        }) == -SIGBUS,
        "the process goes on, or in circles");
}
#endif

constexpr Test kTests[] = {
    {"a_file_whose_sync_failed_takes_nothing_more", a_file_whose_sync_failed_takes_nothing_more},
    {"rows_go_into_a_new_file_after_a_sync_that_failed", rows_go_into_a_new_file_after_a_sync_that_failed},
    {"a_close_whose_syncs_go_on_failing_may_be_called_again",
     a_close_whose_syncs_go_on_failing_may_be_called_again},
    {"a_checkpoint_whose_sync_failed_fails", a_checkpoint_whose_sync_failed_fails},
    {"bad_rows_are_told_of_and_all_others_read", bad_rows_are_told_of_and_all_others_read},
    {"a_torn_tail_turns_no_other_rows_away", a_torn_tail_turns_no_other_rows_away},
    {"pages_that_cannot_be_read_are_errors_of_their_rows",
     pages_that_cannot_be_read_are_errors_of_their_rows},
#if !defined(__SANITIZE_THREAD__)  // which puts itself in between: a handler that gives up is called for ever
    {"bus_errors_of_others_are_handed_on", bus_errors_of_others_are_handed_on},
#endif
};

}  // namespace

std::span<const Test> medium_tests() { return kTests; }

}  // namespace embstore::ssd_hash::testing
