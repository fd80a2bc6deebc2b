#include "tiers/medium/mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "tiers/medium/aligned_bytes.h"
#include "tiers/medium/guarded_copy.h"

namespace embstore::medium {
namespace {

constexpr int64_t kResidentForNs = 1'000'000'000;
constexpr int64_t kAbsentForNs = 3'000'000'000;

// A sample has 16 windows of 32 pages. If 1 % of a file's pages are missing, one by one, a sample misses that
// one time in two hundred; usually the page cache has runs of pages.
constexpr uint64_t kWindows = 16;
constexpr uint64_t kWindowPages = 32;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The mappings of all tables; a forked child counts its parent's, too.
std::atomic<size_t> mappings{0};

}  // namespace

size_t Mapping::most() {
  static const size_t most = [] {
    constexpr size_t kUsual = 65530;
    size_t ranges = 0;
    std::ifstream("/proc/sys/vm/max_map_count") >> ranges;
    return (ranges == 0 ? kUsual : ranges) / 8;
  }();
  return most;
}

Mapping::Mapping(const files::File& file, uint64_t bytes) : bytes_(bytes) {
  const auto pinned = file.pin();
  if (mappings.fetch_add(1, std::memory_order_relaxed) >= most()) {
    mappings.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  void* address = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, pinned.number(), 0);
  if (address == MAP_FAILED) {
    mappings.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  data_ = static_cast<const std::byte*>(address);
  madvise(address, bytes, MADV_RANDOM);
  catch_bus_errors();
}

Mapping::~Mapping() {
  if (data_ == nullptr) return;
  munmap(const_cast<std::byte*>(data_), bytes_);
  mappings.fetch_sub(1, std::memory_order_relaxed);
}

bool Mapping::is_resident(uint64_t bytes) const {
  if (data_ == nullptr || given_up_.load(std::memory_order_relaxed)) return false;
  const int64_t now = now_ns();
  if (now >= sampled_until_ns_.load(std::memory_order_acquire)) {
    catch_bus_errors();
    const bool resident = sample(bytes);
    sampled_resident_.store(resident, std::memory_order_relaxed);
    sampled_until_ns_.store(now + (resident ? kResidentForNs : kAbsentForNs), std::memory_order_release);
  }
  return sampled_resident_.load(std::memory_order_relaxed);
}

bool Mapping::sample(uint64_t bytes) const {
  const uint64_t pages = (bytes + kBlockBytes - 1) / kBlockBytes;
  const uint64_t stride = std::max(kWindowPages, pages / kWindows);
  unsigned char states[kWindowPages];
  for (uint64_t first = 0; first < pages; first += stride) {
    const uint64_t count = std::min(kWindowPages, pages - first);
    void* address = const_cast<std::byte*>(data_) + first * kBlockBytes;
    if (mincore(address, count * kBlockBytes, states) != 0) return false;
    if (std::any_of(states, states + count, [](unsigned char state) { return (state & 1) == 0; })) {
      return false;
    }
  }
  return true;
}

}  // namespace embstore::medium
