// What the directory holds: when it goes, when it stays, what is read back from it, and what is refused.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>

#include "testing.h"

namespace embstore::ssd_hash::testing {
namespace {

namespace fs = std::filesystem;

const RowLayout kLayout(8, 1);

SsdHashOptions kept() {
  SsdHashOptions options = small_files();
  options.keeps = Keeps::kFiles;
  return options;
}

std::vector<int64_t> keys_from(int64_t first, int64_t count) {
  std::vector<int64_t> keys(count);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

std::map<int64_t, int64_t> recovered(SsdHashTier& tier, PlainIndex& index, RecoveryReport& report) {
  std::map<int64_t, int64_t> versions;
  report = tier.recover([&](const RowBatch& rows, std::span<const Slot> slots) {
    for (size_t i = 0; i < slots.size(); ++i) {
      const int64_t key = rows.header(i).key;
      const int64_t version = checked_version(rows, i, key);
      check(versions.emplace(key, version).second, "a key was told of twice");
      index.put(key, slots[i], version);
    }
  });
  check(report.rows == versions.size(), "the report counts other rows than it told of");
  return versions;
}

void keep_rows(const std::string& path, int64_t count, int64_t version = 1) {
  SsdHashTier tier("var", kLayout, path, kept());
  PlainIndex index;
  write_rows(tier, index, kLayout, keys_from(0, count), version);
  tier.close();
}

void overwrite(const std::string& path, uint64_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  check(file.good(), "a file can't be overwritten");
}

void flip(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
  check(file.good(), "a file can't be changed");
}

void files_go_when_the_tier_closes() {
  const TemporaryDirectory directory;
  {
    SsdHashTier tier("var", kLayout, directory / "rows", small_files());
    PlainIndex index;
    write_rows(tier, index, kLayout, keys_from(0, 3000), 1);
    check(!files_in(directory / "rows").empty(), "nothing was written");
  }
  check(!fs::exists(directory / "rows"), "files stayed");
}

void a_directory_that_was_there_stays() {
  const TemporaryDirectory directory;
  fs::create_directory(directory / "rows");
  {
    std::ofstream(directory / "rows/notes.txt") << "mine";
    SsdHashTier tier("var", kLayout, directory / "rows", small_files());
    PlainIndex index;
    write_rows(tier, index, kLayout, keys_from(0, 3000), 1);
  }
  check(files_in(directory / "rows") == std::vector<std::string>{directory / "rows/notes.txt"},
        "another's file went, or ours stayed");
}

void kept_rows_are_read_back_from_the_files_alone() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  {
    SsdHashTier tier("var", kLayout, path, kept());
    PlainIndex index;
    tier.start_compaction(index);
    for (int64_t version = 1; version <= 4; ++version) {
      // Each version leaves the last thousand keys of the one before as they are.
      const std::vector<int64_t> keys = keys_from(0, (5 - version) * 1000);
      std::vector<Place> old;
      for (const int64_t key : keys) {
        if (const auto entry = index.take(key)) old.push_back({key, entry->slot});
      }
      tier.erase(old);
      write_rows(tier, index, kLayout, keys, version);
    }
    tier.bury(keys_from(100, 50));
    tier.close();
  }
  SsdHashTier tier("var", kLayout, path, kept());
  PlainIndex index;
  RecoveryReport report;
  const auto versions = recovered(tier, index, report);
  check(report.torn == 0 && report.damaged == 0, "damage was found: " + report.first_damage);
  check(versions.size() == 3950, std::to_string(versions.size()) + " rows were found");
  for (const auto& [key, version] : versions) {
    check(key < 100 || key >= 150, "a row that was buried came back");
    check(version == 4 - key / 1000,
          "key " + std::to_string(key) + " came back in version " + std::to_string(version));
  }
  check_all(tier, index, kLayout);

  // And the tier goes on with them.
  tier.start_compaction(index);
  for (int64_t version = 5; version < 12; ++version) {
    const std::vector<int64_t> keys = keys_from(version * 300, 1500);
    std::vector<Place> old;
    for (const int64_t key : keys) {
      if (const auto entry = index.take(key)) old.push_back({key, entry->slot});
    }
    tier.erase(old);
    write_rows(tier, index, kLayout, keys, version);
  }
  check_all(tier, index, kLayout);
  const auto before = index.all();
  tier.close();

  SsdHashTier again("var", kLayout, path, kept());
  PlainIndex second;
  const auto last = recovered(again, second, report);
  check(report.torn == 0 && report.damaged == 0, "damage was found: " + report.first_damage);
  // Rows of the index come back in their versions; what else does was erased, not buried.
  for (const auto& [key, entry] : before) {
    check(last.contains(key) && last.at(key) == entry.version, "a row is missing or another version");
  }
}

void kept_rows_must_be_recovered_before_others_are_written() {
  const TemporaryDirectory directory;
  keep_rows(directory / "rows", 100);
  SsdHashTier tier("var", kLayout, directory / "rows", kept());
  check(!tier.is_ready(), "the rows aren't seen");
  PlainIndex index;
  check_throws(ErrorKind::kStorage, "rows of an earlier run",
               [&] { write_rows(tier, index, kLayout, keys_from(0, 1), 1); });
  tier.close();
  SsdHashTier again("var", kLayout, directory / "rows", small_files());
  RecoveryReport report;
  check(recovered(again, index, report).size() == 100, "kept rows were lost");
}

void what_was_never_written_out_is_counted() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  const std::string note = directory / "killed/sequence.ssdhash";
  uint64_t gathered = 0;
  {
    SsdHashTier tier("var", kLayout, path, kept());
    PlainIndex index;
    RecoveryReport report;
    check(recovered(tier, index, report).empty() && !report.earlier_run, "an earlier run was made up");
    write_rows(tier, index, kLayout, keys_from(0, 3000), 1);
    gathered = tier.detailed_stats().unwritten_records;
    check(gathered > 0, "everything was written out");
    fs::copy(path, directory / "killed");  // as a kill would leave it
    fs::copy(path, directory / "without_note");
  }
  const auto report_on = [](const std::string& where) {
    SsdHashTier tier("var", kLayout, where, kept());
    PlainIndex index;
    RecoveryReport report;
    recovered(tier, index, report);
    check(report.earlier_run, "rows came from nowhere");
    return report;
  };
  check(report_on(path).unwritten == 0, "a clean close lost something");

