// What a tier has of the checkpoints of the pool above it: what comes back, what stays, and what is refused.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

#include "checkpoint_workload.h"

namespace embstore::ssd_hash::testing {
namespace {

namespace fs = std::filesystem;

const RowLayout kLayout(9, 1);

CheckpointName name_of(uint64_t number) { return {number, id_of(number)}; }

std::vector<int64_t> keys_from(int64_t first, int64_t count) {
  std::vector<int64_t> keys(static_cast<size_t>(count));
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

// A tier of a process, with an index of what is live.
struct Opened {
  Opened(const std::string& path, const std::vector<CheckpointName>& kept,
         const SsdHashOptions& options = checkpoint_options())
      : tier("var", kLayout, path, options) {
    tier.take_up(kept);
    tier.start_compaction(index);
  }
  void write(int64_t first, int64_t count, int64_t version) {
    write_rows(tier, index, kLayout, keys_from(first, count), version);
  }
  void checkpoint(uint64_t number) {
    tier.begin_checkpoint(number);
    tier.commit_checkpoint(name_of(number));
  }
  void restore(uint64_t number, int threads = 2) {
    restore_into(index, tier, kLayout, name_of(number), threads);
  }
  void erase_all() {
    std::vector<Place> places;
    for (const auto& [key, entry] : index.all()) places.push_back({key, index.take(key)->slot});
    tier.erase(places);
  }

  PlainIndex index;
  SsdHashTier tier;
};

std::string named(const std::string& path, const std::string& part) {
  for (const std::string& file : files_in(path)) {
    if (file.find(part) != std::string::npos) return file;
  }
  fail("there is no file " + part);
}

void flip(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
  check(file.good(), "a file can't be changed");
}

void what_a_checkpoint_has_comes_back_in_another_process() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  Versions first;
  Versions second;
  {
    Opened opened(path, {});
    opened.write(0, 3000, 1);
    opened.checkpoint(4);
    first = versions_of(opened.index);
    opened.write(1000, 1500, 2);
    opened.checkpoint(5);
    second = versions_of(opened.index);
    opened.write(0, 3000, 3);  // no checkpoint has these
  }
  {
    Opened opened(path, {name_of(4), name_of(5)});
    check(opened.tier.stats().rows == 0, "rows are live before a checkpoint is restored");
    opened.restore(4);
    check(versions_of(opened.index) == first, "other rows came back");
    opened.erase_all();
    opened.restore(5, 1);
    check(versions_of(opened.index) == second, "other rows came back");
  }
  // What belongs to none that is kept goes, and a checkpoint that the pool doesn't have is given up.
  const size_t files = files_in(path).size();
  Opened opened(path, {name_of(4)});
  check(files_in(path).size() < files, "nothing went");
  check(opened.tier.checkpoint_rows(4) == 3000 && opened.tier.checkpoint_rows(5) == 0, "5 is there still");
  check_throws(ErrorKind::kStorage, "checkpoint-0000000005.ssdhash: there is no such checkpoint",
               [&] { opened.restore(5); });
  opened.checkpoint(5);  // given again
}

void without_a_checkpoint_everything_goes() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  {
    Opened opened(path, {});
    opened.write(0, 3000, 1);
    opened.tier.begin_checkpoint(1);
  }
  check(!fs::exists(path), "files of no checkpoint stay");
  {
    Opened opened(path, {});
    opened.write(0, 3000, 1);
    opened.checkpoint(1);
  }
  check(fs::exists(path), "a checkpoint went");
  Opened opened(path, {});
  check(files_in(path).empty(), "a checkpoint that the pool doesn't have stays");
}

// Of the last block with a row.
uint64_t end_of_rows(const std::string& path) {
  const size_t bytes = RecordShape(kLayout).bytes;
  files::File file(files::system_file_calls(), path, O_RDONLY);
  uint64_t end = kHeaderBytes;
  RecordHeader header{};
  for (uint64_t at = record_offset(0, bytes); file.read_at(&header, sizeof header, at) == sizeof header;
       at += bytes) {
    if (header.kind == kRow) end = round_up_to_block(at + bytes);
  }
  return end;
}

// No byte of a block with rows of a checkpoint changes, whatever is written next.
void blocks_of_a_checkpoint_are_not_written_again() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  class Writes final : public files::FileCalls {
   public:
    std::vector<std::pair<std::string, uint64_t>> below_end;  // files, and where nothing may be written
    ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) override {
      const std::string file = fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor)).string();
      for (const auto& [held, end] : below_end) {
        check(file != held || static_cast<uint64_t>(offset) >= end, file + " is written over");
      }
      return FileCalls::pwrite(descriptor, data, bytes, offset);
    }
  } calls;
  SsdHashOptions options = checkpoint_options();
  options.file_calls = &calls;
  Opened opened(path, {}, options);
  for (int64_t version = 1; version < 200; ++version) {
    opened.write(version * 7, 1 + version % 23, version);
    const auto number = static_cast<uint64_t>(version);
    opened.checkpoint(number);
    calls.below_end.clear();
    for (const std::string& file : files_in(path)) {
      if (file.find("/rows-") == std::string::npos) continue;
      calls.below_end.emplace_back(fs::canonical(file).string(), end_of_rows(file));
    }
    if (number > 3) opened.tier.drop_checkpoint(number - 3);
  }
}

