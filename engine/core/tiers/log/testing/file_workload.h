// A table at random: rows come and go, checkpoints begin, are committed, dropped, given up and restored, and processes end.
// And the plainest account of what must then hold.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "file_table.h"

namespace embstore::log::testing {

using CheckpointVersions = std::map<uint64_t, Versions>;  // by number

class FileWorkload {
 public:
  FileWorkload(std::string root, uint64_t seed, const SsdHashOptions& options);

  void step();
  // Ends the process, and restores one of the checkpoints, or gives all up.
  void restart();
  // The same after a power cut, which left that.
  void restart_in(const std::string& root, files::FileCalls& calls);
  // Every row is there, and the files are within their bound.
  void expect();

  // Committed. Where the power goes now, all of them must be there, and some of those that are being committed or dropped.
  const CheckpointVersions& certain() const { return certain_; }
  const CheckpointVersions& uncertain() const { return uncertain_; }
  bool is_committing() const { return is_committing_; }

 private:
  static constexpr int64_t kKeys = 900;

  uint64_t below(uint64_t end) { return random_() % end; }
  std::vector<int64_t> some_keys(uint64_t most);
  uint64_t one_of(const CheckpointVersions& checkpoints);
  void open();
  void begin();
  void commit();
  void drop(uint64_t number);
  void restore(uint64_t number);

  std::string root_;
  SsdHashOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<TestTable> table_;
  int64_t version_ = 0;
  CheckpointVersions pending_;
  CheckpointVersions certain_;
  CheckpointVersions uncertain_;
  bool is_committing_ = false;
};

// What somebody finds who opens what a power cut left in `root`: empty where everything is as it must be.
std::string fault_after_cut(const std::string& root, const CheckpointVersions& certain,
                            const CheckpointVersions& uncertain);

}  // namespace embstore::log::testing
