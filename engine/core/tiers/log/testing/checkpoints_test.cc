// A checkpoint has what was live when it began, until it is dropped, whatever happens since and whoever opens the table.
#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "files/file.h"
#include "table.h"

namespace embstore::log::testing {
namespace {

TEST(a_checkpoint_is_restored_by_the_next_process) {
  on_both_media([](const Site& site) {
    for (const int threads : {1, 2, 7}) {
      const std::unique_ptr<Table> table = site.open();
      check(!table->checkpoints->awaits_restore(), "a new table has a past");
      table->write(0, 10000, 1);
      table->erase(100, 50);
      check(table->checkpoint() == 1, "the first checkpoint has another number");
      const Versions first = table->versions();
      table->write(5000, 5500, 2);
      table->checkpoint();
      const Versions second = table->versions();
      table->write(0, 3000, 3);  // which no checkpoint has
      table->reopen();
      check(table->checkpoints->awaits_restore() && table->rows().stats().rows == 0,
            "rows are live before they are restored");
      const auto kept = table->checkpoints->kept();
      check(kept.size() == 2 && kept[0].number == 1 && kept[0].id == id_of(1) &&
                kept[0].rows == first.size() && kept[1].number == 2,
            "there are other checkpoints");
      table->restore(2, threads);
      check(!table->checkpoints->awaits_restore(), "a restore is awaited after it");
      check(table->versions() == second, "other rows came back");
      table->check_rows();
      // It goes on from there.
      table->write(0, 2000, 4);
      table->restore(1, threads);
      check(table->versions() == first, "other rows came back");
      table->check_rows();
      check(table->kept() == std::vector<uint64_t>{1}, "a newer checkpoint outlives restoring an older one");
      table->write(500, 1000, 5);
      check(table->checkpoint() == 3, "a number is given twice");
      table->checkpoints->drop(1);
      const Versions now = table->versions();
      table->reopen();
      table->restore(3, threads);
      check(table->versions() == now, "other rows came back");
      table->check_rows();
      table->checkpoints->drop(3);
      table->check_space();
      table->end();
      site.remove_all();
    }
  });
}

TEST(records_of_a_kept_checkpoint_are_never_written) {
  on_both_media([](const Site& site) {
    const std::unique_ptr<Table> table = site.open();
    table->write(0, 500, 1);
    table->checkpoint();
    const auto records = [&] {
      std::map<std::string, std::string> files;
      for (const std::string& file : site.row_files()) files[file] = bytes_of(file);
      return files;
    };
    std::vector<Table::Record> kept;
    for (int64_t key = 0; key < 500; ++key) kept.push_back(table->record_of(key));
    auto before = records();
    for (int64_t version = 2; version < 30; ++version) {
      table->write(version * 10, 400, version);
      table->erase(version * 7, 100);
    }
    auto after = records();
    check(before != after, "nothing was written at all");
    for (const auto& [file, offset, read, restored] : kept) {
      check(before[file].compare(offset, table->shape.stride, after[file], offset, table->shape.stride) == 0,
            read + " of a kept checkpoint was written");
    }
    table->checkpoints->drop(1);
    for (int64_t version = 30; version < 40; ++version) table->write(0, 500, version);
    table->check_rows();
    table->check_space();
  });
}

TEST(rows_that_are_erased_before_a_checkpoint_are_not_in_it) {
  on_both_media([](const Site& site) {
    const std::unique_ptr<Table> table = site.open();
    table->write(0, 100, 1);
    table->erase(0, 10);
    table->checkpoint();
    table->erase(10, 10);
    table->write(0, 10, 2);
    table->erase(0, 5);
    table->reopen();
    table->restore(1);
    check(table->index.keys() == keys_from(10, 90), "other rows came back");
    table->check_rows();
  });
}

TEST(a_pending_checkpoint_is_nothing_to_the_next_process) {
  on_both_media([](const Site& site) {
    for (const auto pending : {Table::Pending::kDropped, Table::Pending::kLeft}) {
      const std::unique_ptr<Table> table = site.open();
      table->write(0, 1000, 1);
      table->checkpoint();
      table->write(500, 1000, 2);
      table->begin();
      check(table->checkpoints->has_pending() && table->kept() == std::vector<uint64_t>{1},
            "it isn't pending");
      table->reopen(pending);
      check(table->kept() == std::vector<uint64_t>{1} && !table->checkpoints->has_pending(),
            "it became a checkpoint");
      table->restore(1);
      check(table->index.size() == 1000 && table->index.at(600).version == 1, "other rows came back");
      table->check_rows();
      table->checkpoints->drop(1);
      table->erase_all();
      table->check_space();
      table->end();
      site.remove_all();
    }
  });
}

TEST(a_checkpoint_is_neither_dropped_nor_committed_while_it_is_being_committed) {
  on_both_media([](const Site& on) {
    WatchedCalls calls;
    Site site = on;
    site.calls = &calls;
    const std::unique_ptr<Table> table = site.open();
    table->write(0, 100, 1);
    const uint64_t number = table->begin();
    bool was_tried = false;
    calls.before = [&](const FileCall& call) {
      if (call.kind != FileCall::kName) return 0;
      was_tried = true;
      check_throws(ErrorKind::kInvalidArgument, "var: checkpoint 1 is being written",
                   [&] { table->checkpoints->drop(number); });
      check_throws(ErrorKind::kStorage, "no pending checkpoint 1", [&] { table->commit(number); });
      return 0;
    };
    table->commit(number);
    calls.before = nullptr;
    check(was_tried && table->kept() == std::vector<uint64_t>{number}, "the checkpoint is lost");
    table->reopen();
    table->restore(number);
    table->check_rows();
    table->checkpoints->drop(number);
    table->erase_all();
    table->check_space();
  });
}

TEST(restoring_an_older_checkpoint_ends_the_newer_ones) {
  on_both_media([](const Site& site) {
    const std::unique_ptr<Table> table = site.open();
    Versions then;
    for (uint64_t number = 1; number <= 4; ++number) {
      table->write(static_cast<int64_t>(number) * 20, 100, static_cast<int64_t>(number));
      table->checkpoint();
      if (number == 2) then = table->versions();
    }
    table->reopen();
    table->restore(2);
    check(table->versions() == then, "other rows came back");
    check(table->kept() == std::vector<uint64_t>{1, 2}, "newer checkpoints are there");
    table->write(0, 300, 9);
    check(table->checkpoint() == 5, "a number is given twice");
    const Versions now = table->versions();
    table->reopen();
    check(table->kept() == std::vector<uint64_t>{1, 2, 5}, "checkpoints are lost");
    table->restore(5);
    check(table->versions() == now, "rows of an abandoned timeline came back");
    table->check_rows();
    check_throws(ErrorKind::kStorage, site.manifest(3) + ": there is no such checkpoint",
                 [&] { table->restore(3); });
  });
}

TEST(there_are_sixteen_checkpoints_at_most) {
  on_both_media([](const Site& site) {
    const std::unique_ptr<Table> table = site.open();
    table->write(0, 10, 1);
    for (int i = 0; i < 15; ++i) table->checkpoint();
    const uint64_t pending = table->begin();
    check_throws(ErrorKind::kStorage, "var: has 16 checkpoints already", [&] { table->begin(); });
    table->checkpoints->drop(pending);
    check(table->checkpoint() == pending + 1, "a number is given twice");
    table->reopen();
    table->restore(pending + 1);
    table->check_rows();
    check(table->index.size() == 10, "other rows came back");
    table->checkpoints->drop_all();
    table->check_space();
  });
}

TEST(a_record_whose_header_is_damaged_is_named_and_nothing_is_live_then) {
  on_both_media([](const Site& site) {
    const std::unique_ptr<Table> table = site.open();
    table->write(0, 9000, 1);
    table->checkpoint();
    const Versions then = table->versions();
    const Table::Record at = table->record_of(77);
    const Table::Record other = table->record_of(1500);
    table->write(0, 100, 2);
    table->checkpoint();
    const auto refused = [&](const Table::Record& record, const std::string& fault, const auto& damage) {
      damage();
      for (const int threads : {1, 4}) {
        table->reopen();
        const std::string message = error_of(ErrorKind::kStorage, [&] { table->restore(1, threads); });
        check(message == record.when_restored + " is damaged: " + fault, message);
        check(table->rows().stats().rows == 0 && table->checkpoints->awaits_restore() &&
                  table->kept() == std::vector<uint64_t>{1, 2},
              "a failed restore changed something");
      }
    };
    const auto flip_key = [&] { flip(at.file, at.offset + 6); };
    refused(at, "its header's checksum is wrong", flip_key);
    table->restore(2);  // which doesn't need that record
    check(table->index.size() == 9000, "rows are missing");
    table->check_rows();
    flip_key();
    // A record that was made after the checkpoint began isn't of it, however whole.
    const auto set_epoch = [&](uint64_t epoch) {
      files::File file(files::system_file_calls(), other.file, O_RDWR);
      RecordHeader header{};
      file.read_at(&header, sizeof header, other.offset);
      header.epoch = epoch;
      header.checksum = header.computed_checksum();
      file.write_at(&header, sizeof header, other.offset);
    };
    refused(other, "it's of a later checkpoint", [&] { set_epoch(2); });
    set_epoch(1);
    // What a visitor throws comes through, and the restore may be tried again.
    int visits = 0;
    check_throws(ErrorKind::kStoreFull, "no room", [&] {
      table->checkpoints->restore(1, 1, [&](size_t, std::span<const RowHeader>, std::span<const Slot>) {
        if (++visits == 2) throw Error(ErrorKind::kStoreFull, "no room");
      });
    });
    check(table->rows().stats().rows == 0, "rows are live");
    table->restore(1);
    check(table->versions() == then, "other rows came back");
    table->check_rows();
  });
}

TEST(starting_over_gives_everything_up) {
  on_both_media([](const Site& site) {
    const std::unique_ptr<Table> table = site.open();
    table->write(0, 3000, 1);
    table->checkpoint();
    table->checkpoint();
    table->reopen();
    table->checkpoints->drop_all();
    check(!table->checkpoints->awaits_restore() && table->kept().empty(), "something was kept");
    table->check_space();
    table->write(0, 1000, 2);
    table->reopen();
    check(!table->checkpoints->awaits_restore() && table->rows().stats().rows == 0,
          "rows of no checkpoint came back");
    table->check_space();
  });
}

TEST(a_restore_may_come_when_rows_were_written_and_erased) {
  on_both_media([](const Site& site) {
    const std::unique_ptr<Table> table = site.open();
    table->write(0, 100, 1);
    table->checkpoint();
    table->write(0, 200, 2);
    table->erase_all();
    table->restore(1);
    check(table->index.keys() == keys_from(0, 100), "other rows came back");
    table->check_rows();
  });
}

}  // namespace
}  // namespace embstore::log::testing
