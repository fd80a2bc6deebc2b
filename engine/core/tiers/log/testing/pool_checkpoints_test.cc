// A checkpoint has what was live when it began, until it's dropped, whatever happens since and whoever opens the pool.
#include <algorithm>
#include <set>
#include <string>

#include "pool_table.h"

namespace embstore::log::testing {
namespace {

const RowLayout kLayout(6, 1);

TEST(a_checkpoint_is_restored_by_the_next_process) {
  for (const int threads : {1, 2, 7}) {
    const TemporaryDirectory directory;
    Pool pool(directory / "var", kLayout, 30000);
    check(!pool.checkpoints->awaits_restore(), "a new pool has a past");
    pool.write(keys_from(0, 10000), 1);
    pool.erase(keys_from(100, 50));
    pool.checkpoint();
    const Versions then = versions_of(pool.index);
    pool.write(keys_from(5000, 10000), 2);
    pool.reopen();
    check(pool.checkpoints->awaits_restore() && pool.tier->stats().rows == 0,
          "rows are live before they're restored");
    pool.expect_taken(then.size());
    const auto checkpoints = pool.checkpoints->kept();
    check(checkpoints.size() == 1 && checkpoints[0].number == 1 && checkpoints[0].id == id_of(1) &&
              checkpoints[0].rows == then.size(),
          "there are other checkpoints");
    pool.restore(1, threads);
    check(!pool.checkpoints->awaits_restore(), "a restore is awaited after it");
    check(versions_of(pool.index) == then, "other rows came back");
    pool.check_all();
    pool.expect_taken(then.size());
    // It goes on from there.
    pool.write(keys_from(0, 2000), 3);
    pool.checkpoint();
    pool.checkpoints->drop(1);
    pool.expect_taken(pool.index.size());
    const Versions now = versions_of(pool.index);
    pool.reopen();
    pool.restore(2, threads);
    check(versions_of(pool.index) == now, "other rows came back");
    pool.check_all();
  }
}

TEST(slots_of_a_kept_checkpoint_are_never_written) {
  const TemporaryDirectory directory;
  const RecordShape shape = shape_in_pool(kLayout);
  Pool pool(directory / "var", kLayout, 2000);
  pool.write(keys_from(0, 500), 1);
  pool.checkpoint();
  std::set<Slot> slots;
  for (const auto& [key, entry] : pool.index) slots.insert(entry.slot);
  const std::string before = bytes_of(directory / "var.pool");
  for (int64_t version = 2; version < 30; ++version) {
    pool.write(keys_from(version * 10, 400), version);
    pool.erase(keys_from(version * 7, 100));
  }
  const std::string after = bytes_of(directory / "var.pool");
  check(before != after, "nothing was written at all");
  for (const Slot slot : slots) {
    check(before.compare(shape.offset(slot), shape.stride, after, shape.offset(slot), shape.stride) == 0,
          "slot " + std::to_string(slot) + " of a kept checkpoint was written");
  }
  pool.checkpoints->drop(1);
  for (int64_t version = 30; version < 40; ++version) pool.write(keys_from(0, 500), version);
  pool.expect_taken(pool.index.size());
}

TEST(rows_that_are_erased_before_a_checkpoint_are_not_in_it) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 1000);
  pool.write(keys_from(0, 100), 1);
  pool.erase(keys_from(0, 10));
  pool.expect_taken(90);
  pool.checkpoint();
  pool.erase(keys_from(10, 10));
  pool.expect_taken(90);
  pool.write(keys_from(0, 10), 2);  // after the checkpoint
  pool.erase(keys_from(0, 5));      // free at once
  pool.expect_taken(95);
  pool.reopen();
  pool.expect_taken(90);
  pool.restore(1);
  check(versions_of(pool.index).size() == 90 && pool.index.begin()->first == 10, "other rows came back");
  pool.check_all();
}

