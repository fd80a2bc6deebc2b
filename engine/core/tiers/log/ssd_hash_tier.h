// A tier of rows in log-structured files of fixed-size records.
//
// Rows are appended to one log, gathered in a buffer that is written in whole blocks (record_log.h). A row is
// read by its place alone (row_reader.h): the index that maps keys to places belongs to the table. Compaction
// gets back the space of rows that were rewritten or erased (compaction.h). For checkpoints, a file is an
// extent.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tiers/log/compaction.h"
#include "tiers/log/durable_tier.h"
#include "tiers/log/identity.h"
#include "tiers/log/log_directory.h"
#include "tiers/log/record_log.h"
#include "tiers/log/row_reader.h"
#include "tiers/log/ssd_hash_options.h"
#include "tiers/tier.h"

namespace embstore {

struct SsdHashStats {
  std::string io_scheme;         // "io_uring" or "pread"
  std::string io_scheme_reason;  // why `auto` chose pread; else empty
  bool direct;
  uint64_t live_rows;
  uint64_t record_bytes;  // bytes of one row with its header
  uint64_t files;
  uint64_t file_bytes;
  uint64_t file_bytes_peak;  // the most that the files ever took
  uint64_t bytes_written;    // to files, for any reason
  uint64_t mapped_rows;      // rows read from mapped pages
  uint64_t read_requests;    // to files; neighbours are read together
  uint64_t compacted_files;
  uint64_t damaged_records;      // live records seen by compaction; counted again each time they move
  std::string compaction_error;  // why a file can't be compacted, or the last run ended; else empty
  uint64_t rewritten_files;      // because the medium refused what was written to them
  uint64_t lost_records;         // live records that couldn't be read back for that
  uint64_t held_bytes;           // bytes of files kept only for checkpoints
};

// Thread-safe except for the constructor, adopt_kept(), restore(), start_compaction() and close(), which only
// the owner calls.
class SsdHashTier final : public Tier, public DurableTier {
 public:
  // Takes `directory` (created if missing) for itself alone; each tier has its own. Files that a process
  // without checkpoints left there are removed; if checkpoints are kept, everything stays as it is until
  // adopt_kept(). Throws Error(kInvalidArgument) for invalid options or names, and for another variable's
  // files; Error(kStorage) if the directory can't be used, if it holds files of another program or version,
  // or of a table that keeps checkpoints while this one doesn't, and if the requested I/O scheme isn't
  // available; InUseError.
  SsdHashTier(log::TableIdentity table, std::string directory, const SsdHashOptions& options = {});
  ~SsdHashTier() override;

  // Throws if the medium refuses the rows. A problem that keeps compaction from other files is no error here.
  void write(const RowBatch& rows, std::span<Slot> slots) override;
  void read_rows(RowBatch& rows, RowPart part) const override;
  uint64_t reused_places() const override { return log_.reused_indexes(); }
  // Only marks the records: safe and cheap under the index's locks. compact() gets the space back.
  void erase(std::span<const Place> places) override { log_.erase(places); }
  TierStats stats() const override;
  // The tier keeps the number of the accesses that are counted here, as long as it fits 32 bits, but not the
  // time of the last one. Checkpoints keep neither.
  void prefetch_rank(Slot slot) const override { log_.served().prefetch(slot); }
  void update_rank(Slot slot, RowHeader& header) const override;
  bool try_set_rank(Slot slot, const RowHeader& header) override;
  bool can_set_ranks() const override { return true; }
  void carry_rank(Slot from, Slot to) override { log_.served().set(to, log_.served().count_of(from)); }
  bool rank_is_volatile(Slot slot) const override { return log_.served().count_of(slot) != 0; }

  // --- DurableTier, if checkpoints are kept; else every call but drop_checkpoint() throws
  // Error(kInvalidArgument). The files take at most twice the live records, the buffer, and what checkpoints
  // hold: all of each file with a record that one of them needs.
  void adopt_kept(std::span<const TierRows> kept) override;
  // Writes out the buffer. Waits for copies of compaction that are under way, so it also REQUIRES: no lock is
  // held that relocate() takes.
  void begin_checkpoint(uint64_t number) override;
  // Hardly delays other threads: waits for the medium without a lock.
  std::vector<ExtentRows> make_durable(uint64_t number) override;
  // Removes files that nothing needs any more, and moves no rows.
  void drop_checkpoint(uint64_t number) noexcept override;
  // Checks every record's header. Damage to the floats is reported when the row is read.
  void restore(uint64_t number, int threads, const Restored& visit) override;

  // Lets the tier move rows from now on; nothing is compacted before. `relocator` must live until close().
  void start_compaction(Relocator& relocator) override;

  // Called after erasures, without locks: brings the files within their bound, or wakes the tier's own thread
  // to do so. Costs two loads if there is nothing to do, and throws nothing: stats() and drain() report
  // errors. write() does the same for itself.
  void compact() override;

  // Returns when the files are within their bound. Throws Error(kStorage) for files that can't be brought
  // there, once each, after all other files are done.
  void drain() override;

  // Removes the files, except those that checkpoints need; removes none before adopt_kept(). Throws
  // Error(kStorage) if that fails, and may be called again. Later calls of other methods throw
  // Error(kClosed).
  void close() override;

  SsdHashStats detailed_stats() const;

 private:
  void check_open() const;
  void check_usable() const;
  void check_keeps_checkpoints() const;

  log::LogShape shape_;  // constant from adopt_kept() on
  const log::RowReader reader_;
  log::LogDirectory directory_;
  log::LogDirectory::Leftovers found_;  // until adopt_kept(), or until they are removed
  log::RecordLog log_;
  log::Compaction compaction_;
  std::atomic<bool> is_ready_{false};
  std::atomic<bool> directory_is_on_medium_{false};  // the directory's own name
  std::atomic<bool> closed_{false};
};

}  // namespace embstore
