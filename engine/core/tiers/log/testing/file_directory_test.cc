// Tests of the files in the tier's directory: when they are removed, when they stay, and which are refused.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>

#include "table.h"
#include "testing/child.h"

namespace embstore::log::testing {
namespace {

namespace fs = std::filesystem;

// Leaves in `root` the files of a killed process.
void leave(const std::string& root, const SsdHashOptions& options, const TableIdentity& table = table_of()) {
  const pid_t child = start_child([&] {
    FileTable left(root, options, table);
    left.write(0, 3000, 1);
    kill(getpid(), SIGKILL);
  });
  check(end_of_child(child) == -SIGKILL, "the process ended by itself");
  check(files_in(root + "/rows").size() > 3, "the process left nothing");
}

TEST(files_go_when_the_tier_closes) {
  const TemporaryDirectory directory;
  for (const SsdHashOptions& options : {small_files(), small_files_for_checkpoints()}) {
    {
      FileTable table(directory.path(), options);
      table.write(0, 3000, 1);
      check(!files_in(directory / "rows").empty(), "nothing was written");
      if (options.keeps_checkpoints) table.begin();  // never committed
    }
    check(!fs::exists(directory / "rows"), "files stayed");
  }
}

TEST(a_directory_that_was_there_stays) {
  const TemporaryDirectory directory;
  fs::create_directory(directory / "rows");
  put_file(directory / "rows/notes.txt", "mine");
  put_file(directory / "rows/notes.ssdhash", "mine too");
  const std::vector<std::string> files = files_in(directory / "rows");
  FileTable(directory.path()).write(0, 3000, 1);
  check(files_in(directory / "rows") == files, "another's file went, or ours stayed");
}

TEST(what_a_killed_process_left_goes_when_it_is_found) {
  const TemporaryDirectory directory;
  for (const SsdHashOptions& next : {small_files(), small_files_for_checkpoints()}) {
    leave(directory.path(), small_files());
    put_file(directory / "rows/rows-0000000099.ssdhash.new", "of a file that was written anew");
    put_file(directory / "rows/rows-0000000100.ssdhash", "");  // after a power cut
    put_file(directory / "rows/rows-0000000101.ssdhash", std::string(8192, '\0'));
    // An earlier version's: magic, version, and no flag that its files are to be kept.
    put_file(directory / "rows/rows-0000000102.ssdhash", "ESSSDHSH" + std::string(72, '\0'));
    {
      const FileTable table(directory.path(), next);
      check(files_in(directory / "rows").empty(), "files stayed");
    }
    check(!fs::exists(directory / "rows"), "the directory stayed");
  }
  leave(directory.path(), small_files_for_checkpoints());
  const FileTable table(directory.path(), small_files_for_checkpoints());
  check(files_in(directory / "rows").empty(), "files of no checkpoint stayed");
}

TEST(files_that_must_not_be_removed_are_refused_by_name) {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows/rows-0000000001.ssdhash";
  const auto refused = [&](ErrorKind kind, const std::string& part, const SsdHashOptions& options,
                           const auto& change) {
    fs::remove_all(directory / "rows");
    leave(directory.path(), small_files_for_checkpoints());
    for (const std::string& file : files_in(directory / "rows")) {
      if (file != path) fs::remove(file);
    }
    change();
    const std::vector<std::string> files = files_in(directory / "rows");
    const auto open = [&] { SsdHashTier(table_of(), directory / "rows", options); };
    check_throws(kind, part, open);
    check_throws(kind, "rows-", open);
    check(files_in(directory / "rows") == files, "files went");
  };
  const SsdHashOptions spill = small_files();
  const SsdHashOptions durable = small_files_for_checkpoints();
  refused(ErrorKind::kStorage, "may belong to checkpoints (rows-", spill, [] {});
  refused(ErrorKind::kStorage, "may belong to checkpoints", spill, [&] { flip(path, 100); });
  refused(ErrorKind::kStorage, "isn't a file of this engine's rows", spill,
          [&] { overwrite(path, 0, "PK"); });
  refused(ErrorKind::kInvalidArgument, "is of the variable \"other\"", durable, [&] {
    fs::remove_all(directory / "rows");
    leave(directory.path(), durable, table_of(kLayout, "other"));
  });
  for (const SsdHashOptions& options : {spill, durable}) {
    refused(ErrorKind::kStorage, "has format version 2", options,
            [&] { overwrite(path, 8, std::string(1, '\2')); });
    // Files that earlier versions kept: files with a flag, a record of their numbers, checkpoints of a pool.
    refused(ErrorKind::kStorage, kEarlierVersionRefusal, options,
            [&] { put_file(path, "ESSSDHSH" + std::string(44, '\0') + '\1' + std::string(4043, '\0')); });
    for (const char* const magic : {"ESSSDSEQ", "ESSSDCKP"}) {
      refused(ErrorKind::kStorage, kEarlierVersionRefusal, options, [&] {
        fs::remove_all(directory / "rows");
        fs::create_directory(directory / "rows");
        put_file(directory / "rows/earlier-rows-.ssdhash", magic + std::string(120, '\0'));
      });
    }
  }
}

TEST(files_of_an_earlier_version_are_refused_in_the_same_words_in_whatever_order_they_are_listed) {
  // The kept rows of an earlier version: files of rows, one of which no checkpoint needs, a record of
  // numbers, and a checkpoint.
  std::vector<std::pair<std::string, std::string>> files = {
      {"checkpoint-0000000001.ssdhash", "ESSSDCKP" + std::string(120, '\0')},
      {"rows-0000000001.ssdhash", std::string(4096, '\0')},
      {"rows-0000000002.ssdhash", "ESSSDHSH" + std::string(44, '\0') + '\1' + std::string(4043, '\0')},
      {"sequence.ssdhash", "ESSSDSEQ" + std::string(120, '\0')}};
  std::sort(files.begin(), files.end());
  do {
    for (const SsdHashOptions& options : {small_files(), small_files_for_checkpoints()}) {
      const TemporaryDirectory directory;
      fs::create_directory(directory / "rows");
      for (const auto& [name, bytes] : files) put_file(directory / ("rows/" + name), bytes);
      const std::string message =
          error_of(ErrorKind::kStorage, [&] { SsdHashTier(table_of(), directory / "rows", options); });
      check(message == directory / "rows/checkpoint-0000000001.ssdhash" +
                           (": " + std::string(kEarlierVersionRefusal)),
            message);
      check(files_in(directory / "rows").size() == files.size(), "files went");
    }
  } while (std::next_permutation(files.begin(), files.end()));
}

TEST(calls_in_the_wrong_order_are_refused) {
  const TemporaryDirectory directory;
  SsdHashTier tier(table_of(), directory / "rows", small_files_for_checkpoints());
  RowBatch rows(kLayout);
  rows.resize(1);
  fill_row(rows, 0, 1, 1);
  std::vector<Slot> slots(1);
  const DurableTier::Restored nothing = [](std::span<const RowHeader>, std::span<const Slot>) {};
  check_throws(ErrorKind::kInvalidArgument, "adopt_kept() comes before", [&] { tier.write(rows, slots); });
  tier.adopt_kept({});
  check_throws(ErrorKind::kInvalidArgument, "comes once", [&] { tier.adopt_kept({}); });
  tier.write(rows, slots);
  check_throws(ErrorKind::kInvalidArgument, "rows are live", [&] { tier.restore(1, 1, nothing); });
  SsdHashTier other(table_of(), directory / "other", small_files());
  check_throws(ErrorKind::kInvalidArgument, "keeps no checkpoints", [&] { other.begin_checkpoint(1); });
}

TEST(calls_after_close_are_refused) {
  const TemporaryDirectory directory;
  FileTable table(directory.path());
  table.write(0, 10, 1);
  table.tier->close();
  table.tier->close();
  RowBatch rows(kLayout);
  check_throws(ErrorKind::kClosed, "closed", [&] { table.write(0, 1, 1); });
  check_throws(ErrorKind::kClosed, "closed", [&] { table.tier->read(std::vector{Place{0, 0}}, rows); });
  check_throws(ErrorKind::kClosed, "closed", [&] { table.tier->drain(); });
}

TEST(options_and_names_that_make_no_sense_are_refused) {
  const TemporaryDirectory directory;
  const auto open = [&](const SsdHashOptions& options, const TableIdentity& table = table_of()) {
    return [&, options, table] { SsdHashTier(table, directory / "rows", options); };
  };
  SsdHashOptions options;
  options.buffer_bytes = 1000;
  check_throws(ErrorKind::kInvalidArgument, "buffer_bytes is 1000", open(options));
  options = {};
  options.file_bytes = 10;
  check_throws(ErrorKind::kInvalidArgument, "file_bytes is 10", open(options));
  check_throws(ErrorKind::kInvalidArgument, "has more than 1024 bytes",
               open({}, table_of(kLayout, std::string(1025, 'n'))));
  check(files_in(directory.path()).empty(), "something was made");
  put_file(directory / "a_file", "x");
  check_throws(ErrorKind::kStorage, directory / "a_file",
               [&] { SsdHashTier(table_of(), directory / "a_file"); });
}

}  // namespace
}  // namespace embstore::log::testing
