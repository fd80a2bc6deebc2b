// One file of the log, and the references to its records.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "files/file.h"
#include "tiers/log/record_references.h"
#include "tiers/medium/mapping.h"

namespace embstore::log {

// Records are numbered from 0; record r of the file with index i has the slot i * (records per file) + r.
class LogFile {
 public:
  LogFile(std::unique_ptr<files::File> file, uint64_t file_number, uint32_t file_index,
          uint32_t record_capacity, RecordReferences::Checkpoints checkpoints)
      : number(file_number),
        index(file_index),
        capacity(record_capacity),
        rows(record_capacity, checkpoints),
        current_(file.get()) {
    versions_.push_back(std::move(file));
  }

  const uint64_t number;    // counts files in the order in which they were begun
  const uint32_t index;     // determines its slots
  const uint32_t capacity;  // in records

  files::File& file() const { return *current_.load(std::memory_order_acquire); }
  // Replaces the file by another one with the same bytes. Readers may still be in the old file and in its
  // mapping. Called under the log's lock.
  void replace_file(std::unique_ptr<files::File> file) {
    current_.store(file.get(), std::memory_order_release);
    versions_.push_back(std::move(file));
    mapping_.store(nullptr, std::memory_order_release);
  }

  // Maps `bytes` bytes; the file may be shorter so far.
  void map(uint64_t bytes) {
    mapping_owner_ = std::make_unique<medium::Mapping>(file(), bytes);
    mapping_.store(mapping_owner_.get(), std::memory_order_release);
  }
  // Returns null if rows aren't to be read from a mapping.
  const medium::Mapping* mapping() const { return mapping_.load(std::memory_order_acquire); }

  // Checkpoints begin and are dropped under the log's lock. The file stays as long as a checkpoint has it.
  RecordReferences rows;
  // Stored under the log's lock.
  std::atomic<uint64_t> mapped_bytes{0};   // of the mapping; all written, and final
  std::atomic<uint32_t> records{0};        // records that have a number
  std::atomic<uint64_t> written_bytes{0};  // of the file, header included
  std::atomic<bool> sealed{false};         // nothing is appended to it any more

 private:
  std::vector<std::unique_ptr<files::File>> versions_;  // the last is the current one
  std::atomic<files::File*> current_;
  std::unique_ptr<const medium::Mapping> mapping_owner_;
  std::atomic<const medium::Mapping*> mapping_{nullptr};
};

}  // namespace embstore::log