  const RecoveryReport killed = report_on(directory / "killed");
  check(killed.unwritten == gathered, "the report counts what is missing otherwise than the tier did");
  check(killed.rows == 3000 - gathered, "rows went missing");
  check(report_on(directory / "killed").unwritten == 0, "what is missing is told of twice");

  fs::remove(directory / "without_note/sequence.ssdhash");
  const RecoveryReport unknown = report_on(directory / "without_note");
  check(!unknown.unwritten && unknown.rows == 3000 - gathered, "what nobody noted is told");

  SsdHashOptions other = kept();
  other.optimizer = "Adam";
  check_throws(ErrorKind::kStorage, "those of the optimizer",
               [&] { SsdHashTier("var", kLayout, directory / "killed", other); });
  flip(note, 17);
  check_throws(ErrorKind::kStorage, note + ": is damaged",
               [&] { SsdHashTier("var", kLayout, directory / "killed", kept()); });
  fs::resize_file(note, 100);
  check_throws(ErrorKind::kStorage, note + ": is truncated",
               [&] { SsdHashTier("var", kLayout, directory / "killed", kept()); });
}

void files_that_were_not_to_be_kept_go_when_they_are_found() {
  const TemporaryDirectory directory;
  {
    SsdHashTier tier("var", kLayout, directory / "rows", small_files());
    PlainIndex index;
    write_rows(tier, index, kLayout, keys_from(0, 3000), 1);
    fs::copy(directory / "rows", directory / "of_a_killed_process");
  }
  std::ofstream(directory / "of_a_killed_process/rows-0000000099.ssdhash.new") << "half a head";
  SsdHashTier tier("var", RowLayout(5, 0), directory / "of_a_killed_process", small_files());
  check(tier.is_ready() && files_in(directory / "of_a_killed_process").empty(), "leftovers stayed");
}

void a_directory_has_one_tier() {
  const TemporaryDirectory directory;
  SsdHashTier tier("var", kLayout, directory / "rows");
  check_throws(ErrorKind::kInUse, "in use by another variable",
               [&] { SsdHashTier("other", kLayout, directory / "rows"); });
  tier.close();
  SsdHashTier("other", kLayout, directory / "rows");
}

void files_that_are_not_ours_are_refused_by_name() {
  const TemporaryDirectory directory;
  const auto refused = [&](const std::string& part, const auto& damage) {
    const std::string path = directory / "rows";
    fs::remove_all(path);
    keep_rows(path, 2000);
    const std::string file = files_in(path).front();
    damage(file);
    check_throws(ErrorKind::kStorage, part, [&] { SsdHashTier("var", kLayout, path, kept()); });
    check_throws(ErrorKind::kStorage, file, [&] { SsdHashTier("var", kLayout, path, kept()); });
    check(fs::exists(file), "the file was removed");
  };
  refused("isn't a file of SSDHASH rows", [](const std::string& file) { overwrite(file, 0, "PK"); });
  refused("format version " + std::to_string(kCheckpointsVersion + 1), [](const std::string& file) {
    overwrite(file, 8, std::string(1, static_cast<char>(kCheckpointsVersion + 1)));
  });
  for (const uint64_t offset : {12, 20, 30, 40, 60, 68}) {
    refused("header's checksum is wrong", [&](const std::string& file) { flip(file, offset); });
  }
  refused("shorter than its header", [](const std::string& file) { fs::resize_file(file, 40); });
  refused("shorter than its header", [](const std::string& file) { fs::resize_file(file, 4000); });
  refused("shorter than its header", [](const std::string& file) { fs::resize_file(file, 0); });

  const std::string path = directory / "rows";
  fs::remove_all(path);
  keep_rows(path, 10);
  check_throws(ErrorKind::kStorage, "rows of another variable than \"other\"",
               [&] { SsdHashTier("other", kLayout, path, kept()); });
  check_throws(ErrorKind::kStorage, "dim 8 with 1 optimizer slots; the variable has dim 12 with 0",
               [&] { SsdHashTier("var", RowLayout(12, 0), path, kept()); });
}

void damaged_records_are_skipped_and_counted() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  const size_t record = RecordShape(kLayout).bytes;
  keep_rows(path, 2000);
  std::vector<std::string> files = files_in(path);
  check(files.size() > 3, "too few files for this test");
  for (const uint64_t at : {0, 3, 4, 7, 9, 17, 50, 57, 119}) {
    // One bit of each part of a record, in records of their own.
    flip(files[0], record_offset(at, record) + at);
  }
  {
    SsdHashTier tier("var", kLayout, path, kept());
    PlainIndex index;
    RecoveryReport report;
    const auto versions = recovered(tier, index, report);
    check(report.damaged == 9 && report.torn == 0, "other damage was counted");
    check(versions.size() == 2000 - 9, "whole rows are missing");
    check(report.first_damage.find(files[0] + ": the record at 4096") == 0, report.first_damage);
    check_all(tier, index, kLayout);
  }
  // A sealed file that was cut off: its rows are missing, and that is said.
  fs::remove_all(path);
  keep_rows(path, 2000);
  fs::resize_file(files[1], record_offset(10, record) + 5);
  SsdHashTier tier("var", kLayout, path, kept());
  PlainIndex index;
  RecoveryReport report;
  const auto versions = recovered(tier, index, report);
  check(report.damaged > 0 && report.torn == 0, "the cut wasn't noticed");
  check(versions.size() + report.damaged == 2000, "more rows are missing than were told of");
  check(report.first_damage.find(files[1]) == 0, report.first_damage);
}

