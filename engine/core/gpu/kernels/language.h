// The language of the kernels: a subset of CUDA C++ that NVRTC compiles for a GPU and the host's compiler for
// the emulated device. A kernel includes this file, and no other file of the host's than those that
// CMakeLists.txt lists as embstore_kernel_sources.
//
//   EMBSTORE_KERNEL(name, Arguments) { ... arguments.ids[i] ... }     the body of one thread
//   EMBSTORE_SHARED(T, name, count);                                  shared memory of the block, uninitialised
//   thread_index(), block_index(), block_threads()                    one dimension is enough for all kernels
//   sync_block()                                                      every thread of the block must call it
//   atomic_add(), _sub(), _min(), _max(), _exchange_if()              on uint32_t in global or shared memory
//   atomic_add(), atomic_max()                                        on uint64_t there
//   stale(array[i])                                                   a uint32_t, perhaps as it was before atomic accesses
//   in_place(array[i])                                                a reference, for atomic accesses to a struct's parts
//   EMBSTORE_UNROLL                                                   before a short loop
//
// On the emulated device, indexing gives no reference but a stand-in for one: `auto x = array[i]` copies
// nothing, so name the type. Device memory holds no pointers: arrays are arguments, and rows refer to each
// other by index. The one exception is a list, in pinned memory, of the addresses of rows in host memory.
// There are no warp intrinsics, since the emulated device has no warps. A kernel that needs its run's number
// of blocks has it as an argument: the grid may be larger, for other runs.
#pragma once

#include <cstdint>

#include "gpu/device_address.h"
#include "gpu/kernel.h"

#ifdef __CUDACC_RTC__
#include "gpu/kernels/cuda_language.h"
#else
#include "gpu/kernels/emulated_language.h"
#endif

namespace embstore::gpu {

// An array in device memory, or in pinned host memory that kernels reach. The emulated device checks every
// access: that its index is within bounds, and that the memory is allocated.
template <class T>
struct Global {
  DeviceAddress address;
  uint64_t count = 0;

  decltype(auto) operator[](uint64_t i) const { return global_element<T>(address.value, i, count); }
  Global<const T> as_const() const { return {address, count}; }
};

// 16 bytes, the most that a GPU's thread loads or stores at once.
struct alignas(16) Words4 {
  uint32_t words[4];
};
struct alignas(16) Float4 {
  float x, y, z, w;
};

inline uint32_t global_thread() { return block_index() * block_threads() + thread_index(); }

}  // namespace embstore::gpu
