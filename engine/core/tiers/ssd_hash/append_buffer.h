// Records that are being gathered for the end of one file, and the memory that they are gathered in.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "threads/mutex.h"
#include "tiers/ssd_hash/aligned_bytes.h"
#include "tiers/ssd_hash/log_file.h"

namespace embstore::ssd_hash {

// Memory of buffers that no reader is in any more, for the next ones: fresh pages are slow.
class BufferMemory {
 public:
  explicit BufferMemory(size_t buffer_bytes) : buffer_bytes_(buffer_bytes) {}
  AlignedBytes take() {
    {
      const MutexLock lock(mutex_);
      if (!spare_.empty()) {
        AlignedBytes bytes = std::move(spare_.back());
        spare_.pop_back();
        return bytes;
      }
    }
    return AlignedBytes(buffer_bytes_);
  }
  void give_back(AlignedBytes bytes) {
    const MutexLock lock(mutex_);
    if (spare_.size() < kMaxSpare) spare_.push_back(std::move(bytes));
  }

 private:
  static constexpr size_t kMaxSpare = 2;
  const size_t buffer_bytes_;
  Mutex mutex_;
  std::vector<AlignedBytes> spare_ GUARDED_BY(mutex_);
};

// Laid out as in the file, from base_offset on, so that whole blocks go out as they are.
struct AppendBuffer {
  AppendBuffer(std::shared_ptr<BufferMemory> memory, std::shared_ptr<LogFile> log_file)
      : pool(std::move(memory)), file(std::move(log_file)), bytes(pool->take()) {}
  ~AppendBuffer() { pool->give_back(std::move(bytes)); }
  AppendBuffer(const AppendBuffer&) = delete;
  AppendBuffer& operator=(const AppendBuffer&) = delete;

  bool full() const { return count.load(std::memory_order_relaxed) == capacity; }
  std::byte* at_offset(uint64_t file_offset) const { return bytes.data() + (file_offset - base_offset); }

  const std::shared_ptr<BufferMemory> pool;
  const std::shared_ptr<LogFile> file;
  AlignedBytes bytes;
  uint64_t base_offset = 0;        // in the file; a whole number of blocks
  uint32_t first_record = 0;       // of the file
  uint32_t capacity = 0;           // records, from first_record on
  std::atomic<uint32_t> count{0};  // records whose numbers were given; stored under the log's lock
};

}  // namespace embstore::ssd_hash