void files_that_only_a_dropped_checkpoint_needed_go() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  Opened opened(path, {});
  opened.write(0, 3000, 1);
  opened.checkpoint(1);
  opened.erase_all();
  opened.tier.drain();
  check(opened.tier.detailed_stats().held_bytes > 3000 * RecordShape(kLayout).bytes * 9 / 10,
        "what a checkpoint needs went");
  opened.tier.drop_checkpoint(1);
  check(opened.tier.detailed_stats().held_bytes == 0, "files are held for nobody");
  check(bytes_in(path) <= (128 << 10), "files that nobody needs stay: " + std::to_string(bytes_in(path)));
}

void what_is_missing_or_damaged_is_named() {
  const TemporaryDirectory directory;
  const std::string whole = directory / "whole";
  const std::string path = directory / "rows";
  {
    Opened opened(whole, {});
    opened.write(0, 3000, 1);
    opened.checkpoint(7);
  }
  const auto refused = [&](const std::string& file_part, const std::string& why, const auto& damage) {
    fs::remove_all(path);
    fs::copy(whole, path);
    const std::string file = named(path, file_part);
    damage(file);
    const std::vector<std::string> files = files_in(path);
    SsdHashTier tier("var", kLayout, path, checkpoint_options());
    const CheckpointName kept = name_of(7);
    check_throws(ErrorKind::kStorage, why, [&] { tier.take_up({&kept, 1}); });
    check_throws(ErrorKind::kStorage, file, [&] { tier.take_up({&kept, 1}); });
    check(files_in(path) == files, "files went");
  };
  const std::string checkpoint = "checkpoint-0000000007";
  refused(checkpoint, "is missing", [](const std::string& file) { fs::remove(file); });
  refused(checkpoint, "is truncated", [](const std::string& file) { fs::resize_file(file, 20); });
  for (const uint64_t offset : {17, 30, 50, 66, 100, 129, 150, 160}) {
    refused(checkpoint, "checksum is wrong", [&](const std::string& file) { flip(file, offset); });
  }
  refused(checkpoint, "checksum is wrong",
          [](const std::string& file) { fs::resize_file(file, fs::file_size(file) - 8); });
  refused(checkpoint, "isn't a checkpoint", [](const std::string& file) { flip(file, 0); });
  refused(checkpoint, "format version 2", [](const std::string& file) { flip(file, 8); });
  refused("rows-0000000002", "is missing", [](const std::string& file) { fs::remove(file); });
  refused("rows-0000000002", "a checkpoint of the pool needs",
          [](const std::string& file) { fs::resize_file(file, fs::file_size(file) - kBlockBytes); });
  refused("rows-0000000002", "checksum is wrong", [](const std::string& file) { flip(file, 30); });
  refused("rows-0000000002", "shorter than its header",
          [](const std::string& file) { fs::resize_file(file, 100); });
  refused("rows-0000000002", "is another file", [](const std::string& file) {
    fs::copy(named(fs::path(file).parent_path(), "rows-0000000001"), file,
             fs::copy_options::overwrite_existing);
  });
}

