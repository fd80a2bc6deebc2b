// A kernel as the host names it when it launches one. NVRTC compiles this file too.
#pragma once

#include <cstdint>

namespace embstore::gpu {

// No kernel runs with more threads a block: shared arrays are made for so many.
inline constexpr uint32_t kMostBlockThreads = 256;

// That a GPU's kernel takes.
inline constexpr uint32_t kMostRunsBytes = 4096;

// What a launch of a kernel takes: one kind of arguments, for several runs of the kernel that are launched as one. Run r has
// blocks[r] blocks. `Arguments` is a struct of plain values and Global arrays.
template <class Arguments>
struct Runs {
  static constexpr uint32_t kMost = kMostRunsBytes / (sizeof(Arguments) + sizeof(uint64_t));

  Arguments arguments[kMost];
  uint32_t blocks[kMost];
};

template <class Arguments>
struct Kernel {
  static_assert(sizeof(Runs<Arguments>) <= kMostRunsBytes);
  static_assert(Runs<Arguments>::kMost >= 20);  // docs/tables.md says so

  const char* name;               // of the function in the PTX
  void (*run)(const void* runs);  // one thread of it, compiled for the CPU
};

struct Grid {
  uint32_t blocks;
  uint32_t block_threads;
  uint32_t runs = 1;  // of so many blocks each

  // Enough threads for `count` items, one each; at least one block.
  static Grid of(uint64_t count, uint32_t block_threads) {
    const uint64_t blocks = (count + block_threads - 1) / block_threads;
    return {static_cast<uint32_t>(blocks == 0 ? 1 : blocks), block_threads};
  }
  // The same for one of so many tables that share the items: each has about as many, and its threads take several where it has more.
  static Grid over(uint64_t count, uint32_t block_threads, uint32_t tables) {
    return tables == 1 ? of(count, block_threads) : of(2 * count / tables + 1, block_threads);
  }
};

}  // namespace embstore::gpu
