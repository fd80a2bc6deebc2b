// A table at random: rows come and go, checkpoints begin, are committed, dropped, given up and restored, and processes end. And
// the plainest account of what must then hold.
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

// What a checkpoint has.
struct Account {
  Versions versions;
  // Of a pool: the slots that are written, and the versions of rows above that aren't written yet.
  std::set<Slot> slots;
  Versions unwritten;
};
using Accounts = std::map<uint64_t, Account>;  // by number

class Workload {
 public:
  Workload(Site site, uint64_t seed);
  virtual ~Workload() = default;

  void step();
  // Ends the process, and restores one of the checkpoints, or gives all up.
  void restart();
  // The same after a power cut: end() comes before, and what it left is in another place.
  void end() { table_.reset(); }
  void restart_at(const Site& site);
  // Every row is there, the space is accounted for, and the table names the right checkpoints.
  void expect();

  // Committed. If the power goes now, all of them must be there, and some of those that are being committed or dropped.
  const Accounts& certain() const { return certain_; }
  const Accounts& uncertain() const { return uncertain_; }
  bool changes_manifests() const { return changes_manifests_; }  // in a commit or a drop

 protected:
  static constexpr int64_t kKeys = 900;

  uint64_t below(uint64_t end) { return random_() % end; }
  std::vector<int64_t> some_keys(uint64_t most);
  virtual void check_space() { table_->check_space(); }
  // A step that is none of checkpoints.
  virtual void work() = 0;
  // Adds to an account of what is in the tier.
  virtual void begins(Account&) {}
  // Writes what a checkpoint still needs.
  virtual void completes(const Account&) {}
  // The process is another, or its rows are given up.
  virtual void gives_up_rows(bool /*with_process*/) {}

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

  Site site_;
  std::mt19937_64 random_;
  std::unique_ptr<Table> table_;
  int64_t version_ = 0;
  Accounts pending_;
  Accounts certain_;
  Accounts uncertain_;
  bool changes_manifests_ = false;
};

// In a pool, rows also go up, change there under a claim, and are written back.
std::unique_ptr<Workload> make_workload(const Site& site, uint64_t seed);

// What somebody finds who opens what a power cut left: empty where everything is as it must be.
std::string fault_after_cut(const Site& site, const Accounts& certain, const Accounts& uncertain);

}  // namespace embstore::log::testing
