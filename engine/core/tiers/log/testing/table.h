// A table with one durable tier, and the simplest index that serves the tier. There is a class for each kind
// of tier, and scenarios run on both.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "testing.h"
#include "threads/mutex.h"
#include "tiers/log/checkpoints.h"
#include "tiers/log/pool_tier.h"
#include "tiers/log/ssd_hash_tier.h"

namespace embstore::log::testing {

// The place of a row, and its version.
struct Entry {
  Slot slot;
  int64_t version;
  bool operator==(const Entry&) const = default;
};

// Keys, places and versions of the rows that are in the tier.
class PlainIndex final : public Relocator {
 public:
  void relocate(std::span<Relocation> rows) override;

  // Returns where the row was before.
  std::optional<Entry> put(int64_t key, Slot slot, int64_t version);
  std::optional<Entry> find(int64_t key) const;
  Entry at(int64_t key) const;  // fails if there is none
  bool contains(int64_t key) const { return find(key).has_value(); }
  std::optional<Entry> take(int64_t key);  // removes it
  void clear();
  // Returns all entries, in ascending order of keys.
  std::vector<std::pair<int64_t, Entry>> all() const;
  std::vector<int64_t> keys() const;
  std::vector<Place> places() const;
  size_t size() const;

 private:
  mutable Mutex mutex_;
  std::map<int64_t, Entry> entries_ GUARDED_BY(mutex_);
};

// A record in a file has 160 bytes, so that records cross blocks and a block has several.
inline const RowLayout kLayout(9, 1);
inline const RecordShape kRecord(kLayout, 8);  // in a file

TableIdentity table_of(const RowLayout& layout = kLayout, const std::string& name = "var");
// Fails unless row i of `rows` is the row of `key` in this version.
void check_row(const RowBatch& rows, size_t i, int64_t key, int64_t version);

// A table that is opened by one process after another.
class Table {
 public:
  virtual ~Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Ends the process, and opens the table in the next one. Pending checkpoints are dropped first, or left as
  // they are.
  enum class Pending { kDropped, kLeft };
  void reopen(Pending pending = Pending::kDropped);

  // Writes rows, puts them into the index, and erases those that they replace.
  void write(std::span<const int64_t> keys, int64_t version);
  void write(int64_t first, int64_t count, int64_t version) { write(keys_from(first, count), version); }
  void erase(std::span<const int64_t> keys);
  void erase(int64_t first, int64_t count) { erase(keys_from(first, count)); }
  void erase_all() { erase(index.keys()); }
  // Fails unless the tier has exactly the rows of the index, each whole and of its version.
  void check_rows() const;
  // Fails if the space of a row is lost, or the tier takes more space than it may.
  virtual void check_space() const = 0;
  Versions versions() const;

  uint64_t begin();
  void commit(uint64_t number) { checkpoints->commit(number, id_of(number)); }
  uint64_t checkpoint();  // begins and commits it
  // Erases the live rows, then restores.
  void restore(uint64_t number, int threads = 2);
  std::vector<uint64_t> kept() const;

  virtual Tier& rows() const = 0;
  // The file and the offset of a row's record, and the text by which an error names the record when its row
  // is read, or restored.
  struct Record {
    std::string file;
    uint64_t offset;
    std::string when_read;
    std::string when_restored;
  };
  virtual Record record_of(int64_t key) const = 0;

  const TableIdentity identity;
  const RecordShape shape;
  PlainIndex index;                          // outlives the tier's compaction thread
  std::unique_ptr<Checkpoints> checkpoints;  // null if none are kept

  // Drops pending checkpoints, and closes the table.
  void end();
  // Closes the table as a process does that leaves pending checkpoints as they are.
  virtual void close() = 0;

 protected:
  Table(TableIdentity table, const RecordShape& record) : identity(std::move(table)), shape(record) {}
  virtual void open() = 0;
  virtual void check_written(std::span<const Slot>) const {}
  void adopt_kept(DurableTier& tier);

 private:
  uint64_t newest_ = 0;  // number of a checkpoint
};

class PoolTable final : public Table {
 public:
  // A pool of `slots` slots, or a few more, to whole pages; in the file `where`.pool.
  PoolTable(const std::string& where, const TableIdentity& table, uint64_t slots,
            const LibPmem& calls = libpmem(), files::FileCalls& file_calls = files::system_file_calls());
  PoolTable(const std::string& where, const RowLayout& layout, uint64_t slots,
            const LibPmem& calls = libpmem(), files::FileCalls& file_calls = files::system_file_calls())
      : PoolTable(where, table_of(layout), slots, calls, file_calls) {}
  ~PoolTable() override { end(); }

  // Writes a row to a claimed slot.
  void write_one(int64_t key, int64_t version);
  // Fails unless this many slots are taken or claimed.
  void check_taken(uint64_t slots) const;
  void check_space() const override;
  Tier& rows() const override { return *tier; }
  Record record_of(int64_t key) const override;
  void close() override;

  const std::string path;
  const uint64_t size_bytes;
  std::unique_ptr<PoolTier> tier;

 private:
  void open() override;
  void check_written(std::span<const Slot> slots) const override;

  const LibPmem& libpmem_calls_;
  files::FileCalls& file_calls_;
};
// Returns the least file size that has this many slots.
uint64_t size_for(const RowLayout& layout, uint64_t slots);

// Options for files so small that a few thousand rows fill and compact many of them.
SsdHashOptions small_files(files::FileCalls& calls = files::system_file_calls());
SsdHashOptions small_files_for_checkpoints(files::FileCalls& calls = files::system_file_calls());

// A table in files. Its rows lie in `root`/rows and, if checkpoints are kept, its manifests, named table, in
// `root`/manifests.
class FileTable final : public Table {
 public:
  // relocator: gets the rows that move (default: the table's own index).
  explicit FileTable(std::string root, const SsdHashOptions& options = small_files(),
                     const TableIdentity& table = table_of(), Relocator* relocator = nullptr);
  ~FileTable() override { end(); }

  // Drains, and fails unless the files are within their bound and nothing is lost.
  void check_space() const override;
  Tier& rows() const override { return *tier; }
  Record record_of(int64_t key) const override;
  void close() override;

  std::unique_ptr<SsdHashTier> tier;

 private:
  void open() override;

  const std::string root_;
  const SsdHashOptions options_;
  Relocator& relocator_;
};

// The place of a table of one kind, and how it is opened.
struct TableSite {
  bool is_pool;
  std::string root;  // has the folders rows and manifests; a pool is in manifests
  uint64_t slots = PoolTier::kHeadroomSlots + 16000;
  const LibPmem* libpmem = &embstore::libpmem();
  SsdHashOptions options = small_files_for_checkpoints();
  Relocator* relocator = nullptr;  // see FileTable
  files::FileCalls* calls = &files::system_file_calls();

  std::unique_ptr<Table> open(const TableIdentity& table = table_of()) const;
  std::string manifest(uint64_t number) const;
  std::vector<std::string> row_files() const;
  void remove_all() const;
};
// Runs a scenario in an empty directory, once with a pool and once with files.
void on_both_media(const std::function<void(const TableSite&)>& scenario);

}  // namespace embstore::log::testing
