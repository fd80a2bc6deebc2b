// Tests of a medium that doesn't return what was written, or doesn't accept it: syncs that fail, damaged
// bytes, unreadable pages.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "keep/checkpoint/reader.h"
#include "keep/checkpoint/writer.h"
#include "table.h"

namespace embstore::log::testing {
namespace {

namespace fs = std::filesystem;

ino_t inode_of(int descriptor) {
  struct stat status{};
  check(fstat(descriptor, &status) == 0, "a file can't be looked at");
  return status.st_ino;
}

// Behaves like Linux: a sync that fails drops the data that it couldn't write, and the next one succeeds.
class ForgetfulMedium final : public UnwaitingCalls {
 public:
  ~ForgetfulMedium() override {
    for (const int held : held_) ::close(held);
  }

  std::atomic<int> syncs_to_fail{0};
  std::atomic<int> syncs_before{0};  // syncs that succeed first
  std::atomic<int> syncs{0};

  int fdatasync(int descriptor) override {
    ++syncs;
    if (--syncs_before >= 0 || --syncs_to_fail < 0) return UnwaitingCalls::fdatasync(descriptor);
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
  // Fails if the sync of a file in `directory` has failed.
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

// Returns how many syncs there were.
int rows_go_into_a_new_file(int failing_sync) {
  const TemporaryDirectory directory;
  ForgetfulMedium calls;
  calls.syncs_before = failing_sync;
  calls.syncs_to_fail = 1;
  const SsdHashOptions options = small_files_for_checkpoints(calls);
  std::map<uint64_t, Versions> committed;
  {
    FileTable table(directory.path(), options);
    for (int64_t version = 1; version < 6; ++version) {
      table.write(version * 100, 900, version);
      const uint64_t number = table.begin();
      committed[number] = table.versions();
      table.write(version * 100, 50, version + 100);
      try {
        table.commit(number);
      } catch (const Error& error) {
        // A manifest whose sync failed leaves nothing, and the commit may be repeated.
        check(std::string(error.what()).find("/manifests/") != std::string::npos, error.what());
        table.commit(number);
      }
      table.check_rows();
    }
    check(table.tier->detailed_stats().lost_records == 0, "rows were lost");
  }
  check(calls.failures() == (failing_sync < calls.syncs ? 1 : 0), "other syncs failed");
  calls.check_files(directory / "rows");
  calls.check_files(directory / "manifests");
  const int syncs = calls.syncs;
  FileTable table(directory.path(), options);
  for (auto last = committed.rbegin(); last != committed.rend(); ++last) {
    table.restore(last->first);
    table.check_rows();
    check(table.versions() == last->second, "a checkpoint has other rows");
  }
  return syncs;
}
TEST(rows_go_into_a_new_file_after_a_sync_that_failed) {
  const int syncs = rows_go_into_a_new_file(INT32_MAX);
  check(syncs > 30, "too few syncs for this test");
  for (int failing = 0; failing < syncs; ++failing) rows_go_into_a_new_file(failing);
}

TEST(damage_of_what_a_checkpoint_needs_is_not_copied_into_a_new_file) {
  const TemporaryDirectory directory;
  ForgetfulMedium calls;
  FileTable table(directory.path(), small_files_for_checkpoints(calls));
  table.write(0, 50, 1);
  table.checkpoint();
  table.erase_all();
  table.write(100, 20, 2);
  const std::string file = files_in(directory / "rows").front();
  const uint64_t number = table.begin();
  flip(file, kRecord.offset(5) + 70);
  calls.syncs_to_fail = 1;
  const std::string message = error_of(ErrorKind::kStorage, [&] { table.commit(number); });
  check(message == file + ": the record at " + std::to_string(kRecord.offset(5)) +
                       " is damaged: its weights' checksum is wrong, and a checkpoint needs it: the file "
                       "stays as it is",
        message);
  flip(file, kRecord.offset(5) + 70);
  table.commit(number);
  table.restore(1);
  table.check_rows();
  check(table.index.size() == 50, "rows are missing");
}

TEST(a_commit_whose_syncs_go_on_failing_may_be_called_again) {
  const TemporaryDirectory directory;
  ForgetfulMedium calls;
  const SsdHashOptions options = small_files_for_checkpoints(calls);
  {
    FileTable table(directory.path(), options);
    table.write(0, 3000, 1);
    const uint64_t number = table.begin();
    for (int again = 0; again < 3; ++again) {
      calls.syncs_to_fail = 1000;
      check_throws(ErrorKind::kStorage, "can't be brought to its medium", [&] { table.commit(number); });
      table.check_rows();
    }
    calls.syncs_to_fail = 0;
    table.commit(number);
    check(table.tier->detailed_stats().rewritten_files > 0, "no file was written anew");
  }
  calls.check_files(directory / "rows");
  FileTable table(directory.path(), options);
  table.restore(1);
  check(table.index.size() == 3000, "rows are missing");
  table.check_rows();
}

TEST(a_save_whose_sync_failed_fails) {
  const TemporaryDirectory directory;
  ForgetfulMedium calls;
  RowBatch rows(kLayout);
  rows.resize(1);
  fill_row(rows, 0, 7, 1);
  {
    checkpoint::Writer writer(directory / "first", kLayout, {}, calls);
    writer.add_row(rows.header(0), rows.row(0));
    calls.syncs_to_fail = 1;
    check_throws(ErrorKind::kStorage, "first: can't be brought to its medium", [&] { writer.finish(); });
    check_throws(ErrorKind::kStorage, "first: what was written is in doubt", [&] { writer.finish(); });
  }
  checkpoint::Writer again(directory / "second", kLayout, {}, calls);
  again.add_row(rows.header(0), rows.row(0));
  again.finish();
  checkpoint::Reader reader(directory / "second", calls);
  check(reader.next()->count == 1 && !reader.next(), "the second try isn't whole");
  check_throws(ErrorKind::kCheckpoint, "can't be opened",
               [&] { checkpoint::Reader(directory / "third", calls); });
}

int64_t key_at(const std::string& file, uint64_t record) {
  RecordHeader header{};
  files::File(files::system_file_calls(), file, O_RDONLY)
      .read_at(&header, sizeof header, kRecord.offset(record));
  return header.key;
}

TEST(damaged_rows_are_reported_and_all_others_are_read) {
  for (const IoScheme scheme : {IoScheme::kPread, IoScheme::kAuto}) {
    const TemporaryDirectory directory;
    ino_t unreadable_file = 0;  // reads of its third block fail
    WatchedCalls calls;
    calls.before = [&](const FileCall& call) {
      const bool is_bad = call.kind == FileCall::kRead && call.offset < 3 * kBlockBytes &&
                          call.offset + call.bytes > 2 * kBlockBytes;
      return is_bad && unreadable_file != 0 && inode_of(call.descriptor) == unreadable_file ? EIO : 0;
    };
    SsdHashOptions options = small_files(calls);
    options.io_scheme = scheme;
    FileTable table(directory.path(), options);
    table.write(0, 3000, 1);
    const std::vector<std::string> paths = files_in(directory / "rows");
    std::map<int64_t, std::string> expected;  // reasons, by key
    const auto damage = [&](size_t file, uint64_t record, uint64_t byte, const std::string& reason) {
      flip(paths[file], kRecord.offset(record) + byte);
      const int64_t key = key_at(paths[file], record);
      expected[key] = paths[file] + ": the record at " + std::to_string(kRecord.offset(record)) + " (key " +
                      std::to_string(key) + ") is damaged: " + reason;
    };
    damage(0, 6, 70, "its weights' checksum is wrong");
    damage(0, 7, 130, "the checksum of its optimizer's slots is wrong");
    damage(1, 7, 41, "its header's checksum is wrong");  // the epoch
    fs::resize_file(paths[2], kRecord.offset(40) + 1);
    const bool by_calls = scheme == IoScheme::kPread;
    constexpr size_t kRecordsOfBlock = 27;  // of 160 bytes each, those that lie in it partly included
    if (by_calls) {
      const files::File file(files::system_file_calls(), paths[3], O_RDONLY);
      unreadable_file = inode_of(file.pin().number());
    }
    const std::vector<Place> places = table.index.places();
    RowBatch rows(kLayout);
    rows.set_places(places);
    table.tier->read_rows(rows, RowPart::kAll);
    std::set<size_t> bad;
    size_t cut_off = 0;
    size_t unreadable = 0;
    for (const auto& [position, reason] : rows.damaged()) {
      bad.insert(position);
      check(reason.find("rows-") != std::string::npos && reason.find("record at") != std::string::npos,
            reason);
      if (const auto damaged = expected.find(places[position].key); damaged != expected.end()) {
        check(reason == damaged->second, reason);
      }
      cut_off += reason.find(") is cut off: the file was truncated") != std::string::npos ? 1 : 0;
      unreadable += reason.find("Input/output error") != std::string::npos ? 1 : 0;
    }
    check(cut_off > 10 && unreadable == (by_calls ? kRecordsOfBlock : 0), "other reasons are told");
    check(bad.size() == 3 + cut_off + unreadable, std::to_string(bad.size()) + " rows are told of");
    for (size_t i = 0; i < places.size(); ++i) {
      if (!bad.contains(i)) check(checked_version(rows, i, places[i].key) == 1, "a row isn't as it was");
    }
    // After an erasure, no error reports them.
    for (const size_t i : bad) table.tier->erase({&places[i], 1});
    table.tier->read_rows(rows, RowPart::kAll);
    check(rows.damaged().empty(), "nobody's row is told of");
  }
}

TEST(a_torn_tail_refuses_no_other_rows) {
  const TemporaryDirectory directory;
  const SsdHashOptions options = small_files();
  FileTable table(directory.path(), options);
  table.write(0, 3000, 1);
  const std::string torn = files_in(directory / "rows").front();
  const uint64_t records = (fs::file_size(torn) - kHeaderBytes) / kRecord.stride;
  fs::resize_file(torn, kRecord.offset(records - 32));
  flip(torn, kRecord.offset(3) + 70);  // a weight
  flip(torn, kRecord.offset(4) + 20);  // a header
  // Most rows of the torn file are erased, so that it's worth compacting.
  table.write(0, 3, 2);
  table.write(5, static_cast<int64_t>(records) - 37, 2);
  table.erase(keys_from(700, 2300));
  for (int64_t version = 2; version < 152; ++version) table.write(200 + version * 37 % 400, 100, version);
  const SsdHashStats stats = table.tier->detailed_stats();
  check(stats.compaction_error.find(torn) != std::string::npos, "stats() don't name the file");
  check(stats.damaged_records >= 34, std::to_string(stats.damaged_records) + " damaged records");
  check(stats.file_bytes <= 2 * stats.live_rows * stats.record_bytes + options.buffer_bytes,
        "one file keeps the others from being compacted");
  check_throws(ErrorKind::kStorage, torn, [&] { table.tier->drain(); });
  table.tier->drain();
  // Reads report the damaged rows of the torn file, wherever they were moved, and all others are there.
  const std::vector<Place> places = table.index.places();
  RowBatch rows(kLayout);
  rows.set_places(places);
  table.tier->read_rows(rows, RowPart::kAll);
  const std::map<size_t, std::string>& damaged = rows.damaged();
  check(damaged.size() >= 33 && damaged.size() <= 35, std::to_string(damaged.size()) + " rows can't be read");
  std::vector<int64_t> given_up;
  for (const auto& [position, reason] : damaged) given_up.push_back(places[position].key);
  std::sort(given_up.begin(), given_up.end());
  check(given_up[0] == 3 && given_up[1] == 4, "damage was repaired by moving it");
  // Once they are erased, the file is removed.
  table.erase(given_up);
  for (int64_t version = 200; version < 230; ++version) table.write(0, 2000, version);
  table.tier->drain();
  check(!fs::exists(torn) && table.tier->detailed_stats().compaction_error.empty(), "the torn file stays");
  table.check_rows();
}

TEST(pages_that_cannot_be_read_are_errors_of_their_rows) {
  const TemporaryDirectory directory;
  FileTable table(directory.path());
  SsdHashTier& tier = *table.tier;
  table.write(0, 3000, 1);
  const std::vector<Place> places = table.index.places();
  RowBatch rows(kLayout);
  tier.read(places, rows);  // from here on the pages count as resident, for a while
  const uint64_t mapped = tier.detailed_stats().mapped_rows;
  check(mapped > 1000, "hardly anything is mapped");
  const std::string cut = files_in(directory / "rows")[1];
  const uint64_t bytes = fs::file_size(cut);
  fs::resize_file(cut, 2 * kBlockBytes);  // whole pages are gone: an access to them raises SIGBUS
  const std::map<size_t, std::string>& damaged = rows.damaged();
  tier.read_rows(rows, RowPart::kWeights);
  check(damaged.size() > (bytes - 2 * kBlockBytes) / kRecord.stride / 2, "rows aren't missed");
  std::set<size_t> bad;
  for (const auto& [position, reason] : damaged) {
    check(reason.find(cut) == 0 && reason.find("cut off") != std::string::npos, reason);
    bad.insert(position);
  }
  tier.read_rows(rows, RowPart::kAll);
  check(damaged.size() == bad.size(), "other rows are missed by calls");
  for (size_t i = 0; i < places.size(); ++i) {
    if (!bad.contains(i)) check(checked_version(rows, i, places[i].key) == 1, "a row isn't as it was");
  }
  check(tier.detailed_stats().mapped_rows > mapped, "other files are mapped no more");
}

}  // namespace
}  // namespace embstore::log::testing