void the_torn_end_of_a_file_is_skipped_and_counted() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  const size_t record = RecordShape(kLayout).bytes;
  constexpr int64_t kRows = 60;
  SsdHashTier writer("var", kLayout, path, kept());
  PlainIndex index;
  write_rows(writer, index, kLayout, keys_from(0, kRows), 1);
  writer.flush();
  const uint64_t end = record_offset(kRows, record);
  // Cut at every kind of place, and cut with garbage in what was left of the last block.
  for (uint64_t cut = kHeaderBytes; cut < end + 20; cut += 101) {
    for (const bool garbage : {false, true}) {
      const std::string copy = directory / "copy";
      fs::remove_all(copy);
      fs::copy(path, copy);
      const std::string file = files_in(copy).front();
      fs::resize_file(file, cut);
      if (garbage) overwrite(file, cut, std::string(150, 'x'));
      SsdHashTier tier("var", kLayout, copy, kept());
      PlainIndex found;
      RecoveryReport report;
      const auto versions = recovered(tier, found, report);
      const uint64_t whole = std::min<uint64_t>((cut - kHeaderBytes) / record, kRows);
      check(versions.size() == whole, "other rows than the whole ones were found");
      check(report.damaged == 0, "a torn end counts as damage");
      const bool is_torn = garbage || (cut < end && (cut - kHeaderBytes) % record != 0);
      check((report.torn > 0) == is_torn, "torn records are miscounted");
      check_all(tier, found, kLayout);
      // What is appended then and kept is found again, the torn end being no damage later either.
      write_rows(tier, found, kLayout, keys_from(1000, 5), 2);
      tier.close();
      SsdHashTier again("var", kLayout, copy, kept());
      PlainIndex last;
      check(recovered(again, last, report).size() == whole + 5, "rows went missing");
      check(report.damaged == 0 && report.torn == 0, "a torn end became damage");
    }
  }
}

