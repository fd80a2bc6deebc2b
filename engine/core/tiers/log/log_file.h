// One file of the log, and what refers to its records.
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

// Its records are numbered from 0; record r of the file with index i has the slot i * (records a file) + r.
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

  const uint64_t number;    // of the order in which the files were begun
  const uint32_t index;     // of its slots
  const uint32_t capacity;  // records

  files::File& file() const { return *current_.load(std::memory_order_acquire); }
  // Another file with the same bytes takes this one's place; readers may still be in the old one, and in its
  // mapping. Under the log's lock.
  void replace_file(std::unique_ptr<files::File> file) {
    current_.store(file.get(), std::memory_order_release);
    versions_.push_back(std::move(file));
    mapping_.store(nullptr, std::memory_order_release);
  }

  // For up to `bytes`, of which the file may have fewer yet.
  void map(uint64_t bytes) {
    mapping_owner_ = std::make_unique<medium::Mapping>(file(), bytes);
    mapping_.store(mapping_owner_.get(), std::memory_order_release);
  }
  // Null where rows aren't to be read from one.
  const medium::Mapping* mapping() const { return mapping_.load(std::memory_order_acquire); }

  // Checkpoints begin and are dropped under the log's lock. The file stays while any has it.
  RecordReferences rows;
  // Stored under the log's lock.
  std::atomic<uint64_t> mapped_bytes{0};   // of the mapping; they are all written, and stay as they are
  std::atomic<uint32_t> records{0};        // whose numbers were given
  std::atomic<uint64_t> written_bytes{0};  // of the file, header included
  std::atomic<bool> sealed{false};         // nothing is appended any more

 private:
  std::vector<std::unique_ptr<files::File>> versions_;  // the last is the current one
  std::atomic<files::File*> current_;
  std::unique_ptr<const medium::Mapping> mapping_owner_;
  std::atomic<const medium::Mapping*> mapping_{nullptr};
};

}  // namespace embstore::log
