// Rows in log-structured files of fixed-size records.
//
// Rows are appended to one log, gathered in a buffer that goes out in whole blocks (log.h). A row is read by
// its place alone (row_reader.h): the index that says where a key is belongs to the table. Compaction gets the
// space back that rows leave which were written anew or erased (compaction.h). To a checkpoint a file is an extent.
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
  std::string io_scheme_reason;  // why `auto` came to pread; else empty
  bool direct;
  uint64_t live_rows;
  uint64_t record_bytes;  // of one row with its header
  uint64_t files;
  uint64_t file_bytes;
  uint64_t file_bytes_peak;  // the most that the files ever took
  uint64_t bytes_written;    // to files, by whatever cause
  uint64_t mapped_rows;      // read from the page cache's pages
  uint64_t read_requests;    // to files, neighbours being read at once
  uint64_t compacted_files;
  uint64_t damaged_records;      // live ones, seen by compaction; again each time that they move
  std::string compaction_error;  // what keeps it from a file, or ended it; empty once it went well
  uint64_t rewritten_files;      // since the medium refused what was written to them
  uint64_t lost_records;         // live ones, that couldn't be read back then
  uint64_t held_bytes;           // of files that are there for checkpoints alone
};

// Thread-safe but for the constructor, take_up(), restore(), start_compaction() and close(), which are the owner's.
class SsdHashTier final : public Tier, public DurableTier {
 public:
  // Takes `directory` (made where it is missing) for itself alone; each tier has its own. What a process left there that
  // kept no checkpoints is removed; where checkpoints are kept, everything stays as it is until take_up().
  // Throws Error(kInvalidArgument) for options or names that make no sense, and for another variable's files;
  // Error(kStorage) where the directory can't be used or holds files of another program or version, or of a table
  // that keeps checkpoints where this doesn't, and where the I/O that is asked for can't be had; InUseError.
  SsdHashTier(log::TableIdentity table, std::string directory, const SsdHashOptions& options = {});
  ~SsdHashTier() override;

  // Throws where the medium refuses the rows. What keeps compaction from other files is no error here.
  void write(const RowBatch& rows, std::span<Slot> slots) override;
  void read_rows(RowBatch& rows, RowPart part) const override;
  uint64_t reused_places() const override { return log_.reused_indexes(); }
  // Only counts: safe and cheap under the index's locks. The space comes back by compact().
  void erase(std::span<const Place> places) override { log_.erase(places); }
  TierStats stats() const override;
  // Of accesses that are counted here their number is kept, as long as it fits 32 bits, and not the time of the last.
  // Checkpoints keep neither.
  void prefetch_rank(Slot slot) const override { log_.served().prefetch(slot); }
  void update_rank(Slot slot, RowHeader& header) const override;
  bool try_set_rank(Slot slot, const RowHeader& header) override;
  bool can_set_ranks() const override { return true; }
  void carry_rank(Slot from, Slot to) override { log_.served().set(to, log_.served().of(from)); }
  bool rank_goes_with_process(Slot slot) const override { return log_.served().of(slot) != 0; }

  // --- DurableTier, where checkpoints are kept; elsewhere every call but drop_checkpoint() is an
  // Error(kInvalidArgument). The files take at most twice the live records, the buffer, and what checkpoints hold: all of
  // each file with a record that one of them needs.
  void take_up(std::span<const TierRows> kept) override;
  // Writes out what is gathered. Copies of compaction that are under way are waited for, so REQUIRES besides: no lock is
  // held that relocate() takes.
  void begin_checkpoint(uint64_t number) override;
  // Others are hardly held up: the medium is waited for without a lock.
  std::vector<ExtentRows> bring_to_medium(uint64_t number) override;
  // Removes files that nobody needs any more, and moves no rows.
  void drop_checkpoint(uint64_t number) noexcept override;
  // Every record's header is checked. Damage of its floats is told when the row is read.
  void restore(uint64_t number, int threads, const Restored& visit) override;

  // Rows may be moved from now on. Without it nothing is compacted. `relocator` must stay until close().
  void start_compaction(Relocator& relocator) override;

  // To be called after erasures, without locks: brings the files within their bound, or, with a thread of
  // its own, has that done. Costs two loads where there is nothing to do, and throws nothing: stats() and
  // drain() tell. write() does the same for itself.
  void compact() override;

  // Returns when the files are within their bound. Throws Error(kStorage) for files that can't be brought
  // there, once each; everything else is done, and goes on.
  void drain() override;

  // Removes the files but for those that checkpoints need, or all of which stay if they weren't taken up; throws
  // Error(kStorage) if that fails, and may be called again. Later calls of other methods throw Error(kClosed).
  void close() override;

  SsdHashStats detailed_stats() const;

 private:
  void check_open() const;
  void check_usable() const;
  void check_keeps_checkpoints() const;

  log::LogShape shape_;  // the same from take_up() on
  const log::RowReader reader_;
  log::LogDirectory directory_;
  log::LogDirectory::Leftovers found_;  // until they are taken up or removed
  log::RecordLog log_;
  log::Compaction compaction_;
  std::atomic<bool> is_ready_{false};
  std::atomic<bool> directory_is_on_medium_{false};  // its own name
  std::atomic<bool> closed_{false};
};

}  // namespace embstore
