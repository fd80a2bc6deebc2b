// The language of the kernels: a part of CUDA C++ that NVRTC compiles for a GPU and the host's compiler for the emulated
// device. A kernel includes this file, and nothing of the host's but what CMakeLists.txt lists as embstore_kernel_sources.
//
//   EMBSTORE_KERNEL(name, Arguments) { ... arguments.ids[i] ... }     the body of one thread
//   EMBSTORE_SHARED(T, name, count);                                  memory of the block, uninitialised
//   thread_index(), block_index(), block_threads()                    one dimension is enough for all kernels
//   sync_block()                                                      every thread of the block must call it
//   atomic_add(), _sub(), _min(), _max(), _exchange_if()              on uint32_t in global or shared memory
//   atomic_add(), atomic_max()                                        on uint64_t there
//   stale(array[i])                                                   what a uint32_t was, perhaps before others' atomic accesses
//   in_place(array[i])                                                a reference, for atomic accesses to a struct's parts
//   EMBSTORE_UNROLL                                                   before a short loop
//
// On the emulated device an index gives no reference but a stand-in for one: `auto x = array[i]` is no copy, so name the type.
// Device memory holds no pointers: arrays are arguments, and rows refer to each other by index; a list of where rows lie in
// memory of the host is the one exception, in pinned memory. No warp intrinsics:
// the emulated device has no warps. How many blocks a run has is an argument where a kernel needs it: others may be launched with it.
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

// An array in device memory, or in pinned host memory that kernels reach. On the emulated device every access is
// checked: its index, and that the memory is allocated.
template <class T>
struct Global {
  DeviceAddress address;
  uint64_t count = 0;

  decltype(auto) operator[](uint64_t i) const { return global_element<T>(address.value, i, count); }
  Global<const T> as_const() const { return {address, count}; }
};

// Loads and stores of 16 bytes: what a GPU's thread moves at once.
struct alignas(16) Words4 {
  uint32_t words[4];
};
struct alignas(16) Float4 {
  float x, y, z, w;
};

inline uint32_t global_thread() { return block_index() * block_threads() + thread_index(); }

}  // namespace embstore::gpu
