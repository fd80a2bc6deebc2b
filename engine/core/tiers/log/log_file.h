// One file of the log, which of its records are live, and which checkpoints need.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "files/file.h"
#include "tiers/log/row_bits.h"
#include "tiers/medium/mapping.h"

namespace embstore::log {

// Its records are numbered from 0; record r of the file with index i has the slot i * (records a file) + r.
class LogFile {
 public:
  LogFile(std::unique_ptr<files::File> file, uint64_t file_number, uint32_t file_index,
          uint32_t record_capacity)
      : number(file_number),
        index(file_index),
        capacity(record_capacity),
        current_(file.get()),
        live_(record_capacity) {
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

  bool is_live(uint32_t record) const { return live_.contains(record); }
  void set_live(uint32_t record) {
    live_.add(record);
    live_rows_.fetch_add(1, std::memory_order_release);
  }
  // False where the record wasn't live.
  bool clear_live(uint32_t record) {
    if (!live_.remove(record)) return false;
    live_rows_.fetch_sub(1, std::memory_order_acq_rel);
    return true;
  }
  uint32_t live_rows() const { return live_rows_.load(std::memory_order_acquire); }

  // Checkpoint `number` needs what is live now: the file stays until it's let go of. These four under the log's lock.
  void hold_live_rows(uint64_t checkpoint) { hold(checkpoint, live_.copy(records)); }
  void hold(uint64_t checkpoint, RowWords rows) {
    held_.insert_or_assign(checkpoint, std::move(rows));
    is_held_.store(true, std::memory_order_release);
  }
  void let_go(uint64_t checkpoint) noexcept {
    held_.erase(checkpoint);
    is_held_.store(!held_.empty(), std::memory_order_release);
  }
  const std::map<uint64_t, RowWords>& held() const { return held_; }  // by checkpoint
  // By any checkpoint. Without a lock.
  bool is_held() const { return is_held_.load(std::memory_order_acquire); }
  // REQUIRES: nothing is live.
  void make_live(const RowWords& rows) {
    live_.assign(rows);
    live_rows_.store(static_cast<uint32_t>(count_rows(rows)), std::memory_order_release);
  }

  // For up to `bytes`, of which the file may have fewer yet.
  void map(uint64_t bytes) {
    mapping_owner_ = std::make_unique<medium::Mapping>(file(), bytes);
    mapping_.store(mapping_owner_.get(), std::memory_order_release);
  }
  // Null where rows aren't to be read from one.
  const medium::Mapping* mapping() const { return mapping_.load(std::memory_order_acquire); }

  // Stored under the log's lock.
  std::atomic<uint64_t> mapped_bytes{0};   // of the mapping; they are all written, and stay as they are
  std::atomic<uint32_t> records{0};        // whose numbers were given
  std::atomic<uint64_t> written_bytes{0};  // of the file, header included
  std::atomic<bool> sealed{false};         // nothing is appended any more

 private:
  std::vector<std::unique_ptr<files::File>> versions_;  // the last is the current one
  std::atomic<files::File*> current_;
  RowBits live_;
  std::atomic<uint32_t> live_rows_{0};
  std::map<uint64_t, RowWords> held_;
  std::atomic<bool> is_held_{false};
  std::unique_ptr<const medium::Mapping> mapping_owner_;
  std::atomic<const medium::Mapping*> mapping_{nullptr};
};

}  // namespace embstore::log
