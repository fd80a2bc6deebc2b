// Tests of the limits of checkpoints, and of damage to them. random_test.cc checks that a checkpoint has the
// rows that were live when it began, until it's dropped, whatever happens since and whichever process opens
// the table.
#include <fcntl.h>

#include <string>

#include "files/file.h"
#include "table.h"

namespace embstore::log::testing {
namespace {

TEST(a_checkpoint_is_neither_dropped_nor_committed_while_it_is_being_committed) {
  on_both_media([](const TableSite& on) {
    WatchedCalls calls;
    TableSite site = on;
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

TEST(there_are_sixteen_checkpoints_at_most) {
  on_both_media([](const TableSite& site) {
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
    check_throws(ErrorKind::kStorage, site.manifest(pending) + ": there is no such checkpoint",
                 [&] { table->restore(pending); });
    table->checkpoints->drop_all();
    table->check_space();
  });
}

TEST(a_record_whose_header_is_damaged_is_named_and_nothing_is_live_then) {
  on_both_media([](const TableSite& site) {
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
    table->restore(2);  // it doesn't need that record
    check(table->index.size() == 9000, "rows are missing");
    table->check_rows();
    flip_key();
    // A record that was written after the checkpoint began doesn't belong to it, even if it's whole.
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
    // An error of the visitor is rethrown, and the restore may be repeated.
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

}  // namespace
}  // namespace embstore::log::testing