TEST(every_slot_of_two_kept_checkpoints_is_accounted_for) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 1000);
  pool.write(keys_from(0, 100), 1);
  pool.checkpoint();
  pool.write(keys_from(0, 30), 2);  // 100 of checkpoint 1, 30 live since
  pool.expect_taken(130);
  pool.checkpoint();
  pool.write(keys_from(20, 20), 3);  // 10 of the first and 10 of the second aren't live any more
  pool.expect_taken(150);
  const Versions live = versions_of(pool.index);
  pool.checkpoints->drop(1);  // frees what keys 0 to 29 had
  pool.expect_taken(120);
  pool.checkpoint();
  pool.expect_taken(120);
  pool.checkpoints->drop(3);  // all of it is live
  pool.expect_taken(120);
  pool.checkpoints->drop(2);
  pool.expect_taken(100);
  check(pool.checkpoints->kept().empty(), "dropped checkpoints are there");
  check(versions_of(pool.index) == live, "the index is another");
  pool.check_all();
  pool.erase(keys_from(0, 100));
  pool.expect_taken(0);
  pool.reopen();
  check(!pool.checkpoints->awaits_restore(), "a pool without checkpoints has a past");
  pool.expect_taken(0);
}

TEST(a_pending_checkpoint_takes_rows_that_are_written_later) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 10000);
  pool.write(keys_from(0, 100), 1);
  check(pool.tier->try_claim(3), "no claim");
  RowBatch rows(kLayout);
  rows.resize(3);
  fill_row(rows, 0, 1000, 1);  // changed when 1 began; changed again since, so it's for the checkpoint alone
  fill_row(rows, 1, 1001, 1);  // changed when 1 and 2 began
  fill_row(rows, 2, 1002, 2);  // changed between them
  check(pool.checkpoints->begin({}) == 1, "another number is given");
  check(pool.checkpoints->has_pending() && pool.checkpoints->kept().empty(), "it isn't pending");
  const Slot first = pool.tier->write_claimed(rows.header(0), rows.row(0), /*is_live=*/false);
  pool.tier->add_to_checkpoints(1, first);
  check(pool.checkpoints->begin({}) == 2, "another number is given");
  const Slot second = pool.tier->write_claimed(rows.header(1), rows.row(1), /*is_live=*/true);
  pool.tier->add_to_checkpoints(1, second);
  const Slot third = pool.tier->write_claimed(rows.header(2), rows.row(2), /*is_live=*/true);
  pool.tier->add_to_checkpoints(2, third);
  pool.tier->fence();
  check(pool.tier->stats().rows == 102, "a row that is for a checkpoint alone is live");
  pool.checkpoints->commit(1, id_of(1));
  check(pool.checkpoints->has_pending(), "the second isn't pending");
  pool.checkpoints->commit(2, id_of(2));
  check(!pool.checkpoints->has_pending(), "something is pending");
  pool.expect_taken(103);

  for (const uint64_t number : {2, 1}) {
    pool.reopen();
    pool.restore(number);
    check(pool.index.size() == (number == 1 ? 102U : 102U), "another number of rows came back");
    check(pool.index.contains(1000) == (number == 1) && pool.index.contains(1001) &&
              pool.index.contains(1002) == (number == 2),
          "other rows came back");
    pool.check_all();
  }
}

TEST(a_row_for_a_checkpoint_that_is_gone_leaves_its_slot_free) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 10000);
  check(pool.tier->try_claim(2), "no claim");
  RowBatch rows(kLayout);
  rows.resize(1);
  fill_row(rows, 0, 1, 1);
  check(pool.checkpoints->begin({}) == 1, "another number is given");
  const Slot first = pool.tier->write_claimed(rows.header(0), rows.row(0), /*is_live=*/false);
  pool.tier->add_to_checkpoints(1, first);
  const Slot second = pool.tier->write_claimed(rows.header(0), rows.row(0), /*is_live=*/false);
  pool.expect_taken(2);
  pool.checkpoints->drop(1);
  check(!pool.checkpoints->has_pending(), "a dropped checkpoint is pending");
  pool.expect_taken(1);
  pool.tier->add_to_checkpoints(1, second);
  pool.expect_taken(0);
}

TEST(a_pending_checkpoint_is_nothing_to_the_next_process) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 1000);
  pool.write(keys_from(0, 100), 1);
  pool.checkpoint();
  pool.write(keys_from(50, 100), 2);
  check(pool.checkpoints->begin({}) == 2, "another number is given");
  pool.reopen();
  check(pool.checkpoints->kept().size() == 1 && !pool.checkpoints->has_pending(), "it became a checkpoint");
  pool.restore(1);
  check(pool.index.size() == 100 && pool.index.at(60).version == 1, "other rows came back");
  pool.check_all();
}

