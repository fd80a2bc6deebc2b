// Tests of checkpoints in files: whole files are held, and compaction moves rows meanwhile.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "files/file.h"
#include "table.h"

namespace embstore::log::testing {
namespace {

namespace fs = std::filesystem;

TEST(files_of_no_checkpoint_go_when_the_table_closes_and_files_of_other_sizes_are_taken_up) {
  const TemporaryDirectory directory;
  SsdHashOptions options = small_files_for_checkpoints();
  {
    FileTable table(directory.path(), options);
    table.write(0, 3000, 1);
    table.checkpoint();
    table.write(0, 3000, 2);  // these are in no checkpoint
    const size_t files = files_in(directory / "rows").size();
    table.reopen();
    check(files_in(directory / "rows").size() < files, "files of no checkpoint stay when the table closes");
    table.restore(1);
    table.write(500, 1000, 3);
    table.checkpoint();
    RecordHeader header{};
    const files::File newest(files::system_file_calls(), files_in(directory / "rows").back(), O_RDONLY);
    newest.read_at(&header, sizeof header, kRecord.offset(0));
    check(header.is_whole() && header.epoch == 2, "a record says that it's of an earlier checkpoint, too");
  }
  // The files are larger and smaller than the options now say.
  options.file_bytes = 20 << 10;
  FileTable table(directory.path(), options);
  table.restore(2);
  table.check_rows();
  table.write(0, 4000, 4);
  table.check_rows();
  table.check_space();
}

// Each file takes as many slot numbers as the longest one may have.
TEST(short_files_leave_slot_numbers_to_others) {
  const TemporaryDirectory directory;
  SsdHashOptions options = small_files_for_checkpoints();
  {
    FileTable table(directory / "short", options);
    table.write(0, 20'000, 1);
    table.checkpoint();
    check(files_in(directory / "short/rows").size() > 64, "there are too few files to tell anything");
  }
  options.file_bytes = uint64_t{1} << 40;
  for (const char* const name : {"short", "long from the first"}) {
    FileTable table(directory / name, options);
    if (table.checkpoints->awaits_restore()) table.restore(1);
    for (int64_t first = 20'000; first < 60'000; first += 1000) table.write(first, 1000, 2);
    table.check_rows();
    table.check_space();
  }
}

// The system allows a process some tens of thousands of page ranges.
TEST(a_short_file_takes_no_range_of_pages_but_its_mapping) {
  const auto ranges = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
  };
  for (const bool keeps_checkpoints : {false, true}) {
    const TemporaryDirectory directory;
    SsdHashOptions options = small_files();
    options.keeps_checkpoints = keeps_checkpoints;
    FileTable table(directory.path(), options);
    table.write(0, 1000, 1);
    const auto before = ranges();
    const auto files_before = static_cast<int64_t>(table.tier->detailed_stats().files);
    table.write(1000, 160'000, 1);
    const auto files = static_cast<int64_t>(table.tier->detailed_stats().files) - files_before;
    check(files > 200, "there are too few files to tell anything");
    check(ranges() - before < files + files / 4, "a file takes ranges of pages beside its mapping");
  }
}

// Returns the end of the blocks in which rows of a file lie that belong to the newest checkpoint, `number`.
// `before` is that end for the checkpoint before.
uint64_t end_of_rows(const FileTable& table, const std::string& path, uint64_t before, uint64_t number) {
  const files::File file(files::system_file_calls(), path, O_RDONLY);
  uint64_t end = kHeaderBytes;
  RecordHeader header{};
  for (uint64_t record = 0; file.read_at(&header, sizeof header, kRecord.offset(record)) == sizeof header;
       ++record) {
    const auto live = table.index.find(header.key);
    if (!header.is_whole() || !live || live->version != header.version) continue;
    check(header.epoch <= number && (kRecord.offset(record) < before || header.epoch == number),
          "a record has another epoch than the checkpoint that it's the first of");
    end = kRecord.offset(record + 1);
  }
  return round_up_to_block(end);
}

// Checks that no byte of a block with rows of a checkpoint changes, whatever is written next.
TEST(blocks_of_a_checkpoint_are_not_written_again) {
  std::map<std::string, uint64_t> below_end;  // per file, the end of what may not be written
  WatchedCalls calls;
  calls.before = [&below_end](const FileCall& call) {
    if (call.kind != FileCall::kWrite) return 0;
    const auto held = below_end.find(call.path_of_descriptor());
    check(held == below_end.end() || call.offset >= held->second,
          [&] { return held->first + " is written over"; });
    return 0;
  };
  const TemporaryDirectory directory;
  FileTable table(directory.path(), small_files_for_checkpoints(calls));
  for (int64_t version = 1; version < 200; ++version) {
    table.write(version * 7, 1 + version % 23, version);
    const uint64_t number = table.checkpoint();
    std::map<std::string, uint64_t> ends;
    for (const std::string& path : files_in(directory / "rows")) {
      const std::string file = fs::canonical(path).string();
      ends[file] = end_of_rows(table, file, below_end[file], number);
    }
    below_end = ends;
    if (number > 3) table.checkpoints->drop(number - 3);
  }
}

TEST(files_that_only_a_dropped_checkpoint_needed_go) {
  const TemporaryDirectory directory;
  FileTable table(directory.path(), small_files_for_checkpoints());
  table.write(0, 3000, 1);
  table.checkpoint();
  table.erase_all();
  table.check_space();
  check(table.tier->detailed_stats().held_bytes > 3000 * kRecord.stride * 9 / 10,
        "what a checkpoint needs went");
  // Files that a checkpoint holds don't cause more compaction either.
  const uint64_t compacted = table.tier->detailed_stats().compacted_files;
  table.write(0, 3000, 2);
  check(table.tier->detailed_stats().compacted_files == compacted, "files are compacted that are all live");
  table.erase_all();
  table.checkpoints->drop(1);
  check(table.tier->detailed_stats().held_bytes == 0, "files are held for nobody");
  const uint64_t bytes = bytes_in(directory / "rows");
  check(bytes <= (128 << 10), "files that nobody needs stay: " + std::to_string(bytes));
}

// Begins a checkpoint in the middle of the first compaction, when some rows are in both their old and their
// new place.
class BeginsWhileRowsMove final : public Relocator {
 public:
  explicit BeginsWhileRowsMove(FileTable& table) : table_(table) {}
  void relocate(std::span<Relocation> rows) override {
    if (!begun_.joinable()) {
      begun_ = std::thread([this] {
        table_.begin();
        has_begun_ = true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    // As if one row had been rewritten meanwhile: its copy is refused.
    table_.index.relocate(rows.subspan(1));
    is_early_ = is_early_ || (!is_over_ && has_begun_);
    is_over_ = true;
  }
  bool was_early() {
    begun_.join();
    return is_early_;
  }

 private:
  FileTable& table_;
  std::thread begun_;
  std::atomic<bool> has_begun_{false};
  bool is_early_ = false;
  bool is_over_ = false;
};

// Erases all rows but every eighth.
void erase_most(FileTable& table) {
  std::vector<int64_t> keys;
  for (const auto& [key, version] : table.versions()) {
    if (key % 8 != 0) keys.push_back(key);
  }
  table.erase(keys);
}

TEST(a_checkpoint_begins_when_no_row_is_in_two_places) {
  const TemporaryDirectory directory;
  FileTable table(directory.path(), small_files_for_checkpoints());
  BeginsWhileRowsMove relocator(table);
  table.tier->start_compaction(relocator);
  table.write(0, 3000, 1);
  erase_most(table);
  table.tier->compact();
  check(!relocator.was_early(), "a checkpoint began while rows were on the move");
  table.commit(1);
  const Versions versions = table.versions();
  table.restore(1);  // checks the number of rows in the manifest, too
  table.check_rows();
  check(table.versions() == versions, "other rows came back");
}

// Moves its first rows when a checkpoint's rows are back in their places, or, after a while, because the
// restore evidently waits for the move.
class MovesDuringRestore final : public Relocator {
 public:
  explicit MovesDuringRestore(PlainIndex& index) : index_(index) {}
  void relocate(std::span<Relocation> rows) override {
    is_moving = true;
    wait_for(are_back);
    index_.relocate(rows);
    has_moved = true;
  }
  static void wait_for(const std::atomic<bool>& event) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (!event && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }

  std::atomic<bool> is_moving{false};
  std::atomic<bool> are_back{false};
  std::atomic<bool> has_moved{false};

 private:
  PlainIndex& index_;
};

TEST(rows_that_were_being_moved_come_back_once) {
  const TemporaryDirectory directory;
  FileTable table(directory.path(), small_files_for_checkpoints());
  MovesDuringRestore relocator(table.index);
  table.tier->start_compaction(relocator);
  table.write(0, 3000, 1);
  table.checkpoint();
  const Versions versions = table.versions();
  erase_most(table);
  std::thread mover([&] { table.tier->compact(); });
  while (!relocator.is_moving) std::this_thread::yield();
  table.erase_all();
  const auto visit = [&](size_t, std::span<const RowHeader> headers, std::span<const Slot> slots) {
    for (size_t i = 0; i < slots.size(); ++i) table.index.put(headers[i].key, slots[i], headers[i].version);
    if (table.index.size() < versions.size()) return;
    relocator.are_back = true;
    MovesDuringRestore::wait_for(relocator.has_moved);
  };
  table.checkpoints->restore(1, 1, visit);
  mover.join();
  table.check_rows();
  check(table.versions() == versions, "other rows came back");
  table.checkpoint();
  table.restore(2);
  check(table.versions() == versions, "rows are in the next checkpoint twice, or not at all");
}

}  // namespace
}  // namespace embstore::log::testing
