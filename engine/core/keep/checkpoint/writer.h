// Writes one row file of a checkpoint: the rows of one partition of a variable, as they come.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "keep/checkpoint/block_output.h"
#include "keep/checkpoint/format.h"
#include "row/row_batch.h"
#include "row/row_layout.h"

namespace embstore::checkpoint {

// The default identity is that of a whole table.
struct FileIdentity {
  SaveId save_id = {};
  uint32_t partition = 0;
  uint32_t partition_count = 1;
  bool incremental = false;
};

// The record of a file in a manifest.
struct FileSummary {
  uint64_t size_bytes;
  uint32_t checksum;  // CRC-32C of the file's header and its blocks' headers, which guard the rest
  Totals totals;
};

// Throws Error(kStorage), which names the file, if the operating system refuses something. The file is then
// unfinished, and the caller that made it removes it: a retry takes a new Writer and a new file. Takes memory
// for a few blocks.
class Writer {
 public:
  // Creates the file, which must not exist.
  Writer(std::string path, const RowLayout& layout, const FileIdentity& identity,
         files::FileCalls& calls = files::system_file_calls());
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  bool incremental() const { return incremental_; }
  // The first of all partitions' files has what they have in common.
  bool is_first() const { return is_first_; }

  // REQUIRES: nothing was added yet.
  void add_initial_rows(std::span<const float> values);
  // Returns how many rows, at least one, add_row() takes now without waiting for the medium. Throws
  // Error(kStorage) after give_up().
  size_t make_room_for_rows();
  void add_row(const RowHeader& header, const float* row);
  void add_removed_key(int64_t key);
  void add_waiting_key(const WaitingKeyRecord& waiting);
  void add_sketch(const SketchHeader& header, std::span<const std::byte> counters);

  // Ends the file and returns when the medium has it.
  FileSummary finish();
  // Has all threads that add rows fail from now on.
  void give_up() { is_given_up_.store(true, std::memory_order_relaxed); }

 private:
  // Returns room for `bytes` more in the block of `kind` that is being filled.
  std::byte* extend(BlockKind kind, size_t bytes);
  void flush();

  const RowLayout layout_;
  const bool incremental_;
  const bool is_first_;
  BlockOutput output_;
  std::unique_ptr<Block> block_;  // the block that is being filled; null: none was begun
  Totals totals_{};
  std::atomic<bool> is_given_up_{false};
};

}  // namespace embstore::checkpoint
