// The buffer that gathers records for the end of one file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "threads/spares.h"
#include "tiers/log/log_file.h"
#include "tiers/medium/aligned_bytes.h"

namespace embstore::log {

// Laid out as in the file, from base_offset on, so that whole blocks are written as they are.
struct AppendBuffer {
  // The memory of buffers that no reader uses any more.
  using SpareMemory = Spares<medium::AlignedBytes>;

  AppendBuffer(std::shared_ptr<SpareMemory> memory, size_t buffer_bytes, std::shared_ptr<LogFile> log_file)
      : spare(std::move(memory)),
        file(std::move(log_file)),
        bytes(spare->take_or([buffer_bytes] { return medium::AlignedBytes(buffer_bytes); })) {}
  ~AppendBuffer() { spare->give_back(std::move(bytes)); }
  AppendBuffer(const AppendBuffer&) = delete;
  AppendBuffer& operator=(const AppendBuffer&) = delete;

  bool full() const { return count.load(std::memory_order_relaxed) == capacity; }
  std::byte* at_offset(uint64_t file_offset) const { return bytes.data() + (file_offset - base_offset); }

  const std::shared_ptr<SpareMemory> spare;
  const std::shared_ptr<LogFile> file;
  medium::AlignedBytes bytes;
  uint64_t base_offset = 0;        // in the file; a multiple of the block size
  uint32_t first_record = 0;       // record number in the file
  uint32_t capacity = 0;           // in records, from first_record on
  std::atomic<uint32_t> count{0};  // records with a number; stored under the log's lock
};

}  // namespace embstore::log
