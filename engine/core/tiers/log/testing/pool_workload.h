// A table above a pool, at random: rows come down, go up, change there, and are written back; checkpoints begin, take
// what is written later, are committed, dropped and restored. And the plainest account of what must then hold.
#pragma once

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "pool_table.h"

namespace embstore::log::testing {

class PoolWorkload {
 public:
  // Of what a checkpoint has: each key's version, and the slots that are written.
  struct Checkpoint {
    Versions versions;
    std::set<Slot> slots;
    std::map<int64_t, int64_t> unwritten;  // of those versions
  };

  PoolWorkload(const std::string& path, uint64_t seed, const LibPmem& calls = libpmem(),
               files::FileCalls& file_calls = files::system_file_calls());

  void step();
  // Ends the process, and restores one of the checkpoints; from nothing where there is none.
  void restart();
  // Every slot is accounted for, every row is whole, and the pool names the right checkpoints.
  void expect() const;

  static const RowLayout& layout();
  static uint64_t slots();
  // Durable for certain; and those that may be, since a commit or a drop is under way.
  const std::map<uint64_t, Checkpoint>& kept() const { return kept_; }
  const std::map<uint64_t, Checkpoint>& uncertain() const { return uncertain_; }

 private:
  uint64_t below(uint64_t end) { return random_() % end; }
  int64_t some_key() { return static_cast<int64_t>(below(kKeys)) - kKeys / 2; }
  std::vector<int64_t> some_keys(uint64_t most);

  void write();
  void change();
  void write_back();
  void remove();
  void begin();
  void commit();
  void drop();
  void abandon();
  // To be called before the row of `key` is another: those that need it get it.
  bool write_for_checkpoints(int64_t key);
  // Writes a row that changed, if there's need; false where there's no claim for it.
  Slot put(int64_t key, int64_t version, bool is_live);

  static constexpr int64_t kKeys = 700;

  std::mt19937_64 random_;
  Pool pool_;
  std::map<int64_t, int64_t> changed_;  // rows above that have a claim
  int64_t version_ = 0;
  std::map<uint64_t, Checkpoint> pending_;
  std::map<uint64_t, Checkpoint> kept_;
  std::map<uint64_t, Checkpoint> uncertain_;
};

}  // namespace embstore::log::testing