TEST(restoring_an_older_checkpoint_ends_the_newer_ones) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 2000);
  Versions then;
  for (uint64_t number = 1; number <= 4; ++number) {
    pool.write(keys_from(static_cast<int64_t>(number) * 20, 100), static_cast<int64_t>(number));
    pool.checkpoint();
    if (number == 2) then = versions_of(pool.index);
  }
  pool.reopen();
  pool.restore(2);
  check(versions_of(pool.index) == then, "other rows came back");
  check(pool.checkpoints->kept().size() == 2, "newer checkpoints are there");
  // 100 of the first, and 100 that were written since for the second
  pool.expect_taken(100 + 100);
  pool.write(keys_from(0, 300), 9);
  check(pool.checkpoint() == 5, "a number is given twice");
  const Versions now = versions_of(pool.index);
  pool.reopen();
  check(pool.checkpoints->kept().size() == 3, "checkpoints are lost");
  pool.restore(5);
  check(versions_of(pool.index) == now, "rows of an abandoned timeline came back");
  pool.check_all();
  check_throws(ErrorKind::kStorage, "there is no such checkpoint", [&] { pool.restore(3); });
}

TEST(there_are_sixteen_checkpoints_at_most) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 100);
  pool.write(keys_from(0, 10), 1);
  for (int i = 0; i < 15; ++i) pool.checkpoint();
  const uint64_t pending = pool.checkpoints->begin({});
  check_throws(ErrorKind::kStorage, "var: has 16 checkpoints already", [&] { pool.checkpoints->begin({}); });
  pool.checkpoints->drop(pending);
  check(pool.checkpoint() == pending + 1, "a number is given twice");
  pool.expect_taken(10);
}

TEST(a_failed_restore_may_be_tried_again) {
  const TemporaryDirectory directory;
  const RecordShape shape = shape_in_pool(kLayout);
  Pool pool(directory / "var", kLayout, 20000);
  pool.write(keys_from(0, 10000), 1);
  pool.checkpoint();
  const Versions then = versions_of(pool.index);
  const Slot slot = pool.index.at(77).slot;
  pool.write(keys_from(0, 100), 2);
  pool.checkpoint();
  pool.reopen();
  flip(directory / "var.pool", shape.offset(slot) + 17);
  check_throws(ErrorKind::kStorage,
               directory / "var.pool: the record in slot " + std::to_string(slot) + " (at byte ",
               [&] { pool.restore(1, 4); });
  check(pool.tier->stats().rows == 0 && pool.checkpoints->awaits_restore() &&
            pool.checkpoints->kept().size() == 2,
        "a failed restore changed something");
  check(!pool.tier->ranks().is_filled(slot + 1), "a failed restore left ranks");
  pool.restore(2);  // which doesn't need that record
  check(pool.index.size() == 10000, "rows are missing");
  pool.check_all();
  pool.reopen();
  flip(directory / "var.pool", shape.offset(slot) + 17);
  int calls = 0;
  check_throws(ErrorKind::kStoreFull, "no room", [&] {
    pool.checkpoints->restore(1, 1, [&](size_t, std::span<const RowHeader>, std::span<const Slot>) {
      if (++calls == 2) throw Error(ErrorKind::kStoreFull, "no room");
    });
  });
  pool.restore(1);
  check(versions_of(pool.index) == then, "other rows came back");
  pool.check_all();
}

TEST(starting_over_gives_everything_up) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 1000);
  pool.write(keys_from(0, 100), 1);
  pool.checkpoint();
  pool.checkpoint();
  pool.reopen();
  pool.checkpoints->drop_all();
  check(!pool.checkpoints->awaits_restore() && pool.checkpoints->kept().empty() &&
            pool.tier->free_slots() == pool.tier->slot_count(),
        "something was kept");
  pool.write(keys_from(0, 1000), 2);
  pool.reopen();
  check(!pool.checkpoints->awaits_restore() && pool.tier->free_slots() == pool.tier->slot_count(),
        "rows of no checkpoint came back");
}

TEST(a_restore_may_come_when_rows_were_written_and_erased) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 1000);
  pool.write(keys_from(0, 100), 1);
  pool.checkpoint();
  pool.write(keys_from(0, 200), 2);
  pool.erase(keys_from(0, 200));
  pool.restore(1);
  check(pool.index.size() == 100, "other rows came back");
  pool.expect_taken(100);
  pool.check_all();
}

}  // namespace

}  // namespace embstore::log::testing
