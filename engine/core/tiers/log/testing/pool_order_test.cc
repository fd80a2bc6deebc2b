// Tests of the calls to a pool's medium, and their order: as few as the protocol allows.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>

#include "tiers/medium/testing/pmem_medium.h"
#include "workload.h"

namespace embstore::log::testing {
namespace {

using medium::testing::Call;
using medium::testing::Noted;
using medium::testing::PmemMedium;

const RecordShape kShape = shape_in_pool(kLayout);

uint64_t count(const std::vector<Noted>& notes, Call call) {
  return static_cast<uint64_t>(
      std::count_if(notes.begin(), notes.end(), [call](const Noted& note) { return note.call == call; }));
}

TEST(a_batch_is_drained_once_and_in_the_end) {
  const TemporaryDirectory directory;
  PmemMedium medium(/*is_pmem=*/true);
  PoolTable pool(directory / "var", kLayout, 6000, medium.calls());
  medium.take_notes();
  pool.write(keys_from(0, 100), 1);
  const auto notes = medium.take_notes();
  check(count(notes, Call::kDrain) == 1 && notes.back().call == Call::kDrain,
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

// Returns the name of a call that makes files durable, or names or removes them; empty for other calls.
std::string noted(const FileCall& call) {
  const auto file = [](const std::filesystem::path& path) { return path.filename().string(); };
  switch (call.kind) {
    case FileCall::kSync: return "sync " + file(call.path_of_descriptor());
    case FileCall::kSyncDirectory: return "sync directory";
    case FileCall::kRemove: return "remove " + file(call.path);
    case FileCall::kName: return "name " + file(call.path);
    default: return "";
  }
}

TEST(a_commit_asks_as_little_as_it_can_of_the_medium) {
  using Notes = std::vector<std::string>;
  const TemporaryDirectory directory;
  const std::string manifest = "var.pool.checkpoint-000000000";
  PmemMedium medium(/*is_pmem=*/true);
  Notes notes;
  WatchedCalls calls;
  calls.before = [&notes](const FileCall& call) {
    if (std::string note = noted(call); !note.empty()) notes.push_back(std::move(note));
    return 0;
  };
  PoolTable pool(directory / "var", kLayout, 20000, medium.calls(), calls);
  check(notes == Notes{"sync directory", "sync var.pool.new", "name var.pool", "sync directory"},
        "a pool is made in another order");
  pool.write(keys_from(0, 1000), 1);
  pool.begin();
  notes.clear();
  medium.take_notes();
  pool.commit(1);
  check(medium.take_notes().empty(), "a commit asks something of persistent memory");
  check(notes == Notes{"sync " + manifest + "1.new", "name " + manifest + "1", "sync directory"},
        "a commit asks for something else");
  notes.clear();
  pool.checkpoints->drop(1);
  check(notes == Notes{"remove " + manifest + "1", "sync directory"}, "a drop asks for something else");
  notes.clear();
  pool.checkpoints->drop(pool.begin());
  check(notes.empty(), "a checkpoint that never was asks something of the medium");
}

TEST(slots_are_free_when_the_drop_is_durable_and_not_before) {
  const TemporaryDirectory directory;
  WatchedCalls calls;
  PoolTable pool(directory / "var", kLayout, 1000, libpmem(), calls);
  pool.write(keys_from(0, 100), 1);
  pool.checkpoint();
  pool.erase(keys_from(0, 100));
  int looks = 0;
  calls.before = [&](const FileCall& call) {
    if (call.kind != FileCall::kRemove && call.kind != FileCall::kSyncDirectory) return 0;
    ++looks;
    pool.check_taken(100);
    return 0;
  };
  pool.checkpoints->drop(1);
  calls.before = nullptr;
  check(looks == 2, "a drop asks for something else");
  pool.check_taken(0);
}

TEST(nothing_of_a_kept_checkpoint_is_ever_written) {
  uint64_t writes = 0;
  for (uint64_t seed = 100; seed < 110; ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const TemporaryDirectory directory;
    PmemMedium medium(/*is_pmem=*/true);
    const TableSite site{.is_pool = true,
                         .root = directory.path(),
                         .slots = PoolTier::kHeadroomSlots + 3000,
                         .libpmem = &medium.calls()};
    const std::unique_ptr<Workload> workload = make_workload(site, seed);
    for (int step = 0; step < 500; ++step) {
      const Accounts before = workload->certain();
      medium.take_notes();
      workload->step();
      for (const Noted& note : medium.take_notes()) {
        if (note.call != Call::kWrite || note.file != site.row_files().front()) continue;
        ++writes;
        const auto slot = static_cast<Slot>((note.offset - kHeaderBytes) / kShape.stride);
        for (const auto& [number, account] : before) {
          check(!workload->certain().contains(number) || !account.slots.contains(slot),
                "slot " + std::to_string(slot) + " of checkpoint " + std::to_string(number) + " is written");
        }
      }
      if (step % 100 == 99) workload->restart();
    }
  }
  tested_case().clear();
  check(writes > 10000, "hardly anything was written");
}

TEST(a_sync_that_fails_leaves_the_checkpoint_pending) {
  const TemporaryDirectory directory;
  PmemMedium medium(/*is_pmem=*/false);
  PoolTable pool(directory / "var", kLayout, 1000, medium.calls());
  pool.write(keys_from(0, 100), 1);
  check(medium.take_notes().size() > 0, "the file that was made wasn't synced");
  pool.write(keys_from(0, 10), 2);
  pool.tier->fence();
  check(medium.take_notes().empty(), "rows ask something of the page cache's medium");
  pool.begin();
  medium.fail_syncs(true);
  check_throws(ErrorKind::kStorage,
               directory / "var.pool: can't be brought to its medium: Input/output error",
               [&] { pool.commit(1); });
  check(pool.checkpoints->has_pending() && pool.checkpoints->kept().empty(),
        "what failed to be durable counts");
  medium.fail_syncs(false);
  pool.commit(1);
  check(!pool.checkpoints->has_pending() && pool.checkpoints->kept().size() == 1, "it can't be tried again");
}

// File calls of which one write, sync or naming fails, after `left` of them.
struct FailsLater {
  FailsLater() {
    calls.before = [this](const FileCall& call) {
      const bool counts = call.kind == FileCall::kWrite || call.kind == FileCall::kSync ||
                          call.kind == FileCall::kSyncDirectory || call.kind == FileCall::kName;
      return counts && left >= 0 && left-- == 0 ? EIO : 0;
    };
  }
  WatchedCalls calls;
  int left = -1;  // calls before the failure; below 0, none fails
};

TEST(a_manifest_that_cant_be_written_leaves_the_checkpoint_pending) {
  int failed = 0;
  for (int call = 0;; ++call) {
    const TemporaryDirectory directory;
    FailsLater failing;
    PoolTable pool(directory / "var", kLayout, 1000, libpmem(), failing.calls);
    pool.write(keys_from(0, 100), 1);
    pool.begin();
    failing.left = call;
    bool fails = false;
    try {
      pool.commit(1);
    } catch (const Error& error) {
      check(std::string(error.what()).starts_with(directory.path()), error.what());
      fails = true;
    }
    failing.left = -1;
    if (!fails) break;
    ++failed;
    check(pool.checkpoints->has_pending(), "what failed isn't pending");
    TableIdentity identity = table_of();
    check(Manifests(directory / "var.pool.checkpoint-", failing.calls).load(identity).empty(),
          "a checkpoint that failed is there");
    pool.commit(1);
    pool.reopen();
    pool.restore(1);
    pool.check_rows();
  }
  check(failed == 4, "other calls were made than a write, a sync, a naming and a sync of the directory");
}

// The manifest was named, and it isn't known whether the name is on the medium: it may be there after a power
// cut.
TEST(a_checkpoint_whose_commit_failed_keeps_its_slots_until_it_is_certainly_gone) {
  const TemporaryDirectory directory;
  FailsLater failing;
  PoolTable pool(directory / "var", kLayout, 1000, libpmem(), failing.calls);
  pool.write(keys_from(0, 100), 1);
  const uint64_t number = pool.begin();
  failing.left = 3;  // a write, a sync, a naming
  check_throws(ErrorKind::kStorage, "can't be brought to its medium", [&] { pool.commit(number); });
  pool.erase(keys_from(0, 100));
  pool.check_taken(100);
  failing.left = 0;  // the sync of the directory
  check_throws(ErrorKind::kStorage, directory.path() + ": can't be brought to its medium",
               [&] { pool.checkpoints->drop(number); });
  pool.check_taken(100);
  check(!pool.checkpoints->has_pending() && pool.checkpoints->kept().size() == 1,
        "what was given up is pending, or what may be there isn't kept");
  failing.left = 0;
  pool.checkpoints->drop_pending();
  pool.check_taken(100);
  failing.left = -1;
  pool.checkpoints->drop(number);
  pool.check_taken(0);
  check(pool.checkpoints->kept().empty(), "it's kept still");

  // When a table ends, no error is reported, and nothing is freed either.
  pool.write(keys_from(0, 100), 2);
  const uint64_t next = pool.begin();
  failing.left = 3;
  check_throws(ErrorKind::kStorage, "can't be brought to its medium", [&] { pool.commit(next); });
  pool.erase(keys_from(0, 100));
  failing.left = 0;
  pool.checkpoints->drop_pending();
  pool.check_taken(100);
  failing.left = -1;
}

}  // namespace
}  // namespace embstore::log::testing
