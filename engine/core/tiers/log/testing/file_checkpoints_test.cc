// What a tier has of its table's checkpoints: what comes back, what stays, and what is refused.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "file_workload.h"
#include "files/file.h"
#include "platform/crc32c.h"

namespace embstore::log::testing {
namespace {

namespace fs = std::filesystem;

TEST(what_a_checkpoint_has_comes_back_in_another_process) {
  const TemporaryDirectory directory;
  const SsdHashOptions options = small_files_for_checkpoints();
  Versions first;
  Versions second;
  size_t files = 0;
  {
    TestTable table(directory.path(), options);
    table.write(0, 3000, 1);
    check(table.checkpoint() == 1, "the first checkpoint has another number");
    first = table.versions();
    table.write(1000, 1500, 2);
    table.checkpoint();
    second = table.versions();
    table.write(0, 3000, 3);  // no checkpoint has these
    files = files_in(directory / "rows").size();
  }
  check(files_in(directory / "rows").size() < files, "files of no checkpoint stay when the table closes");
  {
    TestTable table(directory.path(), options);
    check(table.tier->stats().rows == 0, "rows are live before a checkpoint is restored");
    table.restore(2, 1);
    table.check_rows();
    check(table.versions() == second, "other rows came back");
    // Training goes on, with files of other numbers.
    table.write(0, 2000, 4);
    table.restore(1);
    table.check_rows();
    check(table.versions() == first, "other rows came back");
    check(table.kept() == std::vector<uint64_t>{1}, "a newer checkpoint outlives the restoring of an older");
    table.write(500, 1000, 5);
    table.check_rows();
    table.check_space();
    check(table.checkpoint() == 3, "a number is given twice");
    second = table.versions();
    RecordHeader header{};
    const files::File newest(files::system_file_calls(), files_in(directory / "rows").back(), O_RDONLY);
    newest.read_at(&header, sizeof header, kRecord.offset(0));
    check(header.is_whole() && header.epoch == 3, "a record says that it's of an earlier checkpoint, too");
  }
  // Larger and smaller files than the options say now.
  SsdHashOptions other = options;
  other.file_bytes = 20 << 10;
  TestTable table(directory.path(), other);
  table.restore(3);
  table.check_rows();
  check(table.versions() == second, "other rows came back");
  table.write(0, 4000, 6);
  table.check_rows();
}

// Where the blocks end in which rows of a file lie that belong to checkpoint `number`, the newest.
// `before`: where they ended when the one before was begun.
uint64_t end_of_rows(const TestTable& table, const std::string& path, uint64_t before, uint64_t number) {
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

// No byte of a block with rows of a checkpoint changes, whatever is written next.
TEST(blocks_of_a_checkpoint_are_not_written_again) {
  class Writes final : public UnwaitingCalls {
   public:
    std::map<std::string, uint64_t> below_end;  // files, and where nothing may be written
    ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) override {
      const std::string file = fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor)).string();
      const auto held = below_end.find(file);
      check(held == below_end.end() || static_cast<uint64_t>(offset) >= held->second,
            file + " is written over");
      return FileCalls::pwrite(descriptor, data, bytes, offset);
    }
  } calls;
  const TemporaryDirectory directory;
  SsdHashOptions options = small_files_for_checkpoints();
  options.file_calls = &calls;
  TestTable table(directory.path(), options);
  for (int64_t version = 1; version < 200; ++version) {
    table.write(version * 7, 1 + version % 23, version);
    const uint64_t number = table.checkpoint();
    std::map<std::string, uint64_t> ends;
    for (const std::string& path : files_in(directory / "rows")) {
      const std::string file = fs::canonical(path).string();
      ends[file] = end_of_rows(table, file, calls.below_end[file], number);
    }
    calls.below_end = ends;
    if (number > 3) table.checkpoints->drop(number - 3);
  }
}

TEST(files_that_only_a_dropped_checkpoint_needed_go) {
  const TemporaryDirectory directory;
  TestTable table(directory.path(), small_files_for_checkpoints());
  table.write(0, 3000, 1);
  table.checkpoint();
  table.erase_all();
  table.check_space();
  check(table.tier->detailed_stats().held_bytes > 3000 * kRecord.stride * 9 / 10,
        "what a checkpoint needs went");
  // Nor is there more to compact for what a checkpoint holds.
  const uint64_t compacted = table.tier->detailed_stats().compacted_files;
  table.write(0, 3000, 2);
  check(table.tier->detailed_stats().compacted_files == compacted, "files are compacted that are all live");
  table.erase_all();
  table.checkpoints->drop(1);
  check(table.tier->detailed_stats().held_bytes == 0, "files are held for nobody");
  const uint64_t bytes = bytes_in(directory / "rows");
  check(bytes <= (128 << 10), "files that nobody needs stay: " + std::to_string(bytes));
}

