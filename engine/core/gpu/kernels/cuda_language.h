// The kernels' language on a GPU. See language.h.
#pragma once

#define EMBSTORE_KERNEL(name, Arguments)                                                 \
  inline void name##_thread(const Arguments& arguments);                                 \
  extern "C" __global__ void __launch_bounds__(::embstore::gpu::kMaxBlockThreads)        \
      embstore_##name(const __grid_constant__::embstore::gpu::Runs<Arguments> runs) {    \
    if (blockIdx.x < runs.blocks[blockIdx.y]) name##_thread(runs.arguments[blockIdx.y]); \
  }                                                                                      \
  inline void name##_thread(const Arguments& arguments)
#define EMBSTORE_SHARED(T, name, count) __shared__ T name[count]
#define EMBSTORE_UNROLL _Pragma("unroll")

namespace embstore::gpu {

inline uint32_t thread_index() { return threadIdx.x; }
inline uint32_t block_index() { return blockIdx.x; }
inline uint32_t block_threads() { return blockDim.x; }
inline void sync_block() { __syncthreads(); }

template <class T>
inline T& in_place(T& element) {
  return element;
}

// A plain load, which may read an outdated value from a cache that isn't coherent.
inline uint32_t stale(const uint32_t& where) { return where; }

// All atomic functions return the value that was there before.
inline uint32_t atomic_add(uint32_t& where, uint32_t value) { return atomicAdd(&where, value); }
inline uint32_t atomic_sub(uint32_t& where, uint32_t value) { return atomicSub(&where, value); }
inline uint32_t atomic_min(uint32_t& where, uint32_t value) { return atomicMin(&where, value); }
inline uint32_t atomic_max(uint32_t& where, uint32_t value) { return atomicMax(&where, value); }
inline uint32_t atomic_exchange_if(uint32_t& where, uint32_t expected, uint32_t desired) {
  return atomicCAS(&where, expected, desired);
}
inline uint64_t atomic_add(uint64_t& where, uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(&where), value);
}
inline uint64_t atomic_max(uint64_t& where, uint64_t value) {
  return atomicMax(reinterpret_cast<unsigned long long*>(&where), value);
}

// Tells the compiler that the address isn't in shared memory, so that it chooses ld.global and st.global.
template <class T>
inline T& global_element(uint64_t address, uint64_t index, uint64_t) {
  T* const element = reinterpret_cast<T*>(address) + index;
  __builtin_assume(__isGlobal(element));
  return *element;
}

}  // namespace embstore::gpu