void a_record_that_is_damaged_while_open_is_an_error_that_names_it() {
  for (const IoScheme scheme : {IoScheme::kPread, IoScheme::kAuto}) {
    const TemporaryDirectory directory;
    const std::string path = directory / "rows";
    SsdHashOptions options = small_files();
    options.io_scheme = scheme;
    SsdHashTier tier("var", kLayout, path, options);
    PlainIndex index;
    write_rows(tier, index, kLayout, keys_from(0, 3000), 1);
    const std::vector<std::string> files = files_in(path);
    const size_t record = RecordShape(kLayout).bytes;
    RowBatch rows(kLayout);
    const auto read = [&](int64_t key) {
      tier.read(std::vector{Place{key, index.find(key)->slot}}, rows);
      check(checked_version(rows, 0, key) == 1, "a row has another version");
    };
    flip(files[0], record_offset(5, record) + 60);
    read(4);
    check_throws(ErrorKind::kDamagedRows, files[0] + ": the record at ", [&] { read(5); });
    check_throws(ErrorKind::kDamagedRows, "(key 5) is damaged", [&] { read(5); });
    // Erased, it's nobody's row.
    tier.erase(std::vector{Place{5, index.find(5)->slot}});
    tier.read(std::vector{Place{5, index.find(5)->slot}}, rows);
    fs::resize_file(files[0], record_offset(20, record) + 1);
    read(19);
    check_throws(ErrorKind::kDamagedRows, "(key 20) is cut off", [&] { read(20); });
  }
}

void calls_after_close_are_refused() {
  const TemporaryDirectory directory;
  SsdHashTier tier("var", kLayout, directory / "rows");
  PlainIndex index;
  write_rows(tier, index, kLayout, keys_from(0, 10), 1);
  tier.close();
  tier.close();
  RowBatch rows(kLayout);
  check_throws(ErrorKind::kClosed, "closed", [&] { write_rows(tier, index, kLayout, keys_from(0, 1), 1); });
  check_throws(ErrorKind::kClosed, "closed", [&] { tier.read(std::vector{Place{0, 0}}, rows); });
  check_throws(ErrorKind::kClosed, "closed", [&] { tier.flush(); });
  check_throws(ErrorKind::kClosed, "closed", [&] { tier.bury(keys_from(0, 1)); });
}

void options_that_make_no_sense_are_refused() {
  const TemporaryDirectory directory;
  SsdHashOptions options;
  options.buffer_bytes = 1000;
  check_throws(ErrorKind::kInvalidArgument, "buffer_bytes is 1000",
               [&] { SsdHashTier("var", kLayout, directory / "rows", options); });
  options = {};
  options.file_bytes = 10;
  check_throws(ErrorKind::kInvalidArgument, "file_bytes is 10",
               [&] { SsdHashTier("var", kLayout, directory / "rows", options); });
  std::ofstream(directory / "a_file") << "x";
  check_throws(ErrorKind::kStorage, directory / "a_file",
               [&] { SsdHashTier("var", kLayout, directory / "a_file"); });
}

constexpr Test kTests[] = {
    {"files_go_when_the_tier_closes", files_go_when_the_tier_closes},
    {"a_directory_that_was_there_stays", a_directory_that_was_there_stays},
    {"kept_rows_are_read_back_from_the_files_alone", kept_rows_are_read_back_from_the_files_alone},
    {"kept_rows_must_be_recovered_before_others_are_written",
     kept_rows_must_be_recovered_before_others_are_written},
    {"what_was_never_written_out_is_counted", what_was_never_written_out_is_counted},
    {"files_that_were_not_to_be_kept_go_when_they_are_found",
     files_that_were_not_to_be_kept_go_when_they_are_found},
    {"a_directory_has_one_tier", a_directory_has_one_tier},
    {"files_that_are_not_ours_are_refused_by_name", files_that_are_not_ours_are_refused_by_name},
    {"damaged_records_are_skipped_and_counted", damaged_records_are_skipped_and_counted},
    {"the_torn_end_of_a_file_is_skipped_and_counted", the_torn_end_of_a_file_is_skipped_and_counted},
    {"a_record_that_is_damaged_while_open_is_an_error_that_names_it",
     a_record_that_is_damaged_while_open_is_an_error_that_names_it},
    {"calls_after_close_are_refused", calls_after_close_are_refused},
    {"options_that_make_no_sense_are_refused", options_that_make_no_sense_are_refused},
};

}  // namespace

std::span<const Test> file_tests() { return kTests; }

}  // namespace embstore::ssd_hash::testing
