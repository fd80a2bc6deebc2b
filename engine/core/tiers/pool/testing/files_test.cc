// The files: grown, refused, and whole again whatever interrupted their making.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "files/file_calls.h"
#include "testing.h"

namespace embstore::pool::testing {
namespace {

namespace fs = std::filesystem;

const RowLayout kLayout(6, 1);

void overwrite(const std::string& file, uint64_t offset, const std::string& bytes) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream << bytes;
  check(stream.good(), file + " can't be changed");
}

// A pool of 300 rows, with one checkpoint.
void make_pool(const std::string& path) {
  Pool pool(path, kLayout, 1000);
  pool.write(keys_from(0, 300), 1);
  pool.checkpoint(1);
}

void expect_pool(const std::string& path, uint64_t slots) {
  Pool pool(path, kLayout, slots);
  check(pool.tier->slot_count() >= slots, "the pool is smaller than it was asked to be");
  pool.restore(1);
  check(pool.index.size() == 300, "rows are lost");
  pool.check_all();
}

void a_pool_grows_and_keeps_what_it_has() {
  const TemporaryDirectory directory;
  make_pool(directory / "var");
  {
    Pool pool(directory / "var", kLayout, 100000);
    check(pool.tier->slot_count() >= 100000 && pool.tier->awaits_restore(), "it didn't grow");
    check(pool.tier->checkpoints().size() == 1 && pool.tier->checkpoints()[0].id == id_of(1),
          "its checkpoint is another");
    pool.expect_taken(300);
    pool.restore(1);
    pool.check_all();
    pool.write(keys_from(1000, 90000), 2);
    pool.checkpoint(2);
    pool.tier->drop_checkpoint(1);
  }
  {
    Pool pool(directory / "var", kLayout, 100100);
    check(pool.tier->newest_number() == 2, "it forgot its numbers");
    pool.restore(2);
    check(pool.index.size() == 90300, "rows are lost");
    pool.check_all();
  }
  check_throws(ErrorKind::kInvalidArgument,
               "storage_size: ", [&] { Pool(directory / "var", kLayout, 99000); });
  check_throws(ErrorKind::kInvalidArgument, directory / "var.pool was made with",
               [&] { Pool(directory / "var", kLayout, 99000); });
}

void the_size_that_is_asked_for_is_that_of_both_files() {
  for (const RowLayout& layout : {RowLayout(1, 0), RowLayout(16, 1), RowLayout(100, 2)}) {
    for (const uint64_t bytes : {uint64_t{200'000}, uint64_t{3'000'000}, uint64_t{3'004'096}}) {
      const TemporaryDirectory directory;
      const uint64_t slots = PoolTier::slots_for(layout, bytes);
      PoolTier tier(directory / "var", layout, identity(), bytes);
      check(tier.slot_count() == slots && tier.free_slots() == slots, "another number of slots was promised");
      const uint64_t taken =
          fs::file_size(directory / "var.pool") + fs::file_size(directory / "var.checkpoints");
      check(taken <= bytes, "the files are larger than was asked for");
      check(size_for(layout, slots + 1) > bytes, "there would be room for another slot");
    }
  }
  check(PoolTier::slots_for(kLayout, 50'000) == 0, "there's room in nothing");
  const TemporaryDirectory directory;
  check_throws(ErrorKind::kInvalidArgument, "storage_size: 50000 bytes are too few",
               [&] { PoolTier(directory / "var", kLayout, identity(), 50'000); });
}

void a_pool_of_another_table_is_refused() {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  const std::string file = path + ".checkpoints";
  make_pool(path);
  const uint64_t bytes = size_for(RowLayout(100, 2), 1000);
  const auto refused = [&](const RowLayout& layout, const PoolIdentity& of, const std::string& why) {
    check_throws(ErrorKind::kInvalidArgument, file + ": " + why, [&] { PoolTier(path, layout, of, bytes); });
  };
  refused(kLayout, {.table_name = "other", .optimizer = "Adagrad"},
          "is of the variable \"var\", not of \"other\"");
  refused(kLayout, {.table_name = "var", .optimizer = "Ftrl"},
          "is of rows of the optimizer Adagrad, and the variable has Ftrl");
  refused(RowLayout(7, 1), identity(), "is of rows of dim 6 with 1 optimizer slots; the variable has dim 7");
  refused(RowLayout(6, 2), identity(), "is of rows of dim 6 with 1 optimizer slots; the variable has dim 6");
  expect_pool(path, 1000);
  check_throws(ErrorKind::kInvalidArgument, "too long for a pool", [&] {
    PoolTier(directory / "long", kLayout, {.table_name = std::string(2000, 'x'), .optimizer = "SGD"}, bytes);
  });
  check(!fs::exists(directory / "long.pool.new"), "a pool that can't be made left its file");
}

void files_that_are_damaged_or_not_ours_are_refused_by_name() {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  const auto refused = [&](const std::string& file, const std::string& why, const auto& damage) {
    for (const char* ending : {".pool", ".checkpoints"}) fs::remove(path + ending);
    make_pool(path);
    damage();
    check_throws(ErrorKind::kStorage, file + ": " + why, [&] { Pool(path, kLayout, 1000); });
    check_throws(ErrorKind::kStorage, file + ": " + why, [&] { Pool(path, kLayout, 5000); });
    check(fs::exists(path + ".checkpoints"), "the files were removed");
  };
  const std::string rows = path + ".pool";
  const std::string checkpoints = path + ".checkpoints";
  for (const std::string& file : {rows, checkpoints}) {
    refused(file, "isn't a file of a pool's", [&] { overwrite(file, 0, "PK"); });
    refused(file, "has format version 2; this engine reads version 1", [&] { overwrite(file, 8, "\2"); });
    for (const uint64_t offset : {12, 17, 30, 36}) {
      refused(file, "is damaged: its header's checksum is wrong", [&] { flip(file, offset); });
    }
    for (const uint64_t bytes : {0, 40, 4095}) {
      refused(file, "is truncated: shorter than its header", [&] { fs::resize_file(file, bytes); });
    }
    for (const char* ending : {".pool", ".checkpoints"}) fs::remove(path + ending);
    make_pool(path);
    const uint64_t half = fs::file_size(file) / 2 / kPageBytes * kPageBytes;
    refused(file, "is truncated: it has " + std::to_string(half) + " bytes",
            [&] { fs::resize_file(file, half); });
    refused(file, "is truncated: it has ", [&] { fs::resize_file(file, kPageBytes); });
  }
  refused(checkpoints, "is damaged: its header's checksum is wrong", [&] { flip(checkpoints, 1300); });
  const CheckpointsShape shape(PoolTier::slots_for(kLayout, size_for(kLayout, 1000)));
  for (const size_t offset : {0, 8, 17, 33, 41, 44}) {
    refused(checkpoints, "is damaged: the entry of checkpoint ",
            [&] { flip(checkpoints, CheckpointsShape::entry_offset(0) + offset); });
  }
  for (const size_t offset : {size_t{0}, size_t{31}, shape.bitmap_bytes - 1}) {
    refused(checkpoints, "is damaged: the bitmap of checkpoint 1 (entry 0)",
            [&] { flip(checkpoints, shape.region_offset(0) + offset); });
  }
  refused(rows, "is missing, and " + checkpoints + " speaks of its rows", [&] { fs::remove(rows); });
  refused(rows, "isn't the pool that the checkpoints beside it are of", [&] {
    make_pool(directory / "other");
    fs::rename(directory / "other.pool", rows);
    fs::remove(directory / "other.checkpoints");
  });
}

void a_file_that_is_no_pools_stays() {
  const TemporaryDirectory directory;
  std::ofstream(directory / "var.pool") << std::string(10000, 'x');
  check_throws(ErrorKind::kStorage, directory / "var.pool: isn't a file of a pool's rows",
               [&] { Pool(directory / "var", kLayout, 1000); });
  check(bytes_of(directory / "var.pool") == std::string(10000, 'x'), "it was changed");
  check_throws(ErrorKind::kStorage, directory / "none/var.pool.lock",
               [&] { Pool(directory / "none/var", kLayout, 1000); });
}

void two_pools_share_a_directory() {
  const TemporaryDirectory directory;
  Pool one(directory / "one", kLayout, 1000);
  Pool two(directory / "two", kLayout, 1000);
  one.write(keys_from(0, 500), 1);
  two.write(keys_from(300, 500), 2);
  one.checkpoint(1);
  two.checkpoint(1);
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

// Notes what is asked of the system to make files last, and their names.
class NotedCalls final : public files::FileCalls {
 public:
  std::vector<std::string> notes;

  int open(const char* path, int flags, mode_t mode) override {
    const int descriptor = FileCalls::open(path, flags, mode);
    names_[descriptor] = fs::path(path).filename();
    return descriptor;
  }
  int fdatasync(int descriptor) override {
    notes.push_back("sync " + names_[descriptor]);
    return FileCalls::fdatasync(descriptor);
  }
  int fsync(int descriptor) override {
    notes.push_back("sync directory");
    return FileCalls::fsync(descriptor);
  }
  int rename(const char* from, const char* to) override {
    notes.push_back("name " + fs::path(to).filename().string());
    return FileCalls::rename(from, to);
  }

 private:
  std::map<int, std::string> names_;
};

void files_are_on_the_medium_before_they_get_their_names() {
  const TemporaryDirectory directory;
  const auto notes_of_opening = [&](uint64_t slots) {
    NotedCalls calls;
    PoolTier(directory / "var", kLayout, identity(), size_for(kLayout, slots), libpmem(), calls);
    return calls.notes;
  };
  const std::vector<std::string> making = {"sync var.pool.new", "sync var.checkpoints.new", "name var.pool",
                                           "sync directory",    "name var.checkpoints",     "sync directory"};
  check(notes_of_opening(1000) == making, "a pool isn't made in the right order");
  check(notes_of_opening(1000).empty(), "opening a pool that is there names files");
  const std::vector<std::string> growing = {"sync var.pool", "sync var.checkpoints.new",
                                            "name var.checkpoints", "sync directory"};
  check(notes_of_opening(2000) == growing, "a pool doesn't grow in the right order");
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
      PoolTier tier(path, kLayout, identity(), size_for(kLayout, slots), libpmem(), dying);
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

void a_making_that_was_interrupted_leaves_nothing_that_matters() {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  const auto remove_all = [&] {
    for (const auto& entry : fs::directory_iterator(directory.path())) fs::remove(entry);
  };
  const int calls = interrupted(path, 1000, remove_all, [&] {
    Pool pool(path, kLayout, 1000);
    check(!pool.tier->awaits_restore(), "there are rows in a new pool");
    pool.write(keys_from(0, 300), 1);
    pool.checkpoint(1);
    pool.tier.reset();
    expect_pool(path, 1000);
    check(!fs::exists(path + ".pool.new") && !fs::exists(path + ".checkpoints.new"), "leftovers stayed");
  });
  check(calls >= 10, "hardly any call was interrupted");
}

void a_growth_that_was_interrupted_leaves_the_old_pool_or_the_new() {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  const auto make_small = [&] {
    for (const auto& entry : fs::directory_iterator(directory.path())) fs::remove(entry);
    make_pool(path);
  };
  uint64_t old = 0;
  const auto expect_as_it_was = [&] {
    const uint64_t before = fs::file_size(path + ".checkpoints");
    if (before == CheckpointsShape(PoolTier::slots_for(kLayout, size_for(kLayout, 1000))).file_bytes()) {
      ++old;
      expect_pool(path, 1000);
    }
    expect_pool(path, 40000);
  };
  const int calls = interrupted(path, 40000, make_small, expect_as_it_was);
  check(calls >= 6 && old >= 4, "hardly any call was interrupted");
}

constexpr Test kTests[] = {
    {"a_pool_grows_and_keeps_what_it_has", a_pool_grows_and_keeps_what_it_has},
    {"the_size_that_is_asked_for_is_that_of_both_files", the_size_that_is_asked_for_is_that_of_both_files},
    {"a_pool_of_another_table_is_refused", a_pool_of_another_table_is_refused},
    {"files_that_are_damaged_or_not_ours_are_refused_by_name",
     files_that_are_damaged_or_not_ours_are_refused_by_name},
    {"a_file_that_is_no_pools_stays", a_file_that_is_no_pools_stays},
    {"two_pools_share_a_directory", two_pools_share_a_directory},
    {"files_are_on_the_medium_before_they_get_their_names",
     files_are_on_the_medium_before_they_get_their_names},
    {"a_making_that_was_interrupted_leaves_nothing_that_matters",
     a_making_that_was_interrupted_leaves_nothing_that_matters},
    {"a_growth_that_was_interrupted_leaves_the_old_pool_or_the_new",
     a_growth_that_was_interrupted_leaves_the_old_pool_or_the_new},
};

}  // namespace

std::span<const Test> file_tests() { return kTests; }

}  // namespace embstore::pool::testing
