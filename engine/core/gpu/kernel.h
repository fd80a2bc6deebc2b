// A kernel as the host names it when it launches one. NVRTC compiles this file too.
#pragma once

#include <cstdint>

namespace embstore::gpu {

// No kernel runs with more threads a block: shared arrays are made for so many.
inline constexpr uint32_t kMostBlockThreads = 256;

// `Arguments` is the kernel's only parameter: a struct of plain values and Global arrays.
template <class Arguments>
struct Kernel {
  const char* name;                    // of the function in the PTX
  void (*run)(const void* arguments);  // one thread of it, compiled for the CPU
};

struct Grid {
  uint32_t blocks;
  uint32_t block_threads;

  // Enough threads for `count` items, one each; at least one block.
  static Grid of(uint64_t count, uint32_t block_threads) {
    const uint64_t blocks = (count + block_threads - 1) / block_threads;
    return {static_cast<uint32_t>(blocks == 0 ? 1 : blocks), block_threads};
  }
};

}  // namespace embstore::gpu
