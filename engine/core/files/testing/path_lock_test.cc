// A path has one owner, in this process and in others; forked children neither keep the lock nor release it.
#include "files/path_lock.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "testing/child.h"
#include "testing/tests.h"

namespace embstore::files {

// Called in a child within fork(), before anything else: handlers run in the order in which they were
// registered.
std::function<void()> first_in_child;
__attribute__((constructor(101))) void be_first_in_children() {
  pthread_atfork(nullptr, nullptr, [] {
    if (first_in_child) first_in_child();
  });
}

namespace {

namespace fs = std::filesystem;

// A signal that one process gives once and others wait for: the end of a pipe.
class Signal {
 public:
  Signal() { check(pipe(ends_) == 0, "a pipe can't be had"); }
  void give() const { check(::write(ends_[1], ".", 1) == 1, "a signal can't be given"); }
  void wait_for() const {
    pollfd from{ends_[0], POLLIN, 0};
    char byte;
    check(poll(&from, 1, 60'000) == 1 && ::read(ends_[0], &byte, 1) == 1, "a process is silent");
  }

 private:
  int ends_[2];
};

void expect_in_use(const std::string& path) {
  const std::string message = error_of(ErrorKind::kInUse, [&] { PathLock{path}; });
  check(message.starts_with(path + ": is in use by another variable"), message);
}

TEST(a_path_has_one_owner) {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  fs::create_directory_symlink(directory.path(), directory / "link");
  {
    const PathLock lock(path);
    expect_in_use(path);
    expect_in_use(directory / "link/rows");
    in_child([&] { expect_in_use(path); });
    const PathLock another(directory / "other rows");
  }
  check(!fs::exists(path + ".lock"), "the lock's file stays");
  const PathLock again(path);
  expect_in_use(path);
}

TEST(a_path_that_cant_be_locked_is_an_error_that_names_it) {
  const TemporaryDirectory directory;
  const std::string path = directory / "missing/rows";
  const std::string message = error_of(ErrorKind::kStorage, [&] { PathLock{path}; });
  check(message.starts_with(path + ".lock: can't be created: No such file"), message);
}

// The marker is a second proof of ownership, independent of the lock.
void own_alone(const std::string& path, int rounds) {
  const std::string marker = path + ".marker";
  while (rounds > 0) {
    try {
      const PathLock lock(path);
      const int descriptor = ::open(marker.c_str(), O_CREAT | O_EXCL, 0600);
      check(descriptor >= 0, "a path has two owners");
      ::close(descriptor);
      check(::unlink(marker.c_str()) == 0, "a path had two owners");
      --rounds;
    } catch (const InUseError&) {
    }
  }
}

TEST(one_of_many_processes_and_threads_owns_a_path_at_a_time) {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  const int rounds = kUnderSanitizer ? 300 : 1000;
  std::vector<pid_t> processes;
  for (int p = 0; p < 4; ++p) processes.push_back(start_child([&] { own_alone(path, rounds); }));
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) threads.emplace_back([&] { own_alone(path, rounds); });
  for (std::thread& thread : threads) thread.join();
  for (const pid_t process : processes) check(end_of_child(process) == 0, "a process failed");
  check(!fs::exists(path + ".lock"), "the last owner's lock is left");
}

TEST(a_lock_ends_with_its_process_though_its_child_lives_on) {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  const Signal is_forked, parent_is_gone, inherited_is_gone, is_free, is_owned, is_over;
  const pid_t parent = start_child([&] {
    auto lock = std::make_unique<PathLock>(path);
    if (fork() == 0) {
      expect_in_use(path);
      is_forked.give();
      parent_is_gone.wait_for();
      const int own_file = ::open("/dev/null", O_RDONLY);  // gets the number of the lock's descriptor
      lock.reset();
      check(fcntl(own_file, F_GETFD) >= 0, "a child's file was closed with what it inherited");
      inherited_is_gone.give();
      is_free.wait_for();
      const PathLock own(path);
      is_owned.give();
      is_over.wait_for();
      _exit(0);
    }
    for (;;) pause();
  });
  is_forked.wait_for();
  expect_in_use(path);
  kill(parent, SIGKILL);
  check(end_of_child(parent) == -SIGKILL, "the process ended by itself");
  {
    const PathLock lock(path);
    parent_is_gone.give();
    inherited_is_gone.wait_for();
    check(fs::exists(path + ".lock"), "a child removed the file of another's lock");
    in_child([&] { expect_in_use(path); });
  }
  is_free.give();
  is_owned.wait_for();
  expect_in_use(path);
  is_over.give();
}

TEST(a_child_that_has_not_run_yet_does_not_keep_a_lock_that_its_parent_released) {
  const TemporaryDirectory directory;
  const std::string lock_path = directory / "lock", path = directory / "rows";
  const Signal is_given_up;
  auto lock = std::make_unique<PathLock>(lock_path, path);
  first_in_child = [&] { is_given_up.wait_for(); };
  const pid_t child = start_child([] {});
  first_in_child = nullptr;
  lock.reset();
  const PathLock again(lock_path, path);
  is_given_up.give();
  check(end_of_child(child) == 0, "a process failed");
  check(error_of(ErrorKind::kInUse, [&] { PathLock{lock_path, path}; }) != "",
        "a child gave up what isn't its own");
}

size_t open_lock_files() {
  size_t found = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    found += fs::read_symlink(entry, gone).string().find(".lock") != std::string::npos;
  }
  return found;
}

TEST(a_child_has_no_lock_whenever_it_is_forked) {
  const TemporaryDirectory directory;
  const PathLock held(directory / "held");
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, path = directory / std::to_string(t)] {
      while (!done.load()) const PathLock lock(path);
    });
  }
  const int forks = kUnderSanitizer ? 100 : 500;
  for (int i = 0; i < forks; ++i) {
    in_child([&] {
      check(open_lock_files() == 0, "a child has a lock of its parent");
      const PathLock own(directory / "own");
    });
  }
  done.store(true);
  for (std::thread& thread : threads) thread.join();
  expect_in_use(directory / "held");
}

}  // namespace
}  // namespace embstore::files
