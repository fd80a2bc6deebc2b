// What the tests of SSDHASH have in common: rows whose content follows from key and version, the plainest index that a tier
// can be asked by, and a table of this one tier.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "errors/error.h"
#include "testing/check.h"
#include "threads/mutex.h"
#include "tiers/log/checkpoints.h"
#include "tiers/ssd_hash/ssd_hash_tier.h"

namespace embstore::ssd_hash::testing {

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

std::vector<int64_t> keys_from(int64_t first, int64_t count);
uint64_t bytes_in(const std::string& directory);
std::vector<std::string> files_in(const std::string& directory);  // by name
// Changes the lowest bit of a byte of a file.
void flip(const std::string& path, uint64_t offset);

// The medium isn't waited for: where no machine goes down, a sync says nothing.
class UnwaitingCalls : public files::FileCalls {
 public:
  int fdatasync(int) override { return 0; }
  int fsync(int) override { return 0; }
};

// Keys, places and versions of the rows that are in the tier.
class PlainIndex final : public Relocator {
 public:
  struct Entry {
    Slot slot;
    int64_t version;
  };
  void relocate(std::span<Relocation> rows) override;

  // Returns where the row was before.
  std::optional<Entry> put(int64_t key, Slot slot, int64_t version);
  std::optional<Entry> find(int64_t key) const;
  std::optional<Entry> take(int64_t key);  // removes it
  // Everything, keys ascending.
  std::vector<std::pair<int64_t, Entry>> all() const;
  size_t size() const;

 private:
  mutable Mutex mutex_;
  std::map<int64_t, Entry> entries_ GUARDED_BY(mutex_);
};

// Of 160 bytes a record: records cross blocks, and several lie in one.
inline const RowLayout kLayout(9, 1);
inline const log::RecordShape kRecord(kLayout, 8);

log::TableIdentity table_of(const RowLayout& layout = kLayout, const std::string& name = "var");
// So small that a few thousand rows fill and compact many files.
SsdHashOptions small_files();
SsdHashOptions small_files_for_checkpoints();

using Versions = std::map<int64_t, int64_t>;  // by key

// A table in a process: its rows lie in `root`/rows and, where checkpoints are kept, its manifests, named table, in `root`/manifests.
class TestTable {
 public:
  explicit TestTable(const std::string& root, const SsdHashOptions& options = small_files(),
                     const log::TableIdentity& table = table_of());
  ~TestTable();

  // Writes rows, refers to them, and erases those that they replace.
  void write(std::span<const int64_t> keys, int64_t version);
  void write(int64_t first, int64_t count, int64_t version) { write(keys_from(first, count), version); }
  void erase(std::span<const int64_t> keys);
  void erase_all();
  // Every row of the index is in the tier, whole and of its version.
  void check_rows() const;
  // The files are within their bound, and nothing is lost. Drains.
  void check_space() const;
  Versions versions() const;

  uint64_t begin();
  void commit(uint64_t number);
  uint64_t checkpoint();  // begins and commits it
  // What was live is erased.
  void restore(uint64_t number, int threads = 2);
  std::vector<uint64_t> kept() const;

  PlainIndex index;                               // outlives the tier's own thread
  std::unique_ptr<log::Checkpoints> checkpoints;  // null where none are kept
  std::unique_ptr<SsdHashTier> tier;

 private:
  log::TableMoment moment() const;  // which follows from the rows

  const RowLayout layout_;
  const uint64_t buffer_bytes_;
};

struct Test {
  const char* name;
  void (*run)();
};
std::vector<Test>& tests();  // of all files
struct Registration {
  Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};
#define TEST(name)                                    \
  void name();                                        \
  const Registration registered_##name{#name, &name}; \
  void name()

}  // namespace embstore::ssd_hash::testing