void another_table_or_checkpoint_is_refused() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  {
    Opened opened(path, {});
    opened.write(0, 1000, 1);
    opened.checkpoint(7);
  }
  const size_t files = files_in(path).size();
  const CheckpointName kept = name_of(7);
  const CheckpointName other_id{7, id_of(8)};
  check_throws(ErrorKind::kStorage, "rows of another variable",
               [&] { SsdHashTier("other", kLayout, path, checkpoint_options()); });
  check_throws(ErrorKind::kStorage, "put key k into partition k modulo",
               [&] { SsdHashTier("var by hash", kLayout, path, checkpoint_options()); });
  const auto take_up = [&](const RowLayout& layout, const SsdHashOptions& options,
                           const CheckpointName& name) {
    SsdHashTier("var", layout, path, options).take_up({&name, 1});
  };
  check_throws(ErrorKind::kStorage, "is of another checkpoint than the pool's 7",
               [&] { take_up(kLayout, checkpoint_options(), other_id); });
  check_throws(ErrorKind::kStorage, "dim 9 with 1 optimizer slots; the variable has dim 12 with 0",
               [&] { take_up(RowLayout(12, 0), checkpoint_options(), kept); });
  SsdHashOptions options = checkpoint_options();
  options.optimizer = "adam";
  check_throws(ErrorKind::kStorage, "of the optimizer adagrad, and the variable has adam",
               [&] { take_up(kLayout, options, kept); });
  for (const Keeps keeps : {Keeps::kNothing, Keeps::kFiles}) {
    options = checkpoint_options();
    options.keeps = keeps;
    check_throws(ErrorKind::kStorage, path + ": holds rows of checkpoints",
                 [&] { SsdHashTier("var", kLayout, path, options); });
  }
  check(files_in(path).size() == files, "files went");
  // Nor does a tier of checkpoints take what another mode kept.
  options.keeps = Keeps::kFiles;
  {
    SsdHashTier tier("var", kLayout, directory / "kept", options);
    PlainIndex index;
    write_rows(tier, index, kLayout, keys_from(0, 1000), 1);
  }
  const size_t kept_files = files_in(directory / "kept").size();
  check_throws(ErrorKind::kStorage, (directory / "kept") + ": holds rows that keep_files kept",
               [&] { SsdHashTier("var", kLayout, directory / "kept", checkpoint_options()); });
  check(files_in(directory / "kept").size() == kept_files, "files that were kept went");
}

void a_damaged_row_is_named_and_nothing_is_live_then() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  {
    Opened opened(path, {});
    opened.write(0, 3000, 1);
    opened.checkpoint(1);
  }
  const std::string file = named(path, "rows-0000000002");
  const uint64_t at = record_offset(5, RecordShape(kLayout).bytes);
  for (const uint64_t offset : {at + 6, at + 70, at + 130}) {
    flip(file, offset);
    for (const int threads : {1, 3}) {
      Opened opened(path, {name_of(1)});
      const std::string message = error_of(ErrorKind::kStorage, [&] { opened.restore(1, threads); });
      check(message == file + ": the record at " + std::to_string(at) + " is damaged: its checksum is wrong",
            message);
      check(opened.tier.stats().rows == 0 && opened.index.size() == 0, "rows are live");
      flip(file, offset);
      opened.restore(1, threads);
      check(opened.index.size() == 3000, "rows are missing");
      flip(file, offset);
    }
    flip(file, offset);
  }
  // What a visitor throws comes through.
  Opened opened(path, {name_of(1)});
  const auto refuse = [](std::span<const RowHeader>, std::span<const Slot>) {
    throw Error(ErrorKind::kStoreFull, "no room");
  };
  check_throws(ErrorKind::kStoreFull, "no room", [&] { opened.tier.restore(name_of(1), 2, refuse); });
  opened.restore(1);
}

