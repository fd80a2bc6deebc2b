// A kernel as the host names it at a launch. NVRTC compiles this file too.
#pragma once

#include <cstdint>

namespace embstore::gpu {

// The most threads that a block of any kernel may have: the kernels' shared arrays have this many elements.
inline constexpr uint32_t kMaxBlockThreads = 256;

// The most bytes of parameters that a kernel on a GPU takes.
inline constexpr uint32_t kMaxRunsBytes = 4096;

// The parameter of a launch, which may be several runs of one kernel with different arguments. Run r has
// blocks[r] blocks. `Arguments` is a struct of plain values and Global arrays.
template <class Arguments>
struct Runs {
  static constexpr uint32_t kMax = kMaxRunsBytes / (sizeof(Arguments) + sizeof(uint64_t));

  Arguments arguments[kMax];
  uint32_t blocks[kMax];
};

template <class Arguments>
struct Kernel {
  static_assert(sizeof(Runs<Arguments>) <= kMaxRunsBytes);
  static_assert(Runs<Arguments>::kMax >= 20);  // docs/tables.md says so

  const char* name;               // the function's name in the PTX
  void (*run)(const void* runs);  // runs one thread of the kernel on the CPU
};

struct Grid {
  uint32_t blocks;
  uint32_t block_threads;
  uint32_t runs = 1;  // each has `blocks` blocks

  // A grid with a thread for each of `count` items, and at least one block.
  static Grid of(uint64_t count, uint32_t block_threads) {
    const uint64_t blocks = (count + block_threads - 1) / block_threads;
    return {static_cast<uint32_t>(blocks == 0 ? 1 : blocks), block_threads};
  }
  // A grid for one of `tables` tables that share `count` items. Each is expected to have about as many; if a
  // table has more than twice that, its threads take several items.
  static Grid over(uint64_t count, uint32_t block_threads, uint32_t tables) {
    return tables == 1 ? of(count, block_threads) : of(2 * count / tables + 1, block_threads);
  }
};

}  // namespace embstore::gpu
