// Reads one row file of a checkpoint, and trusts only what a checksum guards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "files/file.h"
#include "keep/checkpoint/format.h"
#include "keep/checkpoint/writer.h"
#include "threads/mutex.h"

namespace embstore::checkpoint {

// Throws Error(kCheckpoint), which names the file, if the file isn't what a Writer finished: truncated,
// damaged, or of another format or version; and Error(kStorage) if it can't be read. Takes memory for one
// block. For one thread at a time, except next(payload).
class Reader {
 public:
  explicit Reader(std::string path, files::FileCalls& calls = files::system_file_calls());
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const std::string& path() const { return file_.path(); }
  const FileHeader& header() const { return header_; }
  uint64_t size_bytes() const { return size_bytes_; }
  // An upper bound of the number of rows.
  uint64_t max_rows() const { return size_bytes_ / header_.record_bytes; }

  struct Block {
    BlockKind kind;
    uint32_t count;
    uint64_t number;                     // of the block in the file, from 0
    std::span<const std::byte> payload;  // valid until the next call
  };
  // Returns how many blocks were given out.
  uint64_t passed_blocks() const {
    const MutexLock lock(mutex_);
    return blocks_;
  }
  // Returns the kind in the next block's header, which isn't checked yet; kEnd if there is none.
  BlockKind next_kind() const;
  // Returns the next block; nothing after the last, once it is sure that the file ends as it should.
  std::optional<Block> next() { return next(payload_); }
  // The same for several threads at once: each gets blocks that no other thread gets, and reads and checks
  // them in memory of its own.
  std::optional<Block> next(std::vector<std::byte>& payload);

  // Visits one of every `step` rows of the file, without checking it.
  template <class Visit>
  void sample_rows(size_t step, Visit visit_row) const {
    size_t row = 0;  // of the next block
    for (uint64_t at = sizeof(FileHeader);;) {
      BlockHeader block;
      if (file_.read_at(&block, sizeof block, at) < sizeof block || block.kind == kEnd) return;
      at += sizeof block;
      for (; block.kind == kRows && row < block.count; row += step) {
        RowRecord record;
        if (file_.read_at(&record, sizeof record, at + row * header_.record_bytes) < sizeof record) return;
        visit_row(record);
      }
      if (block.kind == kRows) row -= block.count;
      at += block.payload_bytes;
    }
  }

  // REQUIRES: next() has returned nothing to every thread.
  FileSummary summary() const {
    const MutexLock lock(mutex_);
    return {offset_, checksum_, found_};
  }

 private:
  void read_header();
  // Returns the header of the next block, and moves past that block; nothing if the file has ended.
  std::optional<BlockHeader> pass_block() REQUIRES(mutex_);
  void check_block(const BlockHeader& block) const;
  void count(const BlockHeader& block) REQUIRES(mutex_);
  void check_end(const BlockHeader& block) REQUIRES(mutex_);
  // Reads and checks the payload of the block that begins at byte `start`.
  void read_payload(const BlockHeader& block, uint64_t start, void* payload) const;
  // Fills `bytes` at `data`, or throws that the file is truncated.
  void read(void* data, size_t bytes, uint64_t offset) const;
  [[noreturn]] void damaged(const std::string& what) const;
  [[noreturn]] void truncated() const;

  const files::File file_;
  const uint64_t size_bytes_;
  FileHeader header_{};

  mutable Mutex mutex_;
  uint64_t offset_ GUARDED_BY(mutex_) = 0;  // of the next block
  uint64_t blocks_ GUARDED_BY(mutex_) = 0;
  uint32_t checksum_ GUARDED_BY(mutex_) = 0;
  Totals found_ GUARDED_BY(mutex_){};
  bool ended_ GUARDED_BY(mutex_) = false;
  std::vector<std::byte> payload_;
};

}  // namespace embstore::checkpoint