void calls_in_the_wrong_order_are_refused() {
  const TemporaryDirectory directory;
  PlainIndex index;
  SsdHashTier tier("var", kLayout, directory / "rows", checkpoint_options());
  const auto keys = keys_from(0, 10);
  check_throws(ErrorKind::kInvalidArgument, "take_up() comes before",
               [&] { write_rows(tier, index, kLayout, keys, 1); });
  tier.take_up({});
  check_throws(ErrorKind::kInvalidArgument, "comes once", [&] { tier.take_up({}); });
  write_rows(tier, index, kLayout, keys, 1);
  check_throws(ErrorKind::kInvalidArgument, "no checkpoint 1 is pending",
               [&] { tier.commit_checkpoint(name_of(1)); });
  tier.begin_checkpoint(1);
  check_throws(ErrorKind::kInvalidArgument, "there is a checkpoint 1 already",
               [&] { tier.begin_checkpoint(1); });
  check(tier.checkpoint_rows(1) == 0, "a pending checkpoint has rows");
  tier.commit_checkpoint(name_of(1));
  check_throws(ErrorKind::kInvalidArgument, "rows are live",
               [&] { restore_into(index, tier, kLayout, name_of(1), 1); });
  check_throws(ErrorKind::kInvalidArgument, "come back by restore()",
               [&] { tier.recover([](const RowBatch&, std::span<const Slot>) {}); });
  SsdHashTier other("var", kLayout, directory / "other", small_files());
  check_throws(ErrorKind::kInvalidArgument, "keeps no checkpoints", [&] { other.begin_checkpoint(1); });
  SsdHashOptions options = checkpoint_options();
  options.optimizer = std::string(32, 'o');
  check_throws(ErrorKind::kInvalidArgument, "too long a name",
               [&] { SsdHashTier("var", kLayout, directory / "long", options); });
}

