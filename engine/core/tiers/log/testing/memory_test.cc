// Tests of memory that runs out: each allocation of a call fails in turn, and the call is repeated.
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "table.h"
#include "testing/failing_memory.h"

namespace embstore::log::testing {
namespace {

// Rows to write while memory runs out, which the index doesn't have yet.
struct Batch {
  Batch(int64_t first, int64_t count, int64_t version_of_all)
      : keys(keys_from(first, count)), version(version_of_all), rows(kLayout), slots(keys.size()) {
    rows.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) fill_row(rows, i, keys[i], version);
  }
  void write(Table& table) { table.rows().write(rows, slots); }
  void refer(Table& table) const {
    for (size_t i = 0; i < keys.size(); ++i) table.index.put(keys[i], slots[i], version);
  }

  std::vector<int64_t> keys;
  int64_t version;
  RowBatch rows;
  std::vector<Slot> slots;
};

TEST(rows_are_written_whichever_allocation_fails) {
  on_both_media([](const TableSite& site) {
    bool has_failed = true;
    for (int64_t number = 0; has_failed; ++number) {
      site.remove_all();
      const std::unique_ptr<Table> table = site.open();
      Batch batch(0, 700, 1);  // more than one file holds, so that files and buffers are begun
      try {
        const FailingMemory memory(number);
        batch.write(*table);
        has_failed = memory.has_failed();
      } catch (const std::bad_alloc&) {
        check(table->rows().stats().rows == 0, "a write that failed took places");
        table->check_rows();
        batch.write(*table);
      }
      batch.refer(*table);
      table->check_rows();
      table->write(0, 900, 2);
      table->check_rows();
      table->check_space();
    }
  });
}

TEST(checkpoints_are_made_and_dropped_whichever_allocation_fails) {
  on_both_media([](const TableSite& site) {
    const std::unique_ptr<Table> table = site.open();
    const auto retry = [&](const auto& step) {
      with_each_allocation_failing(step, [&] { table->check_rows(); });
    };
    table->write(0, 5000, 1);
    Versions versions = table->versions();
    for (uint64_t number = 1; number < 4; ++number) {
      uint64_t begun = 0;
      retry([&] { begun = table->checkpoints->begin({.clock = number}); });
      check(begun == number, "a checkpoint that didn't begin has a number");
      table->write(0, 3000, static_cast<int64_t>(number) + 1);
      retry([&] { table->commit(number); });
      if (number > 1) retry([&] { table->checkpoints->drop(number - 1); });
      check(table->kept() == std::vector{number}, "another checkpoint is kept");
      table->check_rows();
      if (number < 3) versions = table->versions();
    }
    table->erase_all();
    std::vector<int64_t> keys;
    retry([&] {
      keys.clear();
      const auto visit = [&](size_t, std::span<const RowHeader> headers, std::span<const Slot> slots) {
        for (size_t i = 0; i < slots.size(); ++i) keys.push_back(headers[i].key);
      };
      table->checkpoints->restore(3, 1, visit);
    });
    check(table->rows().stats().rows == 5000 && keys.size() == 5000, "another number of rows came back");
    table->index.clear();
    table->reopen();
    table->checkpoints->drop_all();
  });
}

}  // namespace
}  // namespace embstore::log::testing
