// How fast a memory is, by kind of access, size and threads: what device files say of it.
#pragma once

#include <cstddef>
#include <string>

namespace embstore {

enum class MemoryOperation {
  kLoad,
  kStore,          // left to the caches
  kStoreFlushed,   // each line written back by clwb, then a fence an access
  kStoreStreamed,  // past the caches, then a fence an access
};

// Memory of which every page was written. For one caller at a time.
class MemoryYardstick {
 public:
  // Of this NUMA node alone; of any where `node` is below 0. Throws Error(kMissingDevice) where there is no such
  // node, and Error(kStorage) where it hasn't as much.
  MemoryYardstick(size_t bytes, int node);
  // Of a file that is made in `directory`, and removed from it at once.
  MemoryYardstick(size_t bytes, const std::string& directory);
  ~MemoryYardstick();
  MemoryYardstick(const MemoryYardstick&) = delete;
  MemoryYardstick& operator=(const MemoryYardstick&) = delete;

  // Whether stores that are flushed are durable in the file (MAP_SYNC): it lies on a dax mount.
  bool is_synced() const { return is_synced_; }

  // MB (10^6 bytes) a second of all threads, of which each has a processor. random: each access starts anywhere, else each thread goes through
  // a part of its own. Throws Error(kInvalidArgument) for accesses that are no whole lines or don't fit, and
  // Error(kMissingDevice) where the processor has no clwb.
  double mb_per_s(MemoryOperation operation, bool random, size_t access_bytes, int threads,
                  double seconds) const;

  // Nanoseconds of a load that depends on the one before it.
  double latency_ns(bool random, double seconds) const;

 private:
  void back_pages() const;

  const size_t bytes_;
  bool is_synced_ = false;
  std::byte* data_ = nullptr;
};

}  // namespace embstore
