// Tests of a pool's file: its length, its growth, and pools beside it.
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "table.h"

namespace embstore::log::testing {
namespace {

namespace fs = std::filesystem;

TEST(a_pool_grows_and_keeps_what_it_has) {
  const TemporaryDirectory directory;
  {
    PoolTable pool(directory / "var", kLayout, 1000);
    pool.write(keys_from(0, 300), 1);
    pool.checkpoint();
  }
  {
    PoolTable pool(directory / "var", kLayout, 100000);
    check(pool.tier->slot_count() >= 100000 && pool.checkpoints->awaits_restore(), "it didn't grow");
    pool.check_taken(300);
    pool.restore(1);
    pool.check_rows();
    pool.write(keys_from(1000, 90000), 2);
    pool.checkpoint();
    pool.checkpoints->drop(1);
  }
  {
    PoolTable pool(directory / "var", kLayout, 100100);
    pool.restore(2);
    check(pool.index.size() == 90300, "rows are lost");
    pool.check_rows();
  }
  check_throws(ErrorKind::kInvalidArgument, directory / "var.pool was made with",
               [&] { PoolTable(directory / "var", kLayout, 99000); });
  // A pool that no checkpoint needs is created anew, shorter or not.
  PoolTable(directory / "var", kLayout, 100100).checkpoints->drop_all();
  check(PoolTable(directory / "var", kLayout, 1000).tier->slot_count() < 5000,
        "an old pool without rows stays");
}

// Creates a pool with a checkpoint, and closes it.
void make_pool(const TemporaryDirectory& directory) {
  PoolTable pool(directory / "var", kLayout, 1000);
  pool.write(keys_from(0, 300), 1);
  pool.checkpoint();
}

TEST(a_growth_that_finds_no_room_leaves_the_pool_as_it_was) {
  const TemporaryDirectory directory;
  make_pool(directory);
  LibPmem on_full_disk = libpmem();
  // Like libpmem, which extends the file before it allocates space.
  on_full_disk.map_file = [](const char* path, size_t length, int flags, mode_t mode, size_t* mapped,
                             int* is_pmem) -> void* {
    if (length == 0) return libpmem().map_file(path, length, flags, mode, mapped, is_pmem);
    fs::resize_file(path, length);
    errno = ENOSPC;
    return nullptr;
  };
  for (int again = 0; again < 2; ++again) {
    check_throws(ErrorKind::kStoreFull, directory / "var.pool takes ",
                 [&] { PoolTable(directory / "var", kLayout, 100000, on_full_disk); });
  }
  PoolTable pool(directory / "var", kLayout, 1000);
  pool.restore(1);
  check(pool.index.size() == 300, "rows are lost");
  pool.check_rows();
}

TEST(a_pool_whose_growth_ended_early_gets_the_room_that_it_lacks) {
  const TemporaryDirectory directory;
  make_pool(directory);
  fs::resize_file(directory / "var.pool", size_for(kLayout, 100000));
  PoolTable pool(directory / "var", kLayout, 100000);
  struct stat file{};
  check(stat((directory / "var.pool").c_str(), &file) == 0, "the file can't be looked at");
  check(static_cast<uint64_t>(file.st_blocks) * 512 >= static_cast<uint64_t>(file.st_size),
        "a store to the end of the pool may find no room");
  pool.restore(1);
  pool.check_rows();
}

TEST(a_file_is_as_long_as_was_asked_for) {
  for (const RowLayout& layout : {RowLayout(1, 0), RowLayout(16, 1), RowLayout(100, 2)}) {
    for (const uint64_t bytes : {uint64_t{200'000}, uint64_t{3'000'000}, uint64_t{3'004'096}}) {
      const TemporaryDirectory directory;
      const uint64_t slots = PoolTier::slots_for(layout, bytes);
      PoolTier tier(directory / "var.pool", table_of(layout), bytes, /*is_needed=*/false);
      check(tier.slot_count() == slots && tier.free_slots() == slots, "another number of slots was promised");
      check(fs::file_size(directory / "var.pool") <= bytes, "the file is longer than was asked for");
      check(size_for(layout, slots + 1) > bytes, "there would be room for another slot");
    }
  }
  const TemporaryDirectory directory;
  check_throws(ErrorKind::kInvalidArgument, "storage_size: 4096 bytes are too few",
               [&] { PoolTier(directory / "var.pool", table_of(kLayout), 4096, false); });
}

TEST(two_pools_share_a_directory) {
  const TemporaryDirectory directory;
  PoolTable one(directory / "one", kLayout, 1000);
  PoolTable two(directory / "two", kLayout, 1000);
  one.write(keys_from(0, 500), 1);
  two.write(keys_from(300, 500), 2);
  one.checkpoint();
  two.checkpoint();
  const auto first = one.index.all();
  const auto second = two.index.all();
  one.reopen();
  two.reopen();
  two.restore(1);
  one.restore(1);
  check(one.index.all() == first && two.index.all() == second, "pools got each other's rows");
  one.check_rows();
  two.check_rows();
}

TEST(a_file_that_is_no_pools_stays) {
  const TemporaryDirectory directory;
  for (const std::string& content :
       {std::string(10000, 'x'), std::string("ESPMROWS") + std::string(9000, '\0')}) {
    put_file(directory / "var.pool", content);
    check_throws(ErrorKind::kStorage, directory / "var.pool: is",
                 [&] { PoolTable(directory / "var", kLayout, 1000); });
    check(bytes_of(directory / "var.pool") == content, "it was changed");
  }
  fs::remove(directory / "var.pool");
  put_file(directory / "var.checkpoints", "ESPMCKPT");  // an earlier version's, beside its rows
  check_throws(ErrorKind::kStorage, directory / "var.checkpoints: is of an earlier version",
               [&] { PoolTable(directory / "var", kLayout, 1000); });
}

TEST(a_name_that_is_too_long_for_a_header_is_refused) {
  const TemporaryDirectory directory;
  check_throws(ErrorKind::kInvalidArgument, "too long for files that are kept", [&] {
    PoolTier(directory / "long.pool", {std::string(2000, 'x'), "SGD", kLayout, {}}, 1 << 20, false);
  });
  check(!fs::exists(directory / "long.pool"), "a pool that can't be made left its file");
}

}  // namespace
}  // namespace embstore::log::testing
