// A LevelDB tier that follows checkpoints, with what the pool and the index above it would know: the plainest that will
// do. Rows' content follows from key and version; a checkpoint's id from what is in it, so that whoever restores it knows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tiers/leveldb/leveldb_tier.h"

namespace embstore::leveldb::testing {

RowLayout layout();
inline const LevelDbTier::FollowsCheckpoints kAdagrad{.optimizer = "adagrad"};

struct Entry {
  Slot slot;
  uint64_t version;
  bool operator==(const Entry&) const = default;
};
using Index = std::map<int64_t, Entry>;

CheckpointId id_of(const Index& index);

class FollowedTable {
 public:
  // Takes up what `pool` has: the file that lists checkpoints, written durably at each change.
  FollowedTable(std::string path, std::string pool, std::string table = "var");

  void write(std::span<const int64_t> keys, uint64_t version);  // a row that was there is erased
  void erase(std::span<const int64_t> keys);
  uint64_t begin();  // the number
  void commit(uint64_t number);
  void drop(uint64_t number);
  // Everything that is live is erased first. Fails unless the rows are those that the id says, each as it was written.
  void restore(uint64_t number, int threads);
  void drop_newer_than(uint64_t number);
  void start_over();
  void check_all() const;
  void reopen();
  void close() { tier.reset(); }

  std::optional<LevelDbTier> tier;
  Index index;
  std::vector<CheckpointName> kept;
  std::map<uint64_t, CheckpointId> pending;  // with the id that it will have

 private:
  void open();
  void read_pool();
  void write_pool() const;

  const std::string path_;
  const std::string pool_;
  const std::string table_;
  uint64_t next_number_ = 1;
};

// One random thing that a variable may do. Says what.
std::string random_step(FollowedTable& table, uint64_t random, uint64_t version);

}  // namespace embstore::leveldb::testing
