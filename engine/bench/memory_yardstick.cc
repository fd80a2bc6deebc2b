#include "bench/memory_yardstick.h"

#include <cpuid.h>
#include <fcntl.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bench/random_offsets.h"
#include "bench/timed_threads.h"
#include "errors/error.h"
#include "memory/huge_pages.h"

namespace embstore {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kPageBytes = 4096;
constexpr size_t kBytesBetweenClocks = size_t{64} << 10;

[[noreturn]] void refuse(ErrorKind kind, const std::string& what) {
  throw Error(kind, what + ": " + std::strerror(errno));
}

__m128i* vectors(std::byte* line) { return reinterpret_cast<__m128i*>(line); }

struct Load {
  static void access(std::byte* at, size_t bytes) {
    __m128i sum = _mm_setzero_si128();
    for (size_t i = 0; i < bytes; i += kLineBytes) {
      const __m128i* line = vectors(at + i);
      const __m128i low = _mm_or_si128(_mm_load_si128(line), _mm_load_si128(line + 1));
      const __m128i high = _mm_or_si128(_mm_load_si128(line + 2), _mm_load_si128(line + 3));
      sum = _mm_or_si128(sum, _mm_or_si128(low, high));
    }
    asm volatile("" : : "x"(sum));
  }
};

struct Store {
  static void access(std::byte* at, size_t bytes) {
    const __m128i value = _mm_set1_epi8(1);
    for (size_t i = 0; i < bytes; i += kLineBytes) {
      for (int k = 0; k < 4; ++k) _mm_store_si128(vectors(at + i) + k, value);
    }
    asm volatile("" : : : "memory");
  }
};

struct StoreFlushed {
  __attribute__((target("clwb"))) static void access(std::byte* at, size_t bytes) {
    const __m128i value = _mm_set1_epi8(1);
    for (size_t i = 0; i < bytes; i += kLineBytes) {
      for (int k = 0; k < 4; ++k) _mm_store_si128(vectors(at + i) + k, value);
      _mm_clwb(at + i);
    }
    _mm_sfence();
  }
};

struct StoreStreamed {
  static void access(std::byte* at, size_t bytes) {
    const __m128i value = _mm_set1_epi8(1);
    for (size_t i = 0; i < bytes; i += kLineBytes) {
      for (int k = 0; k < 4; ++k) _mm_stream_si128(vectors(at + i) + k, value);
    }
    _mm_sfence();
  }
};

bool has_clwb() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1u << 24)) != 0;
}

template <class Operation>
double at_random(std::byte* data, size_t bytes, size_t access_bytes, int thread,
                 const std::atomic<bool>& stop) {
  RandomOffsets offsets(bytes, access_bytes, static_cast<uint64_t>(thread) + 1);
  const size_t between = std::max<size_t>(1, kBytesBetweenClocks / access_bytes);
  double moved = 0;
  do {
    for (size_t i = 0; i < between; ++i) Operation::access(data + offsets.next(), access_bytes);
    moved += static_cast<double>(between * access_bytes);
  } while (!stop.load(std::memory_order_relaxed));
  return moved;
}

template <class Operation>
double in_sequence(std::byte* data, size_t bytes, size_t access_bytes, int thread, int threads,
                   const std::atomic<bool>& stop) {
  const size_t slots = bytes / access_bytes / static_cast<size_t>(threads);
  std::byte* const own = data + static_cast<size_t>(thread) * slots * access_bytes;
  const size_t between = std::max<size_t>(1, kBytesBetweenClocks / access_bytes);
  size_t slot = 0;
  double moved = 0;
  do {
    for (size_t i = 0; i < between; ++i) {
      Operation::access(own + slot * access_bytes, access_bytes);
      if (++slot == slots) slot = 0;
    }
    moved += static_cast<double>(between * access_bytes);
  } while (!stop.load(std::memory_order_relaxed));
  return moved;
}

template <class Operation>
double rate(std::byte* data, size_t bytes, bool random, size_t access_bytes, int threads, double seconds) {
  return megabytes_per_second(
      threads, seconds, Clocked::kRunning, [=](int thread, const std::atomic<bool>& stop) {
        return random ? at_random<Operation>(data, bytes, access_bytes, thread, stop)
                      : in_sequence<Operation>(data, bytes, access_bytes, thread, threads, stop);
      });
}

// Calls mbind(2), for which only libnuma has a wrapper.
void bind_to_node(void* data, size_t bytes, int node) {
  constexpr int kBind = 2;  // MPOL_BIND
  constexpr size_t kNodesAWord = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(static_cast<size_t>(node) / kNodesAWord + 1);
  mask.back() = 1ul << (static_cast<size_t>(node) % kNodesAWord);
  if (syscall(SYS_mbind, data, bytes, kBind, mask.data(), mask.size() * kNodesAWord + 1, 0) != 0) {
    refuse(ErrorKind::kMissingDevice, "can't take memory of NUMA node " + std::to_string(node));
  }
}

}  // namespace