// Begins a checkpoint in the middle of the first compaction: where some rows are both in their old and their new place.
class BeginsWhileRowsMove final : public Relocator {
 public:
  explicit BeginsWhileRowsMove(SsdHashTier& tier) : tier_(tier) {}
  void relocate(std::span<Relocation> rows) override {
    if (!begun_.joinable()) {
      begun_ = std::thread([this] {
        tier_.begin_checkpoint(1);
        has_begun_ = true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    // One row was written anew meanwhile, say: its copy is refused.
    index.relocate(rows.subspan(1));
    is_early_ = is_early_ || (!is_over_ && has_begun_);
    is_over_ = true;
  }
  bool was_early() {
    begun_.join();
    return is_early_;
  }

  PlainIndex index;

 private:
  SsdHashTier& tier_;
  std::thread begun_;
  std::atomic<bool> has_begun_{false};
  bool is_early_ = false;
  bool is_over_ = false;
};

void a_checkpoint_begins_when_no_row_is_in_two_places() {
  const TemporaryDirectory directory;
  SsdHashTier tier("var", kLayout, directory / "rows", checkpoint_options());
  tier.take_up({});
  BeginsWhileRowsMove relocator(tier);
  tier.start_compaction(relocator);
  write_rows(tier, relocator.index, kLayout, keys_from(0, 3000), 1);
  std::vector<Place> places;
  for (int64_t key = 0; key < 3000; ++key) {
    if (key % 8 != 0) places.push_back({key, relocator.index.take(key)->slot});
  }
  tier.erase(places);
  tier.compact();
  check(!relocator.was_early(), "a checkpoint began while rows were on the move");
  tier.commit_checkpoint(name_of(1));
  check(tier.checkpoint_rows(1) == relocator.index.size(), "rows are in the checkpoint twice, or not at all");
  const Versions versions = versions_of(relocator.index);
  places.clear();
  for (const auto& [key, version] : versions) places.push_back({key, relocator.index.take(key)->slot});
  tier.erase(places);
  restore_into(relocator.index, tier, kLayout, name_of(1), 2);
  check(versions_of(relocator.index) == versions, "other rows came back");
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

void rows_that_were_on_the_move_come_back_once() {
  const TemporaryDirectory directory;
  PlainIndex index;
  MovesDuringRestore relocator(index);
  SsdHashTier tier("var", kLayout, directory / "rows", checkpoint_options());
  tier.take_up({});
  tier.start_compaction(relocator);
  write_rows(tier, index, kLayout, keys_from(0, 3000), 1);
  tier.begin_checkpoint(1);
  tier.commit_checkpoint(name_of(1));
  const Versions versions = versions_of(index);
  const auto erase = [&](int64_t each) {
    std::vector<Place> places;
    for (const auto& [key, version] : versions_of(index)) {
      if (key % 8 != each) places.push_back({key, index.take(key)->slot});
    }
    tier.erase(places);
  };
  erase(0);
  std::thread mover([&] { tier.compact(); });
  while (!relocator.is_moving) std::this_thread::yield();
  erase(-1);  // all
  tier.restore(name_of(1), 1, [&](std::span<const RowHeader> headers, std::span<const Slot> slots) {
    for (size_t i = 0; i < slots.size(); ++i) index.put(headers[i].key, slots[i], headers[i].version);
    if (index.size() < versions.size()) return;
    relocator.are_back = true;
    MovesDuringRestore::wait_for(relocator.has_moved);
  });
  mover.join();
  check_all(tier, index, kLayout);
  check(versions_of(index) == versions, "other rows came back");
  tier.begin_checkpoint(2);
  tier.commit_checkpoint(name_of(2));
  check(tier.checkpoint_rows(2) == versions.size(), "rows are in the next checkpoint twice, or not at all");
}

// Writes, reads and compaction go on while checkpoints are committed and dropped.
void checkpoints_are_committed_while_others_write_and_read() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  SsdHashOptions options = checkpoint_options();
  options.compaction = CompactionMode::kOwnThread;
  std::map<uint64_t, Versions> had;
  {
    Opened opened(path, {}, options);
    constexpr uint64_t kRounds = 25;
    for (uint64_t number = 1; number <= kRounds; ++number) {
      opened.write(static_cast<int64_t>(number) * 100, 900, static_cast<int64_t>(number));
      opened.tier.begin_checkpoint(number);
      had[number] = versions_of(opened.index);
      std::atomic<bool> is_committed{false};
      std::thread writer([&] {
        for (int64_t version = 1000; version < 1008 || !is_committed; ++version) {
          opened.write(version * 37 % 2000, 200, version);
          check_all(opened.tier, opened.index, kLayout);
        }
      });
      opened.tier.commit_checkpoint(name_of(number));
      if (number > 2) {
        opened.tier.drop_checkpoint(number - 2);
        had.erase(number - 2);
      }
      is_committed = true;
      writer.join();
    }
    check(opened.tier.detailed_stats().compacted_files > 0, "nothing was compacted");
  }
  std::vector<CheckpointName> kept;
  for (const auto& [number, versions] : had) kept.push_back(name_of(number));
  Opened opened(path, kept, options);
  for (const auto& [number, versions] : had) {
    opened.restore(number);
    check(versions_of(opened.index) == versions, "other rows came back");
    opened.erase_all();
  }
}

constexpr Test kTests[] = {
    {"what_a_checkpoint_has_comes_back_in_another_process",
     what_a_checkpoint_has_comes_back_in_another_process},
    {"without_a_checkpoint_everything_goes", without_a_checkpoint_everything_goes},
    {"blocks_of_a_checkpoint_are_not_written_again", blocks_of_a_checkpoint_are_not_written_again},
    {"files_that_only_a_dropped_checkpoint_needed_go", files_that_only_a_dropped_checkpoint_needed_go},
    {"what_is_missing_or_damaged_is_named", what_is_missing_or_damaged_is_named},
    {"another_table_or_checkpoint_is_refused", another_table_or_checkpoint_is_refused},
    {"a_damaged_row_is_named_and_nothing_is_live_then", a_damaged_row_is_named_and_nothing_is_live_then},
    {"calls_in_the_wrong_order_are_refused", calls_in_the_wrong_order_are_refused},
    {"a_checkpoint_begins_when_no_row_is_in_two_places", a_checkpoint_begins_when_no_row_is_in_two_places},
    {"rows_that_were_on_the_move_come_back_once", rows_that_were_on_the_move_come_back_once},
    {"checkpoints_are_committed_while_others_write_and_read",
     checkpoints_are_committed_while_others_write_and_read},
};

}  // namespace

std::span<const Test> checkpoint_tests() { return kTests; }

}  // namespace embstore::ssd_hash::testing
