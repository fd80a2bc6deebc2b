// One process uses a pool, and one variable in it; forked children neither keep it from others nor harm it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "pool_table.h"

namespace embstore::log::testing {
namespace {

namespace fs = std::filesystem;

const RowLayout kLayout(6, 1);
constexpr uint64_t kSlots = 1000;

// A process, and two pipes by which it and its maker wait for each other.
class Process {
 public:
  explicit Process(const std::function<void(Process&)>& work) {
    check(pipe(to_child_) == 0 && pipe(to_parent_) == 0, "pipes can't be had");
    id_ = fork();
    check(id_ >= 0, "no process can be started");
    if (id_ != 0) return;
    work(*this);
    _exit(0);
  }
  // Of the child:
  void tell(char word = '.') const { check(::write(to_parent_[1], &word, 1) == 1, "nobody listens"); }
  void wait_for_parent() const {
    char word;
    check(::read(to_child_[0], &word, 1) == 1, "nobody speaks");
  }
  // Of its maker:
  char wait_for_child() const {
    char word = 0;
    check(::read(to_parent_[0], &word, 1) == 1, "the process is silent");
    return word;
  }
  void go_on() const { check(::write(to_child_[1], ".", 1) == 1, "nobody listens"); }
  void kill() const { ::kill(id_, SIGKILL); }
  int status() const {
    int status = 0;
    check(waitpid(id_, &status, 0) == id_, "the process is gone");
    return status;
  }

 private:
  int to_child_[2];
  int to_parent_[2];
  pid_t id_;
};

void expect_in_use(const std::string& path) {
  check_throws(ErrorKind::kInUse, path + ".pool.checkpoints: is in use by another variable",
               [&] { Pool(path, kLayout, kSlots); });
}

bool is_in_use_for_another_process(const std::string& path) {
  const Process other([&](Process& self) {
    try {
      Pool(path, kLayout, kSlots);
    } catch (const Error& error) {
      self.tell(error.kind() == ErrorKind::kInUse ? 'u' : 'e');
      return;
    }
    self.tell('f');
  });
  const char told = other.wait_for_child();
  check(other.status() == 0 && told != 'e', "the pool is refused for another reason");
  return told == 'u';
}

TEST(a_pool_has_one_user) {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  fs::create_directory_symlink(directory.path(), directory / "link");
  Pool pool(path, kLayout, kSlots);
  expect_in_use(path);
  expect_in_use(directory / "link/var");
  // The refusals didn't give up the lock.
  check(is_in_use_for_another_process(path), "two processes have one pool");
  pool.tier->close();
  pool.checkpoints.reset();
  check(!is_in_use_for_another_process(path), "a closed pool is in use");
  pool.reopen();
  expect_in_use(path);
}

TEST(a_killed_process_leaves_the_pool_to_the_next) {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  const Process first([&](Process& self) {
    Pool pool(path, kLayout, kSlots);
    pool.write(keys_from(0, 200), 1);
    pool.checkpoint();
    self.tell();
    self.wait_for_parent();
  });
  first.wait_for_child();
  expect_in_use(path);
  first.kill();
  first.status();
  Pool pool(path, kLayout, kSlots);
  pool.restore(1);
  check(pool.index.size() == 200, "rows are lost");
  pool.check_all();
}

TEST(a_forked_child_outlives_its_parent_and_harms_nothing) {
  const TemporaryDirectory directory;
  const std::string path = directory / "var";
  // The first process has the pool, its child lives on when it's killed, with all that it inherited.
  const Process first([&](Process& self) {
    Pool pool(path, kLayout, kSlots);
    pool.write(keys_from(0, 200), 1);
    pool.checkpoint();
    if (fork() == 0) {
      expect_in_use(path);
      self.tell();
      self.wait_for_parent();
      pool.tier.reset();
      pool.checkpoints.reset();
      self.tell();
      self.wait_for_parent();
      {
        Pool own(path, kLayout, kSlots);  // now that nobody has it
        own.restore(1);
        own.check_all();
      }
      self.tell();
      _exit(0);
    }
    for (;;) pause();
  });
  first.wait_for_child();
  first.kill();
  first.status();
  {
    Pool pool(path, kLayout, kSlots);
    pool.restore(1);
    pool.check_all();
    first.go_on();
    first.wait_for_child();  // the child gave up what it inherited
    check(is_in_use_for_another_process(path), "a child gave up a lock that isn't its own");
    pool.write(keys_from(0, 100), 2);
    pool.check_all();
  }
  first.go_on();
  first.wait_for_child();
}

TEST(a_forked_child_has_no_mapping_of_the_pool) {
  const TemporaryDirectory directory;
  Pool pool(directory / "var", kLayout, kSlots);
  pool.write(keys_from(0, 10), 1);
  const uintptr_t address = pool.tier->stats().address;
  const Process child([&](Process&) { *reinterpret_cast<volatile char*>(address) = 1; });
  check(child.status() != 0, "a child can write to the pool");
  pool.check_all();
}

}  // namespace

}  // namespace embstore::log::testing