MemoryYardstick::MemoryYardstick(size_t bytes, int node)
    : bytes_((bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes) {
  void* data =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    refuse(ErrorKind::kStorage, "can't get memory of " + std::to_string(bytes_) + " bytes");
  data_ = static_cast<std::byte*>(data);
  try {
    if (node >= 0) bind_to_node(data_, bytes_, node);
  } catch (...) {
    munmap(data_, bytes_);
    throw;
  }
  madvise(data_, bytes_, MADV_HUGEPAGE);  // as for the engine's tables; without, it measures page walks, too
  back_pages();
}

MemoryYardstick::MemoryYardstick(size_t bytes, const std::string& directory)
    : bytes_((bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes) {
  const std::string path = directory + "/.memory-yardstick-" + std::to_string(getpid());
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) refuse(ErrorKind::kStorage, path + ": can't be made");
  unlink(path.c_str());
  const int reason = posix_fallocate(file, 0, static_cast<off_t>(bytes_));
  if (reason != 0) {
    close(file);
    errno = reason;
    refuse(ErrorKind::kStorage, path + ": can't get " + std::to_string(bytes_) + " bytes");
  }
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, file, 0);
  is_synced_ = data != MAP_FAILED;
  if (!is_synced_) data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int map_reason = errno;
  close(file);
  if (data == MAP_FAILED) {
    errno = map_reason;
    refuse(ErrorKind::kStorage, path + ": can't be mapped");
  }
  data_ = static_cast<std::byte*>(data);
  back_pages();
}

MemoryYardstick::~MemoryYardstick() { munmap(data_, bytes_); }

// Writes every page: pages that were never written are all one page of zeros, which lies in the caches.
void MemoryYardstick::back_pages() const {
  for (size_t i = 0; i < bytes_; i += kPageBytes) data_[i] = std::byte{1};
}

double MemoryYardstick::mb_per_s(MemoryOperation operation, bool random, size_t access_bytes, int threads,
                                 double seconds) const {
  if (access_bytes == 0 || access_bytes % kLineBytes != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "access_bytes: must be whole lines of 64 bytes, not " + std::to_string(access_bytes));
  }
  if (threads < 1) {
    throw Error(ErrorKind::kInvalidArgument, "threads: must be 1 or more, not " + std::to_string(threads));
  }
  if (access_bytes > bytes_ / static_cast<size_t>(threads)) {
    throw Error(ErrorKind::kInvalidArgument,
                "access_bytes: " + std::to_string(access_bytes) + " for each of " + std::to_string(threads) +
                    " threads is more than the " + std::to_string(bytes_) + " bytes that are measured");
  }
  switch (operation) {
    case MemoryOperation::kLoad: return rate<Load>(data_, bytes_, random, access_bytes, threads, seconds);
    case MemoryOperation::kStore: return rate<Store>(data_, bytes_, random, access_bytes, threads, seconds);
    case MemoryOperation::kStoreFlushed:
      if (!has_clwb()) throw Error(ErrorKind::kMissingDevice, "this processor has no clwb");
      return rate<StoreFlushed>(data_, bytes_, random, access_bytes, threads, seconds);
    case MemoryOperation::kStoreStreamed:
      return rate<StoreStreamed>(data_, bytes_, random, access_bytes, threads, seconds);
  }
  throw Error(ErrorKind::kInvalidArgument, "operation: there is no such");
}

double MemoryYardstick::latency_ns(bool random, double seconds) const {
  constexpr size_t kLoadsBetweenClocks = 1024;
  const uint64_t lines = bytes_ / kLineBytes;
  const auto load = [this](uint64_t line) {
    return static_cast<uint64_t>(*reinterpret_cast<const volatile uint8_t*>(data_ + line * kLineBytes));
  };
  const double start = running_seconds();
  double running = 0;
  uint64_t loads = 0;
  uint64_t state = 1;
  uint64_t line = 0;
  do {
    for (size_t i = 0; i < kLoadsBetweenClocks; ++i) {
      // The next address depends on the loaded value, so no load starts before the previous one has
      // returned. The first byte of every page is 1, all other bytes are 0 or 1: the values make no
      // difference.
      if (random) {
        state = state * 6364136223846793005u + 1442695040888963407u + load(line);
        line = (state >> 32) * lines >> 32;
      } else {
        line += 1 + (load(line) & 2);
        if (line >= lines) line = 0;
      }
    }
    loads += kLoadsBetweenClocks;
    running = running_seconds() - start;
  } while (running < seconds);
  return running * 1e9 / static_cast<double>(loads);
}

}  // namespace embstore
