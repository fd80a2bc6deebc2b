// What the tests of the durable pool have in common: rows whose content follows from key and version, the plainest index
// that a pool can be asked by.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "errors/error.h"
#include "testing/check.h"
#include "tiers/log/checkpoints.h"
#include "tiers/log/pool_tier.h"

namespace embstore::pool::testing {

using namespace log;

// Fails unless `call` throws an Error of `kind` whose message has `part` in it.
template <class Call>
void check_throws(ErrorKind kind, const std::string& part, const Call& call) {
  const std::string message = error_of(kind, call);
  check(message.find(part) != std::string::npos, "\"" + part + "\" is not in: " + message);
}

// Every byte of a row follows from its key and version, so that a torn or stale one shows.
void fill_row(RowBatch& rows, size_t i, int64_t key, int64_t version);
// The version of the row; fails where it isn't the whole row of `key`.
int64_t checked_version(const RowBatch& rows, size_t i, int64_t key);

// Where each key's row is, and of what version.
struct Entry {
  Slot slot;
  int64_t version;
  bool operator==(const Entry&) const = default;
};
using Index = std::map<int64_t, Entry>;
// Which version of each key a checkpoint has.
using Versions = std::map<int64_t, int64_t>;
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
  std::optional<log::Checkpoints> checkpoints;
  std::optional<PoolTier> tier;
  Index index;
};

log::TableIdentity identity(const RowLayout& layout);
log::CheckpointId id_of(uint64_t number);
// The least size that has so many slots.
uint64_t size_for(const RowLayout& layout, uint64_t slots);
std::vector<int64_t> keys_from(int64_t first, int64_t count);
void flip(const std::string& file, uint64_t offset);  // a bit of the byte there
std::string bytes_of(const std::string& file);

struct Test {
  const char* name;
  void (*run)();
};
std::span<const Test> row_tests();
std::span<const Test> checkpoint_tests();
std::span<const Test> file_tests();
std::span<const Test> order_tests();
std::span<const Test> power_tests();
std::span<const Test> process_tests();
std::span<const Test> random_tests();
std::span<const Test> thread_tests();

}  // namespace embstore::pool::testing