TEST(what_is_missing_or_another_table_s_is_refused_by_name) {
  const TemporaryDirectory directory;
  const std::string root = directory / "table";
  for (const char* const name : {"whole", "other"}) {
    TestTable table(directory / name, small_files_for_checkpoints());
    table.write(0, 3000, 1);
    table.checkpoint();
  }
  const auto refused = [&](ErrorKind kind, const std::string& file, const std::string& why,
                           const TableIdentity& as, const auto& damage) {
    fs::remove_all(root);
    fs::copy(directory / "whole", root, fs::copy_options::recursive);
    damage(root + "/" + file);
    const std::vector<std::string> files = files_in(root + "/rows");
    const std::string message = error_of(kind, [&] { TestTable(root, small_files_for_checkpoints(), as); });
    check(message.find(why) != std::string::npos && message.find(root + "/" + file) == 0, message);
    check(files_in(root + "/rows") == files, "files went");
  };
  const std::string rows = "rows/rows-0000000002.ssdhash";
  const auto damaged = [&](const std::string& why, const auto& damage) {
    refused(ErrorKind::kStorage, rows, why, table_of(), damage);
  };
  damaged("is missing, and a checkpoint needs it", [](const std::string& file) { fs::remove(file); });
  damaged("records and 16384 bytes, not for",
          [](const std::string& file) { fs::resize_file(file, fs::file_size(file) - kBlockBytes); });
  damaged("its header isn't what was written", [](const std::string& file) { flip(file, 30); });
  damaged("its header isn't what was written", [](const std::string& file) { fs::resize_file(file, 0); });
  damaged("isn't a file of this engine's rows", [](const std::string& file) { flip(file, 0); });
  for (const std::string& from : {root + "/rows/rows-0000000001.ssdhash", (directory / "other/") + rows}) {
    damaged("is another file than the one that the checkpoints beside it are of",
            [&](const std::string& file) { fs::copy(from, file, fs::copy_options::overwrite_existing); });
  }
  const auto with_header = [](const std::string& path, const auto& change) {
    files::File file(files::system_file_calls(), path, O_RDWR);
    FileHeader header{};
    file.read_at(&header, sizeof header, 0);
    change(header);
    header.checksum = crc32c(&header, offsetof(FileHeader, checksum));
    file.write_at(&header, sizeof header, 0);
  };
  damaged("has room for 103 records",
          [&](const std::string& file) { with_header(file, [](FileHeader& header) { ++header.capacity; }); });
  damaged("is another file than the one that the checkpoints beside it are of", [&](const std::string& file) {
    with_header(file, [](FileHeader& header) { header.stride += 16; });
  });
  const auto another = [&](const std::string& why, const TableIdentity& as) {
    refused(ErrorKind::kInvalidArgument, "manifests/table.checkpoint-0000000001", why, as,
            [](const std::string&) {});
  };
  another("is of the variable \"var\", not of \"other\"", table_of(kLayout, "other"));
  another("dim 9 with 1 optimizer slots; the variable has dim 12 with 0", table_of(RowLayout(12, 0)));
  TableIdentity adam = table_of();
  adam.optimizer = "adam";
  another("of the optimizer adagrad, and the variable has adam", adam);
}

