// The slots of a pool: claims, ranks, and who needs each slot.
#include <map>
#include <string>

#include "table.h"

namespace embstore::log::testing {
namespace {

TEST(a_pool_tells_of_itself) {
  const TemporaryDirectory directory;
  PoolTable pool(directory / "var", kLayout, 6000);
  const TierStats stats = pool.tier->stats();
  check(stats.name == "PMEM_POOL" && stats.path == directory / "var.pool" && stats.is_pmem.has_value() &&
            stats.row_bytes == kLayout.row_bytes() && stats.address != 0,
        "the statistics are of something else");
  check(stats.mapped_bytes == std::filesystem::file_size(directory / "var.pool"), "other bytes are mapped");
}

TEST(rows_rank_as_they_were_last_told_to) {
  const TemporaryDirectory directory;
  PoolTable pool(directory / "var", kLayout, 100);
  pool.write(keys_from(0, 2), 1);
  const Slot slot = pool.index.at(1).slot;
  RowBatch rows(kLayout);
  pool.tier->read(std::vector{Place{1, slot}}, rows);
  RowHeader header = rows.header(0);
  header.served += 12;
  header.stamp += 100;
  pool.tier->was_copy(slot, header);
  pool.tier->read(std::vector{Place{1, slot}}, rows);
  check(rows.header(0).served == header.served && rows.header(0).stamp == header.stamp, "a rank is lost");
  check(pool.tier->ranks().rank(slot, CacheStrategy::kLfu).count == header.frequency + header.served,
        "a row ranks otherwise than its header says");
  pool.erase(std::vector<int64_t>{1});
  check(!pool.tier->ranks().is_filled(slot), "a slot without a row has a rank");
}

TEST(a_pool_can_be_filled_to_its_last_slot) {
  const TemporaryDirectory directory;
  constexpr int64_t kSlots = 4096 + 48;  // which fill whole pages, and no whole number of words
  PoolTable pool(directory / "var", kLayout, kSlots);
  check(pool.tier->slot_count() == kSlots, "the pool has another number of slots");
  pool.write(keys_from(0, kSlots), 1);
  check(pool.tier->free_slots() == 0, "a full pool has free slots");
  check_throws(ErrorKind::kStoreFull, directory / "var.pool: the pool has no 1 free slots of its 4144",
               [&] { pool.write(keys_from(0, 1), 2); });
  pool.check_rows();
  pool.checkpoint();
  pool.reopen();
  pool.restore(1);
  pool.check_rows();
  check(pool.index.size() == kSlots && pool.tier->free_slots() == 0, "the last slots are lost");
}

TEST(claims_leave_the_headroom) {
  const TemporaryDirectory directory;
  constexpr uint64_t kSlots = PoolTier::kHeadroomSlots + 96;
  PoolTable pool(directory / "var", kLayout, kSlots);
  check(!pool.tier->try_claim(97), "the headroom was claimed");
  check(pool.tier->try_claim(96) && !pool.tier->try_claim(1), "slots above the headroom are refused");
  check(pool.tier->free_slots() == PoolTier::kHeadroomSlots, "claimed slots are free");
  // Writes take of the headroom; claims stay good.
  pool.write(keys_from(0, PoolTier::kHeadroomSlots), 1);
  check_throws(ErrorKind::kStoreFull, "no 1 free slots", [&] { pool.write(keys_from(0, 1), 2); });
  for (int64_t i = 0; i < 96; ++i) pool.write_one(-1 - i, 1);
  pool.check_rows();
  check(pool.tier->free_slots() == 0, "slots are left over");
  pool.erase(keys_from(-96, 96));
  check(pool.tier->free_slots() == 96 && !pool.tier->try_claim(1), "the headroom was claimed");
  pool.erase(keys_from(0, PoolTier::kHeadroomSlots));
  check(pool.tier->try_claim(10), "free slots are refused");
  pool.tier->give_claim_back(10);
  check(pool.tier->free_slots() == kSlots, "a claim that was given back stays");
}

TEST(slots_are_taken_as_long_as_the_table_or_a_checkpoint_needs_them) {
  const TemporaryDirectory directory;
  PoolTable pool(directory / "var", kLayout, 1000);
  pool.write(keys_from(0, 100), 1);
  pool.erase(keys_from(0, 10));
  pool.check_taken(90);
  pool.checkpoint();
  pool.erase(keys_from(10, 10));
  pool.check_taken(90);
  pool.write(keys_from(0, 10), 2);  // after the checkpoint
  pool.erase(keys_from(0, 5));      // free at once
  pool.check_taken(95);
  pool.reopen();
  pool.check_taken(90);
  flip(directory / "var.pool", pool.shape.offset(50) + 17);
  check_throws(ErrorKind::kStorage, "its header's checksum is wrong", [&] { pool.restore(1); });
  check(!pool.tier->ranks().is_filled(51), "a failed restore left ranks");
  pool.check_taken(90);
  flip(directory / "var.pool", pool.shape.offset(50) + 17);
  pool.restore(1);
  pool.check_taken(90);
  pool.write(keys_from(20, 40), 3);  // 40 of 90 anew
  pool.checkpoint();
  pool.write(keys_from(20, 60), 4);
  pool.check_taken(90 + 40 + 60);
  pool.reopen();
  pool.check_taken(90 + 40);
  pool.restore(1);
  pool.check_taken(90);
  pool.checkpoints->drop_all();
  pool.reopen();
  pool.check_taken(0);
}

TEST(every_slot_of_two_kept_checkpoints_is_accounted_for) {
  const TemporaryDirectory directory;
  PoolTable pool(directory / "var", kLayout, 1000);
  pool.write(keys_from(0, 100), 1);
  pool.checkpoint();
  pool.write(keys_from(0, 30), 2);  // 100 of checkpoint 1, 30 live since
  pool.check_taken(130);
  pool.checkpoint();
  pool.write(keys_from(20, 20), 3);  // 10 of the first and 10 of the second aren't live any more
  pool.check_taken(150);
  const Versions live = pool.versions();
  pool.checkpoints->drop(1);  // frees what keys 0 to 29 had
  pool.check_taken(120);
  pool.checkpoint();
  pool.check_taken(120);
  pool.checkpoints->drop(3);  // all of it is live
  pool.check_taken(120);
  pool.checkpoints->drop(2);
  pool.check_taken(100);
  check(pool.checkpoints->kept().empty(), "dropped checkpoints are there");
  check(pool.versions() == live, "the index is another");
  pool.check_rows();
  pool.erase(keys_from(0, 100));
  pool.check_taken(0);
  pool.reopen();
  check(!pool.checkpoints->awaits_restore(), "a pool without checkpoints has a past");
  pool.check_taken(0);
}

TEST(a_pending_checkpoint_takes_rows_that_are_written_later) {
  const TemporaryDirectory directory;
  PoolTable pool(directory / "var", kLayout, 10000);
  pool.write(keys_from(0, 100), 1);
  check(pool.tier->try_claim(3), "no claim");
  RowBatch rows(kLayout);
  rows.resize(3);
  fill_row(rows, 0, 1000, 1);  // changed when 1 began; changed again since, so it's for the checkpoint alone
  fill_row(rows, 1, 1001, 1);  // changed when 1 and 2 began
  fill_row(rows, 2, 1002, 2);  // changed between them
  pool.begin();
  check(pool.checkpoints->has_pending() && pool.checkpoints->kept().empty(), "it isn't pending");
  const Slot first = pool.tier->write_claimed(rows.header(0), rows.row(0), /*is_live=*/false);
  pool.tier->add_to_checkpoints(1, first);
  pool.begin();
  const Slot second = pool.tier->write_claimed(rows.header(1), rows.row(1), /*is_live=*/true);
  pool.tier->add_to_checkpoints(1, second);
  const Slot third = pool.tier->write_claimed(rows.header(2), rows.row(2), /*is_live=*/true);
  pool.tier->add_to_checkpoints(2, third);
  pool.tier->fence();
  check(pool.tier->stats().rows == 102, "a row that is for a checkpoint alone is live");
  pool.commit(1);
  check(pool.checkpoints->has_pending(), "the second isn't pending");
  pool.commit(2);
  check(!pool.checkpoints->has_pending(), "something is pending");
  pool.check_taken(103);

  for (const uint64_t number : {2, 1}) {
    pool.reopen();
    pool.restore(number);
    check(pool.index.size() == 102, "another number of rows came back");
    check(pool.index.contains(1000) == (number == 1) && pool.index.contains(1001) &&
              pool.index.contains(1002) == (number == 2),
          "other rows came back");
    pool.check_rows();
  }
}

TEST(a_row_for_a_checkpoint_that_is_gone_leaves_its_slot_free) {
  const TemporaryDirectory directory;
  PoolTable pool(directory / "var", kLayout, 10000);
  check(pool.tier->try_claim(2), "no claim");
  RowBatch rows(kLayout);
  rows.resize(1);
  fill_row(rows, 0, 1, 1);
  pool.begin();
  const Slot first = pool.tier->write_claimed(rows.header(0), rows.row(0), /*is_live=*/false);
  pool.tier->add_to_checkpoints(1, first);
  const Slot second = pool.tier->write_claimed(rows.header(0), rows.row(0), /*is_live=*/false);
  pool.check_taken(2);
  pool.checkpoints->drop(1);
  check(!pool.checkpoints->has_pending(), "a dropped checkpoint is pending");
  pool.check_taken(1);
  pool.tier->add_to_checkpoints(1, second);
  pool.check_taken(0);
}

}  // namespace
}  // namespace embstore::log::testing
