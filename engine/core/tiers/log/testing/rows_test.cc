// Tests that rows come back as they were written, and that damage is reported.
#include <algorithm>
#include <fstream>
#include <map>
#include <string>

#include "table.h"

namespace embstore::log::testing {
namespace {

void rows_of_a_size_come_back(const TableSite& site, const RowLayout& layout) {
  const std::unique_ptr<Table> table = site.open(table_of(layout));
  std::vector<int64_t> keys = {INT64_MIN, INT64_MAX};
  for (int64_t key = -20; key < 20; ++key) keys.push_back(key * key * key);
  for (int64_t version = 0; version < 8; ++version) {
    for (const int64_t& key : keys) {
      table->erase({&key, 1});
      table->write({&key, 1}, version);
    }
    table->check_rows();
    if (version > 5) table->checkpoint();
  }
  table->write(500, 500, 8);
  table->write(900, 300, 9);  // rewrites 100 of them
  table->check_rows();
  table->erase(keys);  // 512, 729 and 1000 among them were rewritten
  table->erase(600, 100);
  table->check_rows();
  check(table->index.size() == 597 && table->rows().stats().row_bytes == layout.row_bytes(),
        "the tier counts other rows");
  table->check_space();
  table->restore(1);
  table->check_rows();
  table->checkpoints->drop(1);
  table->check_space();
}

TEST(rows_of_every_size_come_back) {
  for (const RowLayout& layout :
       {RowLayout(1, 0), RowLayout(3, 1), RowLayout(6, 1), RowLayout(16, 1), RowLayout(64, 2),
        RowLayout(300, 3), RowLayout(1000, 0), RowLayout(20000, 1)}) {
    on_both_media([&](const TableSite& site) {
      UnwaitingCalls calls;
      TableSite of = site;
      of.calls = &calls;
      of.slots = layout.dim() == 20000 ? 1200 : 6000;
      rows_of_a_size_come_back(of, layout);
      if (site.is_pool) return;
      of.remove_all();
      of.options.direct = true;
      rows_of_a_size_come_back(of, layout);
    });
  }
}

TEST(the_weights_alone_can_be_read) {
  on_both_media([](const TableSite& site) {
    const std::unique_ptr<Table> table = site.open();
    table->write(0, 3000, 4);
    RowBatch rows(kLayout);
    RowBatch expected(kLayout);
    expected.resize(1);
    for (const Place& place : table->index.places()) {
      table->rows().read(std::span(&place, 1), rows, RowPart::kWeights);
      fill_row(expected, 0, place.key, 4);
      check(std::equal(rows.row(0), rows.row(0) + kLayout.dim(), expected.row(0)), "other weights were read");
      check(rows.header(0).frequency == expected.header(0).frequency, "another header was read");
    }
  });
}

TEST(the_number_of_reused_places_changes_when_a_place_is_reused) {
  on_both_media([](const TableSite& site) {
    TableSite of = site;
    of.slots = 6000;
    of.options.file_bytes = 16 << 10;
    const std::unique_ptr<Table> table = of.open();
    table->write(0, 1500, 1);
    const uint64_t before = table->rows().reused_places();
    table->write(1500, 1500, 1);
    check(table->rows().reused_places() == before, "fresh places count as reused");
    // The places of a removed file aren't reused until many others have been removed.
    for (int64_t version = 2; version < (site.is_pool ? 4 : 80); ++version) table->write(0, 1500, version);
    check(table->rows().reused_places() != before, "a reused place isn't told of");
  });
}

// An earlier process wrote the rows, so this one checks them when it reads them.
TEST(a_damaged_record_is_reported_with_its_place_and_the_table_goes_on_without_it) {
  on_both_media([](const TableSite& site) {
    const std::unique_ptr<Table> table = site.open();
    table->write(0, 3000, 1);
    table->checkpoint();
    table->reopen();
    table->restore(1);
    const size_t floats = sizeof(RecordHeader);
    const struct {
      int64_t key;
      size_t byte;
      std::string reason;
    } damages[] = {
        {10, 3, "its header's checksum is wrong"},   // the key
        {11, 41, "its header's checksum is wrong"},  // the epoch
        {12, floats + 2, "its weights' checksum is wrong"},
        {13, floats + table->shape.row_bytes - 1, "the checksum of its optimizer's slots is wrong"},
        {2500, floats, "its weights' checksum is wrong"}};
    std::map<int64_t, Table::Record> records;
    for (const auto& [key, byte, reason] : damages) records.emplace(key, table->record_of(key));
    for (const auto& [key, byte, reason] : damages) {
      flip(records.at(key).file, records.at(key).offset + byte);
    }
    const std::vector<Place> places = table->index.places();
    RowBatch rows(kLayout);
    rows.set_places(places);
    table->rows().read_rows(rows, RowPart::kAll);
    std::map<int64_t, std::string> reasons;  // by key
    for (const auto& [position, reason] : rows.damaged()) reasons.emplace(places[position].key, reason);
    check(reasons.size() == std::size(damages), std::to_string(reasons.size()) + " rows are damaged");
    for (const auto& [key, byte, reason] : damages) {
      check(reasons[key] == records.at(key).when_read + " is damaged: " + reason, reasons[key]);
    }
    for (size_t i = 0; i < places.size(); ++i) {
      if (!reasons.contains(places[i].key)) check_row(rows, i, places[i].key, 1);
    }
    table->rows().read_rows(rows, RowPart::kWeights);
    check(rows.damaged().size() == std::size(damages) - 1, "weights are read with other checks than theirs");
    const Place damaged{12, table->index.at(12).slot};
    check_throws(ErrorKind::kDamagedRows, "the row of key 12",
                 [&] { table->rows().read(std::span(&damaged, 1), rows); });
    // The table can be used without these rows, in the next checkpoint too.
    for (const auto& [key, reason] : reasons) table->erase({&key, 1});
    table->check_rows();
    table->checkpoint();
    table->reopen();
    table->restore(2);
    check(table->index.size() == 3000 - std::size(damages), "another number of rows came back");
    table->check_rows();
  });
}

// Like a device that writes a record to another's place.
TEST(a_record_of_another_place_is_no_row) {
  on_both_media([](const TableSite& site) {
    const std::unique_ptr<Table> table = site.open();
    table->write(0, 1500, 1);
    const Table::Record from = table->record_of(9);
    const Table::Record to = table->record_of(8);
    overwrite(to.file, to.offset, bytes_of(from.file).substr(from.offset, table->shape.stride));
    RowBatch rows(kLayout);
    const std::vector<Place> places{{8, table->index.at(8).slot}, {9, table->index.at(9).slot}};
    rows.set_places(places);
    table->rows().read_rows(rows, RowPart::kAll);
    const std::string fault = site.is_pool ? "it's that of another row" : "it's the record of another place";
    check(rows.damaged().size() == 1 && rows.is_damaged(0) &&
              rows.damaged().at(0) == to.when_read + " is damaged: " + fault,
          "a record of another place is taken for the row");
    check_row(rows, 1, 9, 1);
  });
}

}  // namespace
}  // namespace embstore::log::testing