TEST(a_record_whose_header_is_damaged_is_named_and_nothing_is_live_then) {
  const TemporaryDirectory directory;
  const SsdHashOptions options = small_files_for_checkpoints();
  {
    TestTable table(directory.path(), options);
    table.write(0, 3000, 1);
    table.checkpoint();
  }
  const std::string path = directory / "rows/rows-0000000002.ssdhash";
  const auto refused = [&](uint64_t record, const std::string& fault, const auto& damage,
                           const auto& repair) {
    damage();
    for (const int threads : {1, 3}) {
      TestTable table(directory.path(), options);
      const std::string message = error_of(ErrorKind::kStorage, [&] { table.restore(1, threads); });
      check(message == path + ": the record at " + std::to_string(kRecord.offset(record)) + " " + fault,
            message);
      check(table.tier->stats().rows == 0, "rows are live");
    }
    repair();
    TestTable table(directory.path(), options);
    table.restore(1);
    check(table.index.size() == 3000, "rows are missing");
  };
  const auto flip_key = [&] { flip(path, kRecord.offset(5) + 6); };
  refused(5, "is damaged: its header's checksum is wrong", flip_key, flip_key);
  // A record that was made after the checkpoint began isn't of it, however whole.
  files::File file(files::system_file_calls(), path, O_RDWR);
  RecordHeader header{};
  file.read_at(&header, sizeof header, kRecord.offset(7));
  const auto set_epoch = [&](uint64_t epoch) {
    header.epoch = epoch;
    header.checksum = header.computed_checksum();
    file.write_at(&header, sizeof header, kRecord.offset(7));
  };
  refused(7, "is damaged: it's of a later checkpoint", [&] { set_epoch(2); }, [&] { set_epoch(1); });

  // What a visitor throws comes through.
  TestTable table(directory.path(), options);
  const auto refuse = [](size_t, std::span<const RowHeader>, std::span<const Slot>) {
    throw Error(ErrorKind::kStoreFull, "no room");
  };
  check_throws(ErrorKind::kStoreFull, "no room", [&] { table.checkpoints->restore(1, 2, refuse); });
  table.restore(1);
  table.check_rows();
}

TEST(a_row_whose_floats_are_damaged_is_told_of_when_it_is_read) {
  const TemporaryDirectory directory;
  const SsdHashOptions options = small_files_for_checkpoints();
  {
    TestTable table(directory.path(), options);
    table.write(0, 3000, 1);
    table.checkpoint();
  }
  const std::string path = directory / "rows/rows-0000000002.ssdhash";
  flip(path, kRecord.offset(5) + 70);   // a weight
  flip(path, kRecord.offset(6) + 130);  // a slot
  TestTable table(directory.path(), options);
  table.restore(1);
  std::vector<Place> places;
  for (const auto& [key, entry] : table.index.all()) places.push_back({key, entry.slot});
  check(places.size() == 3000, "a damaged row isn't there");
  RowBatch rows(kLayout);
  rows.set_places(places);
  table.tier->read_rows(rows, RowPart::kAll);
  std::map<int64_t, std::string> reasons;  // by key
  for (const auto& [position, reason] : rows.damaged()) reasons.emplace(places[position].key, reason);
  for (size_t i = 0; i < places.size(); ++i) {
    if (!reasons.contains(places[i].key)) checked_version(rows, i, places[i].key);
  }
  check(reasons.size() == 2, std::to_string(reasons.size()) + " rows are called damaged");
  const auto told = [&](uint64_t record, const std::string& fault) {
    const std::string at = path + ": the record at " + std::to_string(kRecord.offset(record)) + " (key ";
    return std::any_of(reasons.begin(), reasons.end(), [&](const auto& reason) {
      return reason.second == at + std::to_string(reason.first) + ") is damaged: " + fault;
    });
  };
  check(
      told(5, "its weights' checksum is wrong") && told(6, "the checksum of its optimizer's slots is wrong"),
      reasons.begin()->second);
  // Without these rows the table goes on, into the next checkpoint too.
  for (const auto& [key, reason] : reasons) table.erase({&key, 1});
  table.check_rows();
  table.checkpoint();
  table.restore(2);
  check(table.index.size() == 2998, "another number of rows came back");
  table.check_rows();
}

TEST(calls_in_the_wrong_order_are_refused) {
  const TemporaryDirectory directory;
  SsdHashTier tier(table_of(), directory / "rows", small_files_for_checkpoints());
  RowBatch rows(kLayout);
  rows.resize(1);
  fill_row(rows, 0, 1, 1);
  std::vector<Slot> slots(1);
  const DurableTier::Restored nothing = [](std::span<const RowHeader>, std::span<const Slot>) {};
  check_throws(ErrorKind::kInvalidArgument, "take_up() comes before", [&] { tier.write(rows, slots); });
  tier.take_up({});
  check_throws(ErrorKind::kInvalidArgument, "comes once", [&] { tier.take_up({}); });
  tier.write(rows, slots);
  check_throws(ErrorKind::kInvalidArgument, "rows are live", [&] { tier.restore(1, 1, nothing); });
  SsdHashTier other(table_of(), directory / "other", small_files());
  check_throws(ErrorKind::kInvalidArgument, "keeps no checkpoints", [&] { other.begin_checkpoint(1); });
}

