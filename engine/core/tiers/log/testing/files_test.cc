// Tests of a table's files: an error names a file that is damaged or another table's, and an interrupted
// creation leaves whole files or none.
#include <unistd.h>

#include <filesystem>
#include <string>

#include "table.h"
#include "testing/child.h"

namespace embstore::log::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRows = 3000;

// Creates a table with one checkpoint, and closes it.
void make_table(const TableSite& site) {
  site.remove_all();
  const std::unique_ptr<Table> table = site.open();
  table->write(0, kRows, 1);
  table->checkpoint();
}

void check_table(const TableSite& site) {
  const std::unique_ptr<Table> table = site.open();
  table->restore(1);
  check(table->index.size() == kRows, "rows are lost");
  table->check_rows();
}

std::vector<std::string> all_files(const TableSite& site) {
  std::vector<std::string> files = site.row_files();
  const std::vector<std::string> manifests = files_in(site.root + "/manifests");
  files.insert(files.end(), manifests.begin(), manifests.end());
  return files;
}

TEST(checkpoints_of_another_table_are_refused) {
  on_both_media([](const TableSite& site) {
    make_table(site);
    const std::vector<std::string> files = all_files(site);
    const auto refused = [&](const TableIdentity& as, const std::string& why) {
      check_throws(ErrorKind::kInvalidArgument, site.manifest(1) + ": " + why, [&] { site.open(as); });
      check(all_files(site) == files, "files went");
    };
    refused(table_of(kLayout, "other"), "is of the variable \"var\", not of \"other\"");
    TableIdentity adam = table_of();
    adam.optimizer = "adam";
    refused(adam, "is of rows of the optimizer adagrad, and the variable has adam");
    for (const RowLayout& layout : {RowLayout(7, 1), RowLayout(9, 2)}) {
      refused(table_of(layout), "is of rows of dim 9 with 1 optimizer slots; the variable has dim " +
                                    std::to_string(layout.dim()));
    }
    check_table(site);
  });
}

TEST(files_that_are_damaged_or_not_ours_are_refused_by_name) {
  on_both_media([](const TableSite& site) {
    make_table(site);
    const std::string medium = tested_case();
    TableSite other = site;
    const TemporaryDirectory elsewhere;
    other.root = elsewhere.path();
    make_table(other);
    const std::unique_ptr<Table> second = other.open();
    second->checkpoint();
    second->end();
    // The second of several files, or the only one of a pool.
    const auto one_of = [](const TableSite& of) { return of.row_files()[of.is_pool ? 0 : 1]; };
    const std::string rows = one_of(site);
    const std::string manifest = site.manifest(1);
    const auto refused = [&](const std::string& file, const std::string& why, const auto& damage) {
      tested_case() = medium + ", " + file + ": " + why;
      make_table(site);
      damage();
      const std::vector<std::string> files = all_files(site);
      std::vector<uint64_t> sizes{site.slots};
      if (site.is_pool) sizes.push_back(site.slots + 5000);  // extends the pool
      for (const uint64_t slots : sizes) {
        TableSite opened = site;
        opened.slots = slots;
        check_throws(ErrorKind::kStorage, file + ": " + why, [&] { opened.open(); });
      }
      check(all_files(site) == files, "files went");
    };
    for (const std::string& file : {rows, manifest}) {
      refused(file, "isn't a file of this engine's rows", [&] { overwrite(file, 0, "PK"); });
      refused(file, "isn't a file of this engine's rows", [&] { flip(file, 0); });
      refused(file, "has format version 2; this engine reads version 1", [&] { overwrite(file, 8, "\2"); });
      for (const uint64_t offset : {12, 17, 30, 36, 80, 1300}) {
        refused(file, "is damaged: its header isn't what was written", [&] { flip(file, offset); });
      }
      for (const uint64_t bytes : {0, 40, 1300}) {
        refused(file, "is damaged: its header isn't what was written", [&] { fs::resize_file(file, bytes); });
      }
      for (const char* earlier : {"ESPMROWS", "ESPMCKPT"}) {
        refused(file, kEarlierVersionRefusal, [&] { overwrite(file, 0, earlier); });
      }
    }
    const uint64_t end = fs::file_size(manifest);
    for (const uint64_t offset : {uint64_t{4096}, uint64_t{4200}, end - 5}) {
      refused(manifest, "is damaged: its checksum is wrong", [&] { flip(manifest, offset); });
    }
    refused(manifest, "is truncated or damaged: it has " + std::to_string(end - 1) + " bytes",
            [&] { fs::resize_file(manifest, end - 1); });
    refused(rows, "is missing, and a checkpoint needs it", [&] { fs::remove(rows); });
    refused(rows,
            site.is_pool ? "is truncated: it has 8192 bytes of " : "has room for 102 records and 8192 bytes",
            [&] { fs::resize_file(rows, 2 * medium::kBlockBytes); });
    const auto too_short = [&site](const std::string& records) {
      return site.is_pool ? "is truncated: it has " : "has room for " + records + " records and ";
    };
    refused(rows, too_short("102"),
            [&] { fs::resize_file(rows, fs::file_size(rows) - medium::kBlockBytes); });
    refused(rows, too_short("103"),
            [&] { change_header(rows, [](FileHeader& header) { ++header.capacity; }); });
    const std::string most = std::to_string(RowRef::kMaxSlots);
    refused(
        rows, "has room for 536870911 rows, more than the " + most + " that this version can address", [&] {
          change_header(rows, [](FileHeader& header) { header.capacity = uint64_t{RowRef::kMaxSlots} + 1; });
        });
    const std::string another = "is another file than the one that the checkpoints beside it are of";
    const auto replace_by = [&](const std::string& file) {
      fs::copy(file, rows, fs::copy_options::overwrite_existing);
    };
    refused(rows, another, [&] { replace_by(one_of(other)); });
    if (!site.is_pool) refused(rows, another, [&] { replace_by(site.row_files().front()); });
    refused(rows, another, [&] { change_header(rows, [](FileHeader& header) { header.stride += 16; }); });
    refused(site.manifest(2), "is of another table than the checkpoints beside it",
            [&] { fs::copy(other.manifest(2), site.manifest(2)); });
    tested_case() = medium;
    make_table(site);
    check_table(site);
  });
}

