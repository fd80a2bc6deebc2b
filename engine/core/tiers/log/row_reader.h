// Reads rows by their places: from the buffer, from mapped files, and by system calls, which read neighbours
// together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "row/place.h"
#include "row/row_batch.h"
#include "threads/spares.h"
#include "tiers/log/record_log.h"
#include "tiers/log/record_scan.h"
#include "tiers/medium/batch_reader.h"
#include "tiers/medium/guarded_copy.h"
#include "tiers/tier.h"

namespace embstore::log {

class RowReader {
 public:
  // Throws Error(kStorage) if the requested I/O scheme isn't available.
  explicit RowReader(const LogShape& shape);
  ~RowReader();
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // Fills `rows` as Tier::read_rows() says, as far as `seen` has them.
  void read(const LogView& seen, RowBatch& rows, RowPart part) const;

  medium::IoScheme scheme() const { return scheme_; }  // the one in use, never kAuto
  const std::string& scheme_reason() const { return scheme_reason_; }
  uint64_t mapped_rows() const { return mapped_rows_.load(std::memory_order_relaxed); }
  uint64_t read_requests() const { return read_requests_.load(std::memory_order_relaxed); }

 private:
  struct Scratch;
  struct Batch;  // the arguments of one read()
  struct MappedCopy;

  // Copies the rows in the buffer, and sorts the others into mapped ones and ones to read. Returns false if
  // none is mapped.
  bool sort_places(const Batch& batch, Scratch& scratch) const;
  // Copies the mapped rows. Those that aren't whole, or lie in a file with unreadable pages, become ones to
  // read.
  void copy_mapped(const Batch& batch, Scratch& scratch) const;
  static void copy_mapped_guarded(void* mapped_copy, medium::GuardedRange& range);
  void read_files(const Batch& batch, Scratch& scratch) const;
  // Makes requests for the rows from `next` on, as many as there is memory for; returns the first row that
  // isn't among them.
  size_t make_requests(const Batch& batch, Scratch& scratch, size_t next) const;
  void take_rows(const Batch& batch, const Scratch& scratch, size_t request) const;
  void take_row_alone(const Batch& batch, uint64_t slot_and_row) const;

  // Copies a record into the batch if it's whole; else returns false.
  bool copy_if_whole(const Batch& batch, const std::byte* bytes, size_t row) const;
  void take_row(const Batch& batch, const LogFile& file, const ScannedRecord& record, size_t row) const;

  const LogShape& shape_;
  const medium::IoScheme scheme_;
  const std::string scheme_reason_;

  mutable Spares<std::unique_ptr<Scratch>> idle_scratch_;

  mutable std::atomic<uint64_t> mapped_rows_{0};
  mutable std::atomic<uint64_t> read_requests_{0};
};

}  // namespace embstore::log
