// A random workload on a table: rows come and go, checkpoints begin, are committed, dropped and restored, and
// processes end. It keeps the simplest possible account of what must then hold.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "table.h"

namespace embstore::log::testing {

// The rows of a checkpoint.
struct Account {
  Versions versions;
  // In a pool: the slots that are written, and the versions of rows above the pool that aren't written yet.
  std::set<Slot> slots;
  Versions unwritten;
};
using Accounts = std::map<uint64_t, Account>;  // by number

class Workload {
 public:
  Workload(TableSite site, uint64_t seed);
  virtual ~Workload() = default;

  void step();
  // Ends the process, and restores one of the checkpoints, or drops all.
  void restart();
  // Restarts at another site, which has what a power cut left. Call end() before.
  void end() { table_.reset(); }
  void restart_at(const TableSite& site);
  // Checks that every row is there, that no space is lost, and that the table lists the right checkpoints.
  void expect();

  // certain(): the committed checkpoints, all of which must survive a power cut now. uncertain(): those being
  // committed or dropped, each of which may survive.
  const Accounts& certain() const { return certain_; }
  const Accounts& uncertain() const { return uncertain_; }
  bool changes_manifests() const { return changes_manifests_; }  // during a commit or a drop

 protected:
  static constexpr int64_t kKeys = 900;

  uint64_t below(uint64_t end) { return random_() % end; }
  std::vector<int64_t> some_keys(uint64_t most);
  virtual void check_space() { table_->check_space(); }
  // A step that doesn't concern checkpoints.
  virtual void work() = 0;
  // Completes the account of a checkpoint that begins, beyond the rows in the tier.
  virtual void on_begin(Account&) {}
  // Writes the rows that a checkpoint still needs.
  virtual void on_commit(const Account&) {}
  // Forgets rows above the tier: the process has ended, or its rows were given up.
  virtual void forget_rows(bool /*with_process*/) {}

  Table& table() { return *table_; }
  Accounts& pending() { return pending_; }
  int64_t next_version() { return ++version_; }

 private:
  uint64_t one_of(const Accounts& accounts);
  void open();
  void begin();
  void commit();
  void drop(uint64_t number);
  void restore(uint64_t number);

  TableSite site_;
  std::mt19937_64 random_;
  std::unique_ptr<Table> table_;
  int64_t version_ = 0;
  Accounts pending_;
  Accounts certain_;
  Accounts uncertain_;
  bool changes_manifests_ = false;
};

// Makes a workload. In a pool, rows also move up, change there under a claim, and are written back.
std::unique_ptr<Workload> make_workload(const TableSite& site, uint64_t seed);

// Opens what a power cut left, and returns what is wrong with it; empty if nothing is.
std::string fault_after_cut(const TableSite& site, const Accounts& certain, const Accounts& uncertain);

}  // namespace embstore::log::testing
