// A table and a durable pool above a tier, at random: rows come and go, checkpoints begin, are committed, dropped, given
// up and restored, and processes end. And the plainest account of what must then hold.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "testing.h"

namespace embstore::ssd_hash::testing {

using Versions = std::map<int64_t, int64_t>;  // by key

SsdHashOptions checkpoint_options();
CheckpointId id_of(uint64_t number);
Versions versions_of(const PlainIndex& index);
// Restores into an index that is empty, and reads every row.
void restore_into(PlainIndex& index, SsdHashTier& tier, const RowLayout& layout, const CheckpointName& name,
                  int threads);

class CheckpointWorkload {
 public:
  struct Checkpoint {
    CheckpointName name;
    Versions versions;
  };

  CheckpointWorkload(const std::string& path, uint64_t seed, const SsdHashOptions& options);
  ~CheckpointWorkload();

  void step();
  // Ends the process, and restores one of the checkpoints that the pool has; or gives all up.
  void restart();
  // The same after a power cut, which left that.
  void restart_in(const std::string& path, files::FileCalls& calls);
  // Every row is there, and the files are within their bound.
  void expect();

  static const RowLayout& layout();
  // That the pool has.
  const std::map<uint64_t, Checkpoint>& kept() const { return kept_; }
  bool is_committing() const { return is_committing_; }
  // Between the tier's commit and the pool's.
  void between_commits(std::function<void()> call) { between_commits_ = std::move(call); }

 private:
  uint64_t below(uint64_t end) { return random_() % end; }
  std::vector<int64_t> some_keys(uint64_t most);
  void open();
  void end_process();
  void write();
  void erase();
  void erase_all();
  void begin();
  void commit();
  void drop();
  void abandon();
  void restore();
  void restore(const Checkpoint& chosen);

  static constexpr int64_t kKeys = 900;

  std::string path_;
  SsdHashOptions options_;
  std::mt19937_64 random_;
  PlainIndex index_;
  std::unique_ptr<SsdHashTier> tier_;
  int64_t version_ = 0;
  uint64_t greatest_ = 0;  // number that the pool knows of
  std::map<uint64_t, Checkpoint> pending_;
  std::map<uint64_t, Checkpoint> kept_;
  bool is_committing_ = false;
  std::function<void()> between_commits_;
};

// What somebody finds who opens what a power cut left in `path`, with these checkpoints in the pool: empty where
// everything is as it must be.
std::string fault_after_cut(const std::string& path,
                            const std::map<uint64_t, CheckpointWorkload::Checkpoint>& kept);

}  // namespace embstore::ssd_hash::testing