// Begins a checkpoint in the middle of the first compaction: where some rows are both in their old and their new place.
class BeginsWhileRowsMove final : public Relocator {
 public:
  explicit BeginsWhileRowsMove(TestTable& table) : table_(table) {}
  void relocate(std::span<Relocation> rows) override {
    if (!begun_.joinable()) {
      begun_ = std::thread([this] {
        table_.begin();
        has_begun_ = true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    // One row was written anew meanwhile, say: its copy is refused.
    table_.index.relocate(rows.subspan(1));
    is_early_ = is_early_ || (!is_over_ && has_begun_);
    is_over_ = true;
  }
  bool was_early() {
    begun_.join();
    return is_early_;
  }

 private:
  TestTable& table_;
  std::thread begun_;
  std::atomic<bool> has_begun_{false};
  bool is_early_ = false;
  bool is_over_ = false;
};

// All but every eighth.
void erase_most(TestTable& table) {
  std::vector<int64_t> keys;
  for (const auto& [key, version] : table.versions()) {
    if (key % 8 != 0) keys.push_back(key);
  }
  table.erase(keys);
}

TEST(a_checkpoint_begins_when_no_row_is_in_two_places) {
  const TemporaryDirectory directory;
  TestTable table(directory.path(), small_files_for_checkpoints());
  BeginsWhileRowsMove relocator(table);
  table.tier->start_compaction(relocator);
  table.write(0, 3000, 1);
  erase_most(table);
  table.tier->compact();
  check(!relocator.was_early(), "a checkpoint began while rows were on the move");
  table.commit(1);
  const Versions versions = table.versions();
  table.restore(1);  // with the number of rows that the manifest has
  table.check_rows();
  check(table.versions() == versions, "other rows came back");
}

// Moves its first rows when those of a checkpoint have come back to their places, or evidently wait for it.
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

TEST(rows_that_were_on_the_move_come_back_once) {
  const TemporaryDirectory directory;
  TestTable table(directory.path(), small_files_for_checkpoints());
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

// Writes, reads and compaction go on while checkpoints are committed and dropped.
TEST(checkpoints_are_committed_while_others_write_and_read) {
  const TemporaryDirectory directory;
  SsdHashOptions options = small_files_for_checkpoints();
  options.compaction = CompactionMode::kOwnThread;
  CheckpointVersions had;
  {
    TestTable table(directory.path(), options);
    constexpr int64_t kRounds = 25;
    for (int64_t round = 1; round <= kRounds; ++round) {
      table.write(round * 100, 900, round);
      const uint64_t number = table.begin();
      had[number] = table.versions();
      std::atomic<bool> is_committed{false};
      std::thread writer([&] {
        for (int64_t version = 1000; version < 1008 || !is_committed; ++version) {
          table.write(version * 37 % 2000, 200, version);
          table.check_rows();
        }
      });
      table.commit(number);
      if (number > 2) {
        table.checkpoints->drop(number - 2);
        had.erase(number - 2);
      }
      is_committed = true;
      writer.join();
    }
    check(table.tier->detailed_stats().compacted_files > 0, "nothing was compacted");
  }
  TestTable table(directory.path(), options);
  for (auto last = had.rbegin(); last != had.rend(); ++last) {
    table.restore(last->first);
    check(table.versions() == last->second, "other rows came back");
  }
}

void run(SsdHashOptions options, uint64_t first_seed, uint64_t seeds) {
  UnwaitingCalls calls;
  options.file_calls = &calls;
  for (uint64_t seed = first_seed; seed < first_seed + scenes(seeds); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const TemporaryDirectory directory;
    FileWorkload workload(directory.path(), seed, options);
    for (int step = 1; step <= 1200; ++step) {
      workload.step();
      if (step % 20 == 0) workload.expect();
      if (step % 150 == 0) workload.restart();
    }
  }
  tested_case().clear();
}

TEST(random_checkpoints_by_what_is_quickest) { run(small_files_for_checkpoints(), 1, 10); }
TEST(random_checkpoints_by_calls_past_the_page_cache) {
  SsdHashOptions options = small_files_for_checkpoints();
  options.direct = true;
  run(options, 100, 3);
}
TEST(random_checkpoints_with_a_compaction_thread) {
  SsdHashOptions options = small_files_for_checkpoints();
  options.compaction = CompactionMode::kOwnThread;
  run(options, 200, 10);
}

}  // namespace
}  // namespace embstore::log::testing
