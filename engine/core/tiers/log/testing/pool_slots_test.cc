// Tests of a pool's slots: claims, ranks, and the references to each slot.
#include <map>
#include <string>

#include "table.h"

namespace embstore::log::testing {
namespace {

TEST(the_statistics_of_a_pool_describe_it) {
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
  pool.tier->promote_copy(slot, header);
  pool.tier->read(std::vector{Place{1, slot}}, rows);
  check(rows.header(0).served == header.served && rows.header(0).stamp == header.stamp, "a rank is lost");
  check(pool.tier->ranks().rank(slot, CacheStrategy::kLfu).count == header.frequency + header.served,
        "a row ranks otherwise than its header says");
  pool.erase(std::vector<int64_t>{1});
  check(!pool.tier->ranks().is_filled(slot), "a slot without a row has a rank");
}

TEST(a_pool_can_be_filled_to_its_last_slot) {
  const TemporaryDirectory directory;
  constexpr int64_t kSlots = 4096 + 48;  // they fill whole pages, but no whole number of 64-bit words
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
  // Writes use the headroom; claims stay valid.
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

TEST(a_restore_that_fails_leaves_slots_and_ranks_as_they_were) {
  const TemporaryDirectory directory;
  PoolTable pool(directory / "var", kLayout, 1000);
  pool.write(0, 100, 1);
  pool.checkpoint();
  pool.write(0, 10, 2);  // in no checkpoint
  pool.reopen();
  flip(directory / "var.pool", pool.shape.offset(50) + 17);
  check_throws(ErrorKind::kStorage, "its header's checksum is wrong", [&] { pool.restore(1); });
  check(!pool.tier->ranks().is_filled(51), "a failed restore left ranks");
  pool.check_taken(100);
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
