// A table of one SSDHASH tier, and the plainest index that it can be asked by.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "testing.h"
#include "threads/mutex.h"
#include "tiers/log/checkpoints.h"
#include "tiers/log/ssd_hash_tier.h"

namespace embstore::log::testing {

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
inline const RecordShape kRecord(kLayout, 8);

TableIdentity table_of(const RowLayout& layout = kLayout, const std::string& name = "var");
// So small that a few thousand rows fill and compact many files.
SsdHashOptions small_files();
SsdHashOptions small_files_for_checkpoints();

// A table in a process: its rows lie in `root`/rows and, where checkpoints are kept, its manifests, named table, in `root`/manifests.
class TestTable {
 public:
  explicit TestTable(const std::string& root, const SsdHashOptions& options = small_files(),
                     const TableIdentity& table = table_of());
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

  PlainIndex index;                          // outlives the tier's own thread
  std::unique_ptr<Checkpoints> checkpoints;  // null where none are kept
  std::unique_ptr<SsdHashTier> tier;

 private:
  TableMoment moment() const;  // which follows from the rows

  const RowLayout layout_;
  const uint64_t buffer_bytes_;
};

}  // namespace embstore::log::testing
