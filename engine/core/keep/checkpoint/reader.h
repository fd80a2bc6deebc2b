// Reads one row file of a checkpoint, and trusts nothing in it that isn't guarded by a checksum.
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

namespace embstore::checkpoint {

// Throws Error(kCheckpoint), which names the file, where it isn't what a Writer finished: truncated, damaged,
// of another format or version; and Error(kStorage) where it can't be read. Memory: one block.
class Reader {
 public:
  explicit Reader(std::string path, files::FileCalls& calls = files::system_file_calls());
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const std::string& path() const { return file_.path(); }
  const FileHeader& header() const { return header_; }
  // It has no more rows than that.
  uint64_t most_rows() const { return size_bytes_ / header_.record_bytes; }

  struct Block {
    BlockKind kind;
    uint32_t count;
    std::span<const std::byte> payload;  // until the next call
  };
  // What the next block has, which isn't checked yet; kEnd where there is none.
  BlockKind next_kind() const;
  // The next block; nothing after the last, once it is sure that the file ends as it should.
  std::optional<Block> next();

  // Visits one row of every `step` of the file's, without checking it.
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

  // REQUIRES: next() has returned nothing.
  FileSummary summary() const { return {offset_, checksum_, found_}; }

 private:
  void read_header();
  void check_block(const BlockHeader& block) const;
  void count(const BlockHeader& block);
  // Fills `bytes` at `data`, or says that the file is truncated.
  void read(void* data, size_t bytes);
  [[noreturn]] void damaged(const std::string& what) const;
  [[noreturn]] void truncated() const;

  const files::File file_;
  const uint64_t size_bytes_;
  FileHeader header_{};

  uint64_t offset_ = 0;
  uint64_t blocks_ = 0;
  uint32_t checksum_ = 0;
  Totals found_{};
  bool ended_ = false;
  std::vector<std::byte> payload_;
};

}  // namespace embstore::checkpoint
