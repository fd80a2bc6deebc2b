// Measures how fast a memory is, by kind of access, size and threads: the figures of device files.
#pragma once

#include <cstddef>
#include <string>

namespace embstore {

enum class MemoryOperation {
  kLoad,
  kStore,          // left to the caches to write back
  kStoreFlushed,   // each line written back by clwb; a fence per access
  kStoreStreamed,  // past the caches; a fence per access
};

// Memory whose pages were all written. For one caller at a time.
class MemoryYardstick {
 public:
  // Takes memory of this NUMA node alone, or of any node if `node` is below 0. Throws Error(kMissingDevice)
  // if there is no such node, and Error(kStorage) if it has too little memory.
  MemoryYardstick(size_t bytes, int node);
  // Maps a file that is created in `directory`, and unlinked at once.
  MemoryYardstick(size_t bytes, const std::string& directory);
  ~MemoryYardstick();
  MemoryYardstick(const MemoryYardstick&) = delete;
  MemoryYardstick& operator=(const MemoryYardstick&) = delete;

  // Returns whether flushed stores are durable in the file (MAP_SYNC), which then lies on a dax mount.
  bool is_synced() const { return is_synced_; }

  // Returns MB (10^6 bytes) per second of all threads together, each of which has a processor. With `random`
  // each access starts anywhere; otherwise each thread goes through a part of its own. Throws
  // Error(kInvalidArgument) for accesses that aren't whole lines or don't fit, and Error(kMissingDevice) if
  // the processor has no clwb.
  double mb_per_s(MemoryOperation operation, bool random, size_t access_bytes, int threads,
                  double seconds) const;

  // Returns the nanoseconds of a load that depends on the previous load.
  double latency_ns(bool random, double seconds) const;

 private:
  void back_pages() const;

  const size_t bytes_;
  bool is_synced_ = false;
  std::byte* data_ = nullptr;
};

}  // namespace embstore
