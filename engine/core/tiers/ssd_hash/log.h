// The parts of the log: a file of records, the buffer that gathers its next records, and what readers see
// of both.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "files/file.h"
#include "tiers/ssd_hash/format.h"
#include "tiers/ssd_hash/mapping.h"
#include "tiers/tier.h"

namespace embstore::ssd_hash {

// Memory that O_DIRECT takes.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes)
      : data_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kBlockBytes}))), size_(bytes) {}
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, std::align_val_t{kBlockBytes}); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_;
};

// Memory of buffers that no reader is in any more, for the next ones: fresh pages are slow.
class BufferMemory {
 public:
  explicit BufferMemory(size_t buffer_bytes) : buffer_bytes_(buffer_bytes) {}
  AlignedBytes take() {
    {
      const std::lock_guard lock(mutex_);
      if (!spare_.empty()) {
        AlignedBytes bytes = std::move(spare_.back());
        spare_.pop_back();
        return bytes;
      }
    }
    return AlignedBytes(buffer_bytes_);
  }
  void give_back(AlignedBytes bytes) {
    const std::lock_guard lock(mutex_);
    if (spare_.size() < kMaxSpare) spare_.push_back(std::move(bytes));
  }

 private:
  static constexpr size_t kMaxSpare = 2;
  const size_t buffer_bytes_;
  std::mutex mutex_;
  std::vector<AlignedBytes> spare_;  // guarded by mutex_
};

// One file. Its records are numbered from 0; record r of the file with index i has the slot
// i * (records a file) + r.
struct LogFile {
  LogFile(FileCalls& calls, const std::string& path, int flags, uint64_t file_number, uint32_t file_index,
          uint32_t record_capacity)
      : file(calls, path, flags),
        number(file_number),
        index(file_index),
        capacity(record_capacity),
        live_bits((record_capacity + 63) / 64) {}

  bool is_live(uint32_t record) const {
    return (live_bits[record / 64].load(std::memory_order_acquire) >> (record % 64) & 1) != 0;
  }
  void set_live(uint32_t record) {
    live_bits[record / 64].fetch_or(uint64_t{1} << (record % 64), std::memory_order_release);
    live_rows.fetch_add(1, std::memory_order_release);
  }
  // False where the record wasn't live.
  bool clear_live(uint32_t record) {
    const uint64_t bit = uint64_t{1} << (record % 64);
    if ((live_bits[record / 64].fetch_and(~bit, std::memory_order_acq_rel) & bit) == 0) return false;
    live_rows.fetch_sub(1, std::memory_order_acq_rel);
    return true;
  }

  // For up to `bytes`, of which the file may have fewer yet.
  void map(uint64_t bytes) {
    mapping_owner = std::make_unique<Mapping>(file, bytes);
    mapping.store(mapping_owner.get(), std::memory_order_release);
  }

  File file;
  const uint64_t number;
  const uint32_t index;
  const uint32_t capacity;  // records
  std::vector<std::atomic<uint64_t>> live_bits;
  std::atomic<uint32_t> live_rows{0};
  std::atomic<const Mapping*> mapping{nullptr};  // null where rows aren't to be read from one
  std::atomic<uint64_t> mapped_bytes{0};         // of it; they are all written, and stay as they are

  // Guarded by the tier's log mutex:
  uint32_t records = 0;        // appended
  uint64_t written_bytes = 0;  // of the file, header included
  std::unique_ptr<const Mapping> mapping_owner;
  bool sealed = false;  // nothing is appended any more, and the header says so

  // Of the one compaction at a time: a damaged row whose key can't be told. The file stays while it's live.
  bool has_stuck_row = false;
};

// Records that are being gathered for the end of one file. They are laid out as in the file, from
// base_offset on, so that whole blocks go out as they are.
struct Buffer {
  Buffer(std::shared_ptr<BufferMemory> memory, std::shared_ptr<LogFile> log_file)
      : pool(std::move(memory)), file(std::move(log_file)), bytes(pool->take()) {}
  ~Buffer() { pool->give_back(std::move(bytes)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool full() const { return count.load(std::memory_order_relaxed) == capacity; }

  const std::shared_ptr<BufferMemory> pool;
  const std::shared_ptr<LogFile> file;
  AlignedBytes bytes;
  uint64_t base_offset = 0;        // in the file; a whole number of blocks
  uint32_t first_record = 0;       // of the file
  uint32_t capacity = 0;           // records, from first_record on
  std::atomic<uint32_t> count{0};  // records that are whole; stored under the log mutex

  // Guarded by the tier's log mutex:
  uint32_t written = 0;     // records that are in the file as well
  uint32_t relocating = 0;  // compactions that may still void records here; it isn't written out meanwhile
};

using Files = std::vector<std::shared_ptr<LogFile>>;  // by index; null where there is none

// What a batch of reads sees. Never changed; the tier replaces it.
struct View {
  std::shared_ptr<const Files> files;
  std::shared_ptr<const Buffer> buffer;  // null where every record is written out
};

}  // namespace embstore::ssd_hash
