// Tests that one process uses a table's files, and one variable in it; forked children neither keep the files
// locked nor harm them.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "table.h"
#include "testing/child.h"

namespace embstore::log::testing {
namespace {

// A child process, and two pipes by which it and its parent wait for each other.
class Process {
 public:
  explicit Process(const std::function<void(Process&)>& work) {
    check(pipe(to_child_) == 0 && pipe(to_parent_) == 0, "pipes can't be had");
    id_ = start_child([&] { work(*this); });
  }
  ~Process() {
    for (const int end : {to_child_[0], to_child_[1], to_parent_[0], to_parent_[1]}) ::close(end);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  // Called by the child:
  void tell(char word = '.') const { check(::write(to_parent_[1], &word, 1) == 1, "nobody listens"); }
  void wait_for_parent() const {
    char word;
    check(::read(to_child_[0], &word, 1) == 1, "nobody speaks");
  }
  // Called by the parent:
  char wait_for_child() const {
    char word = 0;
    check(::read(to_parent_[0], &word, 1) == 1, "the process is silent");
    return word;
  }
  void go_on() const { check(::write(to_child_[1], ".", 1) == 1, "nobody listens"); }
  void kill() const { ::kill(id_, SIGKILL); }
  int end() const { return end_of_child(id_); }

 private:
  int to_child_[2];
  int to_parent_[2];
  pid_t id_;
};

void check_is_in_use(const TableSite& site) {
  check_throws(ErrorKind::kInUse, ".checkpoints: is in use by another variable", [&] { site.open(); });
}

bool is_in_use_for_another_process(const TableSite& site) {
  const Process other([&](Process& self) {
    try {
      site.open();
    } catch (const Error& error) {
      self.tell(error.kind() == ErrorKind::kInUse ? 'u' : 'e');
      return;
    }
    self.tell('f');
  });
  const char answer = other.wait_for_child();
  check(other.end() == 0 && answer != 'e', "the table is refused for another reason");
  return answer == 'u';
}

std::unique_ptr<Table> table_with_a_checkpoint(const TableSite& site) {
  std::unique_ptr<Table> table = site.open();
  table->write(0, 2000, 1);
  table->checkpoint();
  return table;
}

void check_restored(Table& table) {
  table.restore(1);
  check(table.index.size() == 2000, "rows are lost");
  table.check_rows();
}

TEST(a_table_has_one_user) {
  on_both_media([](const TableSite& site) {
    TableSite linked = site;
    const TemporaryDirectory elsewhere;
    linked.root = elsewhere / "link";
    std::filesystem::create_directory_symlink(site.root, linked.root);
    const std::unique_ptr<Table> table = table_with_a_checkpoint(site);
    check_is_in_use(site);
    check_is_in_use(linked);
    // The refusals didn't give up the lock.
    check(is_in_use_for_another_process(site), "two processes have one table");
    table->close();
    check(!is_in_use_for_another_process(site), "a closed table is in use");
    table->reopen();
    check_is_in_use(site);
    check_restored(*table);
  });
}

TEST(a_directory_of_files_has_one_tier) {
  const TemporaryDirectory directory;
  SsdHashTier tier(table_of(), directory / "rows");
  check_throws(ErrorKind::kInUse, directory / "rows", [&] { SsdHashTier(table_of(), directory / "rows"); });
}

TEST(a_forked_child_outlives_its_parent_and_harms_nothing) {
  on_both_media([](const TableSite& site) {
    // The first process has the table; its child, with all that it inherited, lives on when the process is
    // killed.
    const Process first([&](Process& self) {
      const std::unique_ptr<Table> table = table_with_a_checkpoint(site);
      if (fork() == 0) {
        check_is_in_use(site);
        self.tell();
        self.wait_for_parent();
        table->close();
        self.tell();
        self.wait_for_parent();
        check_restored(*site.open());  // no process has it open now
        self.tell();
        _exit(0);
      }
      for (;;) pause();
    });
    first.wait_for_child();
    first.kill();
    first.end();
    {
      const std::unique_ptr<Table> table = site.open();
      check_restored(*table);
      first.go_on();
      first.wait_for_child();  // the child has closed what it inherited
      check(is_in_use_for_another_process(site), "a child gave up a lock that isn't its own");
      table->write(0, 1000, 2);
      table->check_rows();
    }
    first.go_on();
    first.wait_for_child();
  });
}

TEST(a_forked_child_has_no_mapping_of_a_pool) {
  const TemporaryDirectory directory;
  PoolTable pool(directory / "var", kLayout, 1000);
  pool.write(0, 10, 1);
  // Not by address: the child may have mapped something else there.
  const auto is_mapped = [file = std::filesystem::canonical(directory / "var.pool").string()] {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.ends_with(file)) return true;
    }
    return false;
  };
  check(is_mapped(), "the pool isn't mapped where it is open");
  const Process child([&](Process& self) { self.tell(is_mapped() ? 'm' : 'n'); });
  check(child.wait_for_child() == 'n', "a child can write to the pool");
  check(child.end() == 0, "the child failed");
  pool.check_rows();
}

}  // namespace
}  // namespace embstore::log::testing
