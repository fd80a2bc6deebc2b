// A pool, and the plainest index that it can be asked by.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "testing.h"
#include "tiers/log/checkpoints.h"
#include "tiers/log/pool_tier.h"

namespace embstore::log::testing {

// Where each key's row is, and of what version.
struct Entry {
  Slot slot;
  int64_t version;
  bool operator==(const Entry&) const = default;
};
using Index = std::map<int64_t, Entry>;
Versions versions_of(const Index& index);

// A pool, and an index of what is live in it.
class Pool {
 public:
  // Of so many slots, or a few more, to whole pages; in the file `path`.pool.
  Pool(const std::string& path, const RowLayout& layout, uint64_t slots, const LibPmem& calls = libpmem(),
       files::FileCalls& file_calls = files::system_file_calls());
  void reopen();

  void write(std::span<const int64_t> keys, int64_t version);
  // By a claim.
  void write_one(int64_t key, int64_t version);
  void erase(std::span<const int64_t> keys);
  // Makes the next one, and says its number.
  uint64_t checkpoint();
  void restore(uint64_t number, int threads = 2);
  void check_all() const;  // that is in the index, and no more
  // Fails unless so many slots are taken or claimed.
  void expect_taken(uint64_t slots) const;

  const std::string path;
  const RowLayout layout;
  const uint64_t size_bytes;
  const LibPmem& libpmem_calls;
  files::FileCalls& file_calls;
  std::optional<Checkpoints> checkpoints;
  std::optional<PoolTier> tier;
  Index index;
};

TableIdentity identity(const RowLayout& layout);
// The least size that has so many slots.
uint64_t size_for(const RowLayout& layout, uint64_t slots);

}  // namespace embstore::log::testing
