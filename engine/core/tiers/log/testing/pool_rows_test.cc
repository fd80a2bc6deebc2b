// Rows are written, read and erased; what is damaged is told.
#include <map>
#include <string>

#include "pool_table.h"

namespace embstore::log::testing {
namespace {

const RowLayout kLayout(6, 1);

TEST(rows_are_read_as_they_were_written) {
  for (const RowLayout& layout : {RowLayout(1, 0), RowLayout(6, 1), RowLayout(64, 2), RowLayout(300, 3)}) {
    const TemporaryDirectory directory;
    Pool pool(directory / "var", layout, 6000);
    pool.write(keys_from(-500, 1000), 1);
    pool.check_all();
    pool.write(keys_from(-100, 300), 2);
    check(pool.tier->try_claim(1), "a claim is refused");
    pool.write_one(7, 3);
    pool.check_all();
    pool.erase(keys_from(-500, 600));
    pool.check_all();
    pool.expect_taken(pool.index.size());
    const TierStats stats = pool.tier->stats();
    check(stats.name == "PMEM_POOL" && stats.path == directory / "var.pool" && stats.is_pmem.has_value() &&
              stats.row_bytes == layout.row_bytes() && stats.address != 0,
          "the statistics are of something else");
    check(stats.mapped_bytes == std::filesystem::file_size(directory / "var.pool"), "other bytes are mapped");
  }
}

TEST(the_weights_alone_can_be_read) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 100);
  pool.write(keys_from(0, 50), 4);
  RowBatch rows(kLayout);
  RowBatch expected(kLayout);
  expected.resize(1);
  for (const auto& [key, entry] : pool.index) {
    pool.tier->read(std::vector{Place{key, entry.slot}}, rows, RowPart::kWeights);
    fill_row(expected, 0, key, 4);
    check(std::equal(rows.row(0), rows.row(0) + kLayout.dim(), expected.row(0)), "other weights were read");
    check(rows.header(0).frequency == expected.header(0).frequency, "another header was read");
  }
}

TEST(rows_rank_as_they_were_last_told_to) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 100);
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
  Pool pool(directory / "var", kLayout, kSlots);
  check(pool.tier->slot_count() == kSlots, "the pool has another number of slots");
  pool.write(keys_from(0, kSlots), 1);
  check(pool.tier->free_slots() == 0, "a full pool has free slots");
  check_throws(ErrorKind::kStoreFull, directory / "var.pool: the pool has no 1 free slots of its 4144",
               [&] { pool.write(keys_from(0, 1), 2); });
  pool.check_all();
  pool.checkpoint();
  pool.reopen();
  pool.restore(1);
  pool.check_all();
  check(pool.index.size() == kSlots && pool.tier->free_slots() == 0, "the last slots are lost");
}

TEST(claims_leave_the_headroom) {
  const TemporaryDirectory directory;
  constexpr uint64_t kSlots = PoolTier::kHeadroomSlots + 96;
  Pool pool(directory / "var", kLayout, kSlots);
  check(!pool.tier->try_claim(97), "the headroom was claimed");
  check(pool.tier->try_claim(96) && !pool.tier->try_claim(1), "slots above the headroom are refused");
  check(pool.tier->free_slots() == PoolTier::kHeadroomSlots, "claimed slots are free");
  // Writes take of the headroom; claims stay good.
  pool.write(keys_from(0, PoolTier::kHeadroomSlots), 1);
  check_throws(ErrorKind::kStoreFull, "no 1 free slots", [&] { pool.write(keys_from(0, 1), 2); });
  for (int64_t i = 0; i < 96; ++i) pool.write_one(-1 - i, 1);
  pool.check_all();
  check(pool.tier->free_slots() == 0, "slots are left over");
  pool.erase(keys_from(-96, 96));
  check(pool.tier->free_slots() == 96 && !pool.tier->try_claim(1), "the headroom was claimed");
  pool.erase(keys_from(0, PoolTier::kHeadroomSlots));
  check(pool.tier->try_claim(10), "free slots are refused");
  pool.tier->give_claim_back(10);
  check(pool.tier->free_slots() == kSlots, "a claim that was given back stays");
}

TEST(the_number_of_reused_places_tells_of_reuse) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, 10);
  pool.write(keys_from(0, 5), 1);
  const uint64_t before = pool.tier->reused_places();
  pool.write(keys_from(5, 5), 1);
  check(pool.tier->reused_places() == before, "fresh places count as reused");
  pool.erase(keys_from(0, 1));
  pool.write(keys_from(0, 1), 2);
  check(pool.tier->reused_places() != before, "a reused place isn't told of");
}

TEST(a_damaged_record_is_told_by_file_and_slot) {
  const TemporaryDirectory directory;
  const RecordShape shape = shape_in_pool(kLayout);
  Pool pool(directory / "var", kLayout, 100);
  pool.write(keys_from(0, 100), 1);
  pool.checkpoint();
  pool.reopen();
  pool.restore(1);
  const std::string file = directory / "var.pool";
  const auto slot_of = [&](int64_t key) { return pool.index.at(key).slot; };
  flip(file, shape.offset(slot_of(10)) + 3);                                           // its key
  flip(file, shape.offset(slot_of(11)) + 41);                                          // its epoch
  flip(file, shape.offset(slot_of(12)) + sizeof(RecordHeader) + 2);                    // a weight
  flip(file, shape.offset(slot_of(13)) + sizeof(RecordHeader) + shape.row_bytes - 1);  // a slot's value
  std::vector<Place> places;
  for (const auto& [key, entry] : pool.index) places.push_back({key, entry.slot});
  RowBatch rows(kLayout);
  const std::map<size_t, std::string>& damaged = rows.damaged();
  rows.set_places(places);
  pool.tier->read_rows(rows, RowPart::kAll);
  check(damaged.size() == 4, std::to_string(damaged.size()) + " rows are damaged");
  const std::string reasons[] = {"its header's checksum is wrong", "its header's checksum is wrong",
                                 "its weights' checksum is wrong",
                                 "the checksum of its optimizer's slots is wrong"};
  for (size_t i = 0; i < 4; ++i) {
    const Slot slot = slot_of(static_cast<int64_t>(10 + i));
    check(rows.is_damaged(10 + i), "another row is called damaged");
    check(damaged.at(10 + i) == file + ": the record in slot " + std::to_string(slot) + " (at byte " +
                                    std::to_string(shape.offset(slot)) + ") is damaged: " + reasons[i],
          damaged.at(10 + i));
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (i < 10 || i >= 14) check(checked_version(rows, i, places[i].key) == 1, "a whole row is lost");
  }
  pool.tier->read_rows(rows, RowPart::kWeights);
  check(damaged.size() == 3, "of the weights other rows are damaged");
  check_throws(ErrorKind::kDamagedRows, "the row of key 12",
               [&] { pool.tier->read(std::vector{Place{12, slot_of(12)}}, rows); });
}

}  // namespace

}  // namespace embstore::log::testing
