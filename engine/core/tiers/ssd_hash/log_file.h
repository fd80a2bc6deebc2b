// One file of the log, and which of its records are live.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "files/file.h"
#include "tiers/ssd_hash/mapping.h"
#include "tiers/ssd_hash/record_bits.h"

namespace embstore::ssd_hash {

// Its records are numbered from 0; record r of the file with index i has the slot i * (records a file) + r.
class LogFile {
 public:
  LogFile(std::unique_ptr<files::File> file, uint64_t file_number, uint32_t file_index,
          uint32_t record_capacity)
      : number(file_number),
        index(file_index),
        capacity(record_capacity),
        current_(file.get()),
        live_bits_(bit_words(record_capacity)) {
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

  bool is_live(uint32_t record) const {
    return (live_bits_[record / 64].load(std::memory_order_acquire) >> (record % 64) & 1) != 0;
  }
  void set_live(uint32_t record) {
    live_bits_[record / 64].fetch_or(uint64_t{1} << (record % 64), std::memory_order_release);
    live_rows_.fetch_add(1, std::memory_order_release);
  }
  // False where the record wasn't live.
  bool clear_live(uint32_t record) {
    const uint64_t bit = uint64_t{1} << (record % 64);
    if ((live_bits_[record / 64].fetch_and(~bit, std::memory_order_acq_rel) & bit) == 0) return false;
    live_rows_.fetch_sub(1, std::memory_order_acq_rel);
    return true;
  }
  uint32_t live_rows() const { return live_rows_.load(std::memory_order_acquire); }
  // Of the first so many records. REQUIRES: none comes or goes meanwhile.
  RecordBits live_records(uint32_t count) const {
    RecordBits bits(bit_words(count));
    for (size_t word = 0; word < bits.size(); ++word) {
      bits[word] = live_bits_[word].load(std::memory_order_acquire);
    }
    return bits;
  }
  // REQUIRES: none is live.
  void make_live(const RecordBits& bits) {
    for (size_t word = 0; word < bits.size(); ++word) {
      live_bits_[word].store(bits[word], std::memory_order_release);
    }
    live_rows_.store(count_records(bits), std::memory_order_release);
  }

  // A checkpoint needs these records: the file stays until it's let go of. Under the log's lock.
  void reserve_hold() { held_.reserve(held_.size() + 1); }
  void hold(std::shared_ptr<const RecordBits> needed) noexcept {  // REQUIRES: reserve_hold()
    held_.push_back(std::move(needed));
    is_held_.store(true, std::memory_order_release);
  }
  void let_go(const std::shared_ptr<const RecordBits>& needed) noexcept {
    const auto found = std::find(held_.begin(), held_.end(), needed);
    if (found == held_.end()) return;
    held_.erase(found);
    is_held_.store(!held_.empty(), std::memory_order_release);
  }
  bool is_needed(uint32_t record) const {
    return std::any_of(held_.begin(), held_.end(),
                       [record](const auto& needed) { return has_record(*needed, record); });
  }
  // By any checkpoint. Without a lock.
  bool is_held() const { return is_held_.load(std::memory_order_acquire); }

  // For up to `bytes`, of which the file may have fewer yet.
  void map(uint64_t bytes) {
    mapping_owner_ = std::make_unique<Mapping>(file(), bytes);
    mapping_.store(mapping_owner_.get(), std::memory_order_release);
  }
  // Null where rows aren't to be read from one.
  const Mapping* mapping() const { return mapping_.load(std::memory_order_acquire); }

  // Stored under the log's lock.
  std::atomic<uint64_t> mapped_bytes{0};   // of the mapping; they are all written, and stay as they are
  std::atomic<uint32_t> records{0};        // appended
  std::atomic<uint64_t> written_bytes{0};  // of the file, header included
  std::atomic<bool> sealed{false};         // nothing is appended any more, and the header says so

 private:
  std::vector<std::unique_ptr<files::File>> versions_;  // the last is the current one
  std::atomic<files::File*> current_;
  std::vector<std::atomic<uint64_t>> live_bits_;
  std::atomic<uint32_t> live_rows_{0};
  std::vector<std::shared_ptr<const RecordBits>> held_;
  std::atomic<bool> is_held_{false};
  std::unique_ptr<const Mapping> mapping_owner_;
  std::atomic<const Mapping*> mapping_{nullptr};
};

}  // namespace embstore::ssd_hash
