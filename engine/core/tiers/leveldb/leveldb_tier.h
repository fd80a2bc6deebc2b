// Rows in a LevelDB database; FORMAT.md has the records.
//
// A row's place is a record of its own: the record's key is the row's key and its slot, which is the
// number of the write modulo kSlots. So a row that comes back while its old record is still to be deleted
// becomes a second record, a late deletion can't hit it, and records never change once they are written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "row/place.h"
#include "row/row_batch.h"
#include "row/row_layout.h"
#include "tiers/leveldb/leveldb_library.h"
#include "tiers/tier.h"

namespace embstore {

// bench/leveldb_options.cc measured what the defaults were chosen by.
struct LevelDbOptions {
  bool reopen = false;       // take over the rows of a database that was kept; else the tier starts empty
  bool keep_files = false;   // leave the database in place on close, for a later reopen
  bool sync_writes = false;  // a write returns when the medium has it: survives a power cut
  bool compress = false;     // by Snappy
  size_t write_buffer_bytes = size_t{16} << 20;  // held up to twice in memory
  size_t max_file_bytes = size_t{16} << 20;
  size_t block_bytes = size_t{4} << 10;
  size_t block_cache_bytes = size_t{8} << 20;  // only for files that can't be mapped: the first 1000 are
  int bloom_bits_per_row = 10;                 // 0: none
};

class LevelDbTier final : public Tier {
 public:
  static constexpr uint64_t kSlots = uint64_t{RowRef::kMaxSlots} + 1;

  // Makes the database at the directory `path`, or empties one that a process left when it died. Throws
  // Error(kMissingLibrary), or Error(kStorage), which names `path`: another tier has it open; there is
  // something else; it was kept and isn't reopened; or it is reopened and has another format or layout.
  LevelDbTier(const RowLayout& layout, std::string path, const LevelDbOptions& options = {});
  ~LevelDbTier() override;
  LevelDbTier(const LevelDbTier&) = delete;
  LevelDbTier& operator=(const LevelDbTier&) = delete;

  void write(const RowBatch& rows, std::span<Slot> slots) override;
  // A place without a record yields a row whose header has another key than the place. That is
  // an erased row, unless something still refers to the place: then the database lost it.
  void read_rows(std::span<const Place> places, RowPart part, RowBatch& rows,
                 std::vector<DamagedRow>& damaged) const override;
  uint64_t reused_places() const override { return reused_places_.load(std::memory_order_acquire); }
  // Takes note, no more: the records are deleted by the next write(), drain(), or compact() that finds many.
  // 16 bytes a place until then.
  void erase(std::span<const Place> places) override;
  TierStats stats() const override;

  void compact() override;
  // Deletes the records of every row erased so far.
  void drain() override;
  uint64_t waiting_erasures() const;

  // The rows as they were when the scan began, by ascending key. Lives no longer than the tier.
  class Scan;
  Scan scan();

 private:
  template <class Object>
  using Owned = LevelDbOwned<Object>;
  struct Value {
    Owned<char> data;
    size_t size;
  };
  struct Handles;
  struct FormatRecord;

  void start_empty();
  void reopen();
  bool has_database() const;
  void open_database(bool make);
  void close_database() noexcept;
  FormatRecord read_format() const;
  void write_format();
  void drop_older_records();

  // Deletes the records of all rows erased so far, then writes `puts` unless it's null.
  // REQUIRES: write_mutex_ is held.
  void delete_erased_then(LevelDbLibrary::WriteBatch* puts);
  void write_batch(LevelDbLibrary::WriteBatch* batch);
  Owned<LevelDbLibrary::WriteBatch> make_batch() const;
  std::optional<Value> get(std::string_view key) const;
  // Returns the sequence number; throws where the value is not that of `place`, whole.
  uint64_t decode(const Place& place, std::string_view value, RowHeader& header, float* floats) const;
  // Throws where `error`, which is freed, isn't null.
  void check(char* error, const char* what) const;
  [[noreturn]] void fail(const std::string& what) const;

  const LevelDbLibrary& calls_;
  const RowLayout layout_;
  const std::string path_;
  const LevelDbOptions options_;
  const size_t value_bytes_;
  const std::unique_ptr<Handles> handles_;
  LevelDbLibrary::Database* database_ = nullptr;

  std::atomic<uint64_t> rows_{0};
  std::atomic<uint64_t> reused_places_{0};

  // Held over a write: a slot's erased row is deleted before the slot comes again.
  std::mutex write_mutex_;
  uint64_t next_sequence_ = 0;  // guarded by write_mutex_

  mutable std::mutex mutex_;   // the innermost lock: never held over a call of the library
  std::vector<Place> erased_;  // guarded by mutex_; not deleted yet
};

class LevelDbTier::Scan {
 public:
  // Fills both with the next `max_rows` rows, or fewer at the end; false: there are none left. A row
  // that was erased since the scan began may be among them.
  bool next(size_t max_rows, RowBatch& rows, std::vector<Place>& places) {
    return next(max_rows, rows, places, nullptr);
  }

 private:
  friend class LevelDbTier;
  explicit Scan(const LevelDbTier& tier);
  bool next(size_t max_rows, RowBatch& rows, std::vector<Place>& places, std::vector<uint64_t>* sequences);

  const LevelDbTier& tier_;
  Owned<LevelDbLibrary::Iterator> iterator_;
};

}  // namespace embstore
