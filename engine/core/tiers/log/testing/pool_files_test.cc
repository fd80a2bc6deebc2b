// The files: grown, refused, and whole again whatever interrupted their making.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "files/file_calls.h"
#include "pool_table.h"

namespace embstore::log::testing {
namespace {

namespace fs = std::filesystem;

const RowLayout kLayout(6, 1);

// A pool of 300 rows, with one checkpoint.
void make_pool(const std::string& path) {
  Pool pool(path, kLayout, 1000);
  pool.write(keys_from(0, 300), 1);
  pool.checkpoint();
}

std::string manifest_of(const std::string& path, int number) {
  return path + ".pool.checkpoint-000000000" + std::to_string(number);
}

void remove_pool(const std::string& path) {
  for (const auto& entry : fs::directory_iterator(fs::path(path).parent_path())) {
    if (entry.path().filename().string().starts_with(fs::path(path).filename().string() + ".pool")) {
      fs::remove(entry);
    }
  }
}

void expect_pool(const std::string& path, uint64_t slots) {
  Pool pool(path, kLayout, slots);
  check(pool.tier->slot_count() >= slots, "the pool is smaller than it was asked to be");
  pool.restore(1);
  check(pool.index.size() == 300, "rows are lost");
  pool.check_all();
}

TEST(a_pool_grows_and_keeps_what_it_has) {
  const TemporaryDirectory directory;
  make_pool(directory / "var");
  {
    Pool pool(directory / "var", kLayout, 100000);
    check(pool.tier->slot_count() >= 100000 && pool.checkpoints->awaits_restore(), "it didn't grow");
    pool.expect_taken(300);
    pool.restore(1);
    pool.check_all();
    pool.write(keys_from(1000, 90000), 2);
    pool.checkpoint();
    pool.checkpoints->drop(1);
  }
  {
    Pool pool(directory / "var", kLayout, 100100);
    pool.restore(2);
    check(pool.index.size() == 90300, "rows are lost");
    pool.check_all();
  }
  check_throws(ErrorKind::kInvalidArgument, directory / "var.pool was made with",
               [&] { Pool(directory / "var", kLayout, 99000); });
  remove_pool(directory / "var");
  Pool pool(directory / "var", kLayout, 5000);
  pool.write(keys_from(0, 10), 1);
  // What no checkpoint needs is made anew, shorter or not.
  pool.tier.reset();
  pool.checkpoints.reset();
  check(Pool(directory / "var", kLayout, 1000).tier->slot_count() < 5000, "an old pool without rows stays");
}

TEST(a_file_is_as_long_as_was_asked_for) {
  for (const RowLayout& layout : {RowLayout(1, 0), RowLayout(16, 1), RowLayout(100, 2)}) {
    for (const uint64_t bytes : {uint64_t{200'000}, uint64_t{3'000'000}, uint64_t{3'004'096}}) {
      const TemporaryDirectory directory;
      const uint64_t slots = PoolTier::slots_for(layout, bytes);
      PoolTier tier(directory / "var.pool", identity(layout), bytes, /*is_needed=*/false);
      check(tier.slot_count() == slots && tier.free_slots() == slots, "another number of slots was promised");
      check(fs::file_size(directory / "var.pool") <= bytes, "the file is longer than was asked for");
      check(size_for(layout, slots + 1) > bytes, "there would be room for another slot");
    }
  }
  const TemporaryDirectory directory;
  check_throws(ErrorKind::kInvalidArgument, "storage_size: 4096 bytes are too few",
               [&] { PoolTier(directory / "var.pool", identity(kLayout), 4096, false); });
}

TEST(checkpoints_of_another_table_are_refused) {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  make_pool(path);
  const auto refused = [&](const RowLayout& layout, const std::string& name, const std::string& optimizer,
                           const std::string& why) {
    check_throws(ErrorKind::kInvalidArgument, manifest_of(path, 1) + ": " + why,
                 [&] { Checkpoints(path + ".pool", TableIdentity{name, optimizer, layout, {}}); });
  };
  refused(kLayout, "other", "Adagrad", "is of the variable \"var\", not of \"other\"");
  refused(kLayout, "var", "Ftrl", "is of rows of the optimizer Adagrad, and the variable has Ftrl");
  refused(RowLayout(7, 1), "var", "Adagrad",
          "is of rows of dim 6 with 1 optimizer slots; the variable has dim 7");
  refused(RowLayout(6, 2), "var", "Adagrad",
          "is of rows of dim 6 with 1 optimizer slots; the variable has dim 6");
  expect_pool(path, 1000);
  check_throws(ErrorKind::kInvalidArgument, "too long for files that are kept", [&] {
    PoolTier(directory / "long.pool", {std::string(2000, 'x'), "SGD", kLayout, {}}, 1 << 20, false);
  });
  check(!fs::exists(directory / "long.pool"), "a pool that can't be made left its file");
}

TEST(files_that_are_damaged_or_not_ours_are_refused_by_name) {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  const auto refused = [&](const std::string& file, const std::string& why, const auto& damage) {
    remove_pool(path);
    make_pool(path);
    damage();
    for (const uint64_t slots : {1000, 5000}) {
      tested_case() = file + ": " + why;
      check_throws(ErrorKind::kStorage, file + ": " + why, [&] { Pool(path, kLayout, slots); });
    }
    check(fs::exists(manifest_of(path, 1)), "the files were removed");
  };
  const std::string rows = path + ".pool";
  const std::string manifest = manifest_of(path, 1);
  for (const std::string& file : {rows, manifest}) {
    refused(file, "isn't a file of this engine's rows", [&] { overwrite(file, 0, "PK"); });
    refused(file, "has format version 2; this engine reads version 1", [&] { overwrite(file, 8, "\2"); });
    for (const uint64_t offset : {12, 17, 30, 36, 80, 1300}) {
      refused(file, "is damaged: its header isn't what was written", [&] { flip(file, offset); });
    }
    for (const uint64_t bytes : {0, 40, 1300}) {
      refused(file, "is damaged: its header isn't what was written", [&] { fs::resize_file(file, bytes); });
    }
    for (const char* earlier : {"ESPMROWS", "ESPMCKPT"}) {
      refused(file, "is of an earlier version of the engine; with that version es.save()",
              [&] { overwrite(file, 0, earlier); });
    }
  }
  remove_pool(path);
  make_pool(path);
  const uint64_t end = fs::file_size(manifest);
  for (const uint64_t offset : {uint64_t{4096}, uint64_t{4200}, end - 5}) {
    refused(manifest, "is damaged: its checksum is wrong", [&] { flip(manifest, offset); });
  }
  refused(manifest, "is truncated or damaged: it has " + std::to_string(end - 1) + " bytes",
          [&] { fs::resize_file(manifest, end - 1); });
  refused(rows, "is truncated: it has 8192 bytes of ",
          [&] { fs::resize_file(rows, 2 * medium::kBlockBytes); });
  refused(rows, "is missing, and a checkpoint needs it", [&] { fs::remove(rows); });
  refused(rows, "is another file than the one that the checkpoints beside it are of", [&] {
    make_pool(directory / "other");
    fs::rename(directory / "other.pool", rows);
    remove_pool(directory / "other");
  });
  refused(manifest_of(path, 2), "is of another table than the checkpoints beside it", [&] {
    Pool other(directory / "other", kLayout, 1000);
    other.checkpoint();
    other.checkpoint();
    fs::copy(manifest_of(directory / "other", 2), manifest_of(path, 2));
    other.tier.reset();
    remove_pool(directory / "other");
  });
  tested_case().clear();
}

TEST(a_file_that_is_no_pools_stays) {
  const TemporaryDirectory directory;
  for (const std::string& content :
       {std::string(10000, 'x'), std::string("ESPMROWS") + std::string(9000, '\0')}) {
    std::ofstream(directory / "var.pool", std::ios::trunc) << content;
    check_throws(ErrorKind::kStorage, directory / "var.pool: is",
                 [&] { Pool(directory / "var", kLayout, 1000); });
    check(bytes_of(directory / "var.pool") == content, "it was changed");
  }
  fs::remove(directory / "var.pool");
  std::ofstream(directory / "var.checkpoints") << "ESPMCKPT";  // of an earlier version, beside its rows
  check_throws(ErrorKind::kStorage, directory / "var.checkpoints: is of an earlier version",
               [&] { Pool(directory / "var", kLayout, 1000); });
}

TEST(two_pools_share_a_directory) {
  const TemporaryDirectory directory;
  Pool one(directory / "one", kLayout, 1000);
  Pool two(directory / "two", kLayout, 1000);
  one.write(keys_from(0, 500), 1);
  two.write(keys_from(300, 500), 2);
  one.checkpoint();
  two.checkpoint();
  const Index first = one.index;
  const Index second = two.index;
  one.reopen();
  two.reopen();
  two.restore(1);
  one.restore(1);
  check(one.index == first && two.index == second, "pools got each other's rows");
  one.check_all();
  two.check_all();
}

// Ends the process at the call of so many.
class DyingCalls final : public files::FileCalls {
 public:
  explicit DyingCalls(int calls) : left_(calls) {}

  int open(const char* path, int flags, mode_t mode) override {
    return count(), FileCalls::open(path, flags, mode);
  }
  int fdatasync(int descriptor) override { return count(), FileCalls::fdatasync(descriptor); }
  int fsync(int descriptor) override { return count(), FileCalls::fsync(descriptor); }
  int unlink(const char* path) override { return count(), FileCalls::unlink(path); }
  int rename(const char* from, const char* to) override { return count(), FileCalls::rename(from, to); }

 private:
  void count() {
    if (left_-- == 0) _exit(3);
  }
  int left_;
};

// Opens the pool in a process that ends at one call after the other; calls check() after each. Returns how many
// calls there are.
template <class Check>
int interrupted(const std::string& path, uint64_t slots, const std::function<void()>& prepare,
                const Check& check_left) {
  for (int calls = 0;; ++calls) {
    prepare();
    const pid_t child = fork();
    check(child >= 0, "no process can be started");
    if (child == 0) {
      DyingCalls dying(calls);
      Pool pool(path, kLayout, slots, libpmem(), dying);
      if (!pool.checkpoints->awaits_restore()) pool.write(keys_from(0, 300), 1);
      if (!pool.checkpoints->awaits_restore()) pool.checkpoint();
      _exit(0);
    }
    int status = 0;
    check(waitpid(child, &status, 0) == child && WIFEXITED(status), "the process died in another way");
    tested_case() = "interrupted at call " + std::to_string(calls);
    check_left();
    tested_case().clear();
    if (WEXITSTATUS(status) == 0) return calls;
  }
}

TEST(a_making_that_was_interrupted_leaves_a_checkpoint_or_none) {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  uint64_t with = 0;
  const int calls = interrupted(
      path, 1000, [&] { remove_pool(path); },
      [&] {
        Pool pool(path, kLayout, 1000);
        for (const auto& entry : fs::directory_iterator(directory.path())) {
          check(!entry.path().string().ends_with(".new"), "leftovers stayed");
        }
        if (pool.checkpoints->awaits_restore()) {
          ++with;
          pool.restore(1);
          check(pool.index.size() == 300, "rows are lost");
          return pool.check_all();
        }
        pool.write(keys_from(0, 300), 1);
        pool.checkpoint();
        pool.tier.reset();
        pool.checkpoints.reset();
        expect_pool(path, 1000);
      });
  check(calls >= 8 && with >= 1, "hardly any call was interrupted");
}

TEST(a_growth_that_was_interrupted_leaves_the_pool) {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  const int calls = interrupted(
      path, 40000,
      [&] {
        remove_pool(path);
        make_pool(path);
      },
      [&] { expect_pool(path, 40000); });
  check(calls >= 4, "hardly any call was interrupted");
}

}  // namespace

}  // namespace embstore::log::testing