TEST(more_checkpoints_than_a_table_may_have_are_refused) {
  on_both_media([](const TableSite& site) {
    make_table(site);
    for (uint64_t number = 2; number <= kMaxCheckpoints + 1; ++number) {
      fs::copy(site.manifest(1), site.manifest(number));
      change_header(site.manifest(number), [number](FileHeader& header) { header.number = number; });
    }
    const std::vector<std::string> files = all_files(site);
    check_throws(ErrorKind::kStorage, "has 17 checkpoints, and a table may have 16", [&] { site.open(); });
    check(all_files(site) == files, "files went");
    fs::remove(site.manifest(2));
    const std::unique_ptr<Table> table = site.open();
    table->restore(1);
    table->check_rows();
    check(table->kept() == std::vector<uint64_t>{1}, "newer checkpoints stayed");
  });
}

// Runs `work` in processes, each of which ends at another call that isn't a read or a write, and calls `look`
// after each. Returns how many calls there are.
int interrupted(const TableSite& site, const std::function<void()>& prepare,
                const std::function<void(const TableSite&)>& work, const std::function<void()>& look) {
  const std::string medium = tested_case();
  for (int calls = 0;; ++calls) {
    prepare();
    const int end = end_of_child(start_child([&] {
      WatchedCalls dying;
      dying.before = [left = calls](const FileCall& call) mutable {
        if (call.kind != FileCall::kRead && call.kind != FileCall::kWrite && left-- == 0) _exit(3);
        return 0;
      };
      TableSite dies = site;
      dies.calls = &dying;
      work(dies);
    }));
    check(end >= 0, "the process died in another way");
    tested_case() = medium + ", interrupted at call " + std::to_string(calls);
    look();
    tested_case() = medium;
    if (end == 0) return calls;
  }
}

TEST(an_interrupted_creation_leaves_a_checkpoint_or_none) {
  on_both_media([](const TableSite& site) {
    int with = 0;
    const auto make = [](const TableSite& dies) {
      const std::unique_ptr<Table> table = dies.open();
      table->write(0, kRows, 1);
      table->checkpoint();
      _exit(0);  // before anything is closed
    };
    const int calls = interrupted(
        site, [&] { site.remove_all(); }, make,
        [&] {
          bool is_there = false;
          {
            const std::unique_ptr<Table> table = site.open();
            for (const std::string& file : all_files(site)) {
              check(!file.ends_with(".new"), "leftovers stayed");
            }
            is_there = table->checkpoints->awaits_restore();
            if (!is_there) {
              table->write(0, kRows, 1);
              table->checkpoint();
            }
          }
          if (is_there) ++with;
          check_table(site);
        });
    check(calls >= 8 && with >= 1, "hardly any call was interrupted");
  });
}

TEST(an_interrupted_growth_leaves_the_pool) {
  const TemporaryDirectory directory;
  const TableSite small{.is_pool = true, .root = directory.path(), .slots = 10000};
  TableSite large = small;
  large.slots = 40000;
  const int calls = interrupted(
      large, [&] { make_table(small); }, [](const TableSite& dies) { dies.open(); },
      [&] { check_table(large); });
  check(calls >= 4, "hardly any call was interrupted");
}

}  // namespace
}  // namespace embstore::log::testing
