// What is asked of the medium, and in which order: as little as the protocol allows.
#include <algorithm>
#include <string>

#include "medium.h"
#include "workload.h"

namespace embstore::pool::testing {
namespace {

const RowLayout kLayout(6, 1);
const RecordShape kShape(kLayout);

uint64_t count(const std::vector<Noted>& notes, Call call) {
  return static_cast<uint64_t>(
      std::count_if(notes.begin(), notes.end(), [call](const Noted& note) { return note.call == call; }));
}

void a_batch_is_drained_once_and_in_the_end() {
  const TemporaryDirectory directory;
  Medium medium(/*is_pmem=*/true);
  Pool pool(directory / "var", kLayout, 6000, medium.calls());
  medium.take_notes();
  pool.write(keys_from(0, 100), 1);
  const auto notes = medium.take_notes();
  check(
      count(notes, Call::kDrain) == 1 && notes.back().call == Call::kDrain && count(notes, Call::kFlush) == 0,
      "a batch isn't drained once, in the end");
  size_t last = 0;
  for (const Noted& note : notes) {
    if (note.call != Call::kWrite) continue;
    check(note.file == directory / "var.pool" && note.offset >= last, "rows aren't written in order");
    last = note.offset + note.bytes;
    check((note.offset - kHeaderBytes) / kShape.stride == (last - 1 - kHeaderBytes) / kShape.stride,
          "a write crosses from one record to the next");
  }
  check(pool.tier->try_claim(2), "no claim");
  RowBatch rows(kLayout);
  rows.resize(1);
  fill_row(rows, 0, 500, 1);
  pool.tier->write_claimed(rows.header(0), rows.row(0), true);
  pool.tier->write_claimed(rows.header(0), rows.row(0), true);
  check(count(medium.take_notes(), Call::kDrain) == 0, "a single row is drained");
  pool.tier->fence();
  check(medium.take_notes() == std::vector<Noted>{{Call::kDrain, "", 0, 0}}, "a fence is more than a drain");
}

void a_commit_drains_twice_and_writes_what_differs() {
  const TemporaryDirectory directory;
  const std::string file = directory / "var.checkpoints";
  Medium medium(/*is_pmem=*/true);
  Pool pool(directory / "var", kLayout, 20000, medium.calls());
  const CheckpointsShape shape(pool.tier->slot_count());
  pool.write(keys_from(0, 1000), 1);
  pool.checkpoint(1);
  pool.checkpoint(2);
  pool.tier->drop_checkpoint(1);
  pool.write(keys_from(5000, 10), 1);
  pool.tier->begin_checkpoint(3);  // in the entry that checkpoint 1 had
  medium.take_notes();
  pool.tier->commit_checkpoint(3, id_of(3));
  const auto notes = medium.take_notes();
  const std::vector<Noted> expected = {
      {Call::kWrite, file, shape.region_offset(0), kMediaLineBytes},  // of slots 0 to 2047
      {Call::kWrite, file, CheckpointsShape::entry_offset(0), sizeof(pool::Entry)},
      {Call::kDrain, "", 0, 0},
      {Call::kFlush, file, CheckpointsShape::entry_offset(0), 8},
      {Call::kDrain, "", 0, 0},
  };
  check(notes == expected, "a commit asks for something else");
  pool.tier->drop_checkpoint(2);
  const std::vector<Noted> of_drop = {{Call::kFlush, file, CheckpointsShape::entry_offset(1), 8},
                                      {Call::kDrain, "", 0, 0}};
  check(medium.take_notes() == of_drop, "a drop asks for something else");
  pool.tier->begin_checkpoint(4);
  pool.tier->drop_checkpoint(4);
  check(medium.take_notes().empty(), "a checkpoint that never was asks something of the medium");
}

void slots_are_free_when_the_drop_is_durable_and_not_before() {
  const TemporaryDirectory directory;
  Medium medium(/*is_pmem=*/true);
  Pool pool(directory / "var", kLayout, 1000, medium.calls());
  pool.write(keys_from(0, 100), 1);
  pool.checkpoint(1);
  pool.erase(keys_from(0, 100));
  uint64_t calls = 0;
  medium.before_each_call([&] {
    ++calls;
    pool.expect_taken(100);
  });
  pool.tier->drop_checkpoint(1);
  medium.before_each_call(nullptr);
  check(calls == 2, "a drop asks for something else");
  pool.expect_taken(0);
}

void nothing_of_a_kept_checkpoint_is_ever_written() {
  const size_t stride = RecordShape(Workload::layout()).stride;
  uint64_t writes = 0;
  for (uint64_t seed = 100; seed < 110; ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const TemporaryDirectory directory;
    Medium medium(/*is_pmem=*/true);
    Workload workload(directory / "var", seed, medium.calls());
    for (int step = 0; step < 500; ++step) {
      const auto before = workload.kept();
      medium.take_notes();
      workload.step();
      for (const Noted& note : medium.take_notes()) {
        if (note.call != Call::kWrite || note.file != directory / "var.pool") continue;
        ++writes;
        const auto slot = static_cast<Slot>((note.offset - kHeaderBytes) / stride);
        for (const auto& [number, checkpoint] : before) {
          check(!workload.kept().contains(number) || !checkpoint.slots.contains(slot),
                "slot " + std::to_string(slot) + " of checkpoint " + std::to_string(number) + " is written");
        }
      }
      if (step % 100 == 99) workload.restart();
    }
  }
  tested_case().clear();
  check(writes > 10000, "hardly anything was written");
}

void a_sync_that_fails_leaves_the_checkpoint_pending() {
  const TemporaryDirectory directory;
  Medium medium(/*is_pmem=*/false);
  Pool pool(directory / "var", kLayout, 1000, medium.calls());
  pool.write(keys_from(0, 100), 1);
  check(medium.take_notes().size() > 0, "the files that were made weren't synced");
  pool.write(keys_from(0, 10), 2);
  pool.tier->fence();
  check(medium.take_notes().empty(), "rows ask something of the page cache's medium");
  pool.tier->begin_checkpoint(1);
  medium.fail_syncs(true);
  check_throws(ErrorKind::kStorage,
               directory / "var.pool: can't be brought to its medium: Input/output error",
               [&] { pool.tier->commit_checkpoint(1, id_of(1)); });
  check(pool.tier->has_pending() && pool.tier->checkpoints().empty(), "what failed to be durable counts");
  medium.fail_syncs(false);
  pool.tier->commit_checkpoint(1, id_of(1));
  check(!pool.tier->has_pending() && pool.tier->checkpoints().size() == 1, "it can't be tried again");
  medium.fail_syncs(true);
  check_throws(ErrorKind::kStorage, directory / "var.checkpoints: can't be brought to its medium",
               [&] { pool.tier->drop_checkpoint(1); });
  pool.erase(keys_from(0, 100));
  pool.expect_taken(100);
  medium.fail_syncs(false);
  pool.tier->drop_checkpoint(1);
  pool.expect_taken(0);
}

constexpr Test kTests[] = {
    {"a_batch_is_drained_once_and_in_the_end", a_batch_is_drained_once_and_in_the_end},
    {"a_commit_drains_twice_and_writes_what_differs", a_commit_drains_twice_and_writes_what_differs},
    {"slots_are_free_when_the_drop_is_durable_and_not_before",
     slots_are_free_when_the_drop_is_durable_and_not_before},
    {"nothing_of_a_kept_checkpoint_is_ever_written", nothing_of_a_kept_checkpoint_is_ever_written},
    {"a_sync_that_fails_leaves_the_checkpoint_pending", a_sync_that_fails_leaves_the_checkpoint_pending},
};

}  // namespace

std::span<const Test> order_tests() { return kTests; }

}  // namespace embstore::pool::testing
