// The kernels' language on the emulated device. See language.h. The functions that are only declared here belong to the
// kernel that the calling thread runs: emulated/kernel_run.cc.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpu/kernel.h"

#define EMBSTORE_KERNEL(name, Arguments)                                                          \
  inline void name##_thread(const Arguments& arguments);                                          \
  inline constexpr ::embstore::gpu::Kernel<Arguments> name{                                       \
      "embstore_" #name, [](const void* of) { name##_thread(*static_cast<const Arguments*>(of)); }}; \
  inline void name##_thread(const Arguments& arguments)
// As in CUDA, a declaration is one array for the block, however often it is reached.
#define EMBSTORE_SHARED(T, name, count)   \
  static const char name##_declaration{}; \
  const ::embstore::gpu::SharedArray<T, count> name { &name##_declaration }
#define EMBSTORE_UNROLL

namespace embstore::gpu {

uint32_t thread_index();
uint32_t block_index();
uint32_t block_threads();
uint32_t block_count();
void sync_block();

namespace emulated {

// Other threads may come first: before an atomic access, the seed may draw another thread.
void before_atomic();
// These end the kernel with a fault where the access isn't allowed.
void* global_element(uint64_t address, uint64_t index, uint64_t count, size_t bytes, size_t alignment);
void* shared_array(const void* declaration, size_t bytes, size_t alignment);
void check_shared_index(uint64_t index, uint64_t count);

}  // namespace emulated

// All of them give back what was there before. Threads of a kernel take turns, so plain accesses are atomic.
inline uint32_t atomic_add(uint32_t& where, uint32_t value) {
  emulated::before_atomic();
  const uint32_t before = where;
  where = before + value;
  return before;
}
inline uint32_t atomic_sub(uint32_t& where, uint32_t value) {
  emulated::before_atomic();
  const uint32_t before = where;
  where = before - value;
  return before;
}
inline uint32_t atomic_min(uint32_t& where, uint32_t value) {
  emulated::before_atomic();
  const uint32_t before = where;
  if (value < before) where = value;
  return before;
}
inline uint32_t atomic_exchange_if(uint32_t& where, uint32_t expected, uint32_t desired) {
  emulated::before_atomic();
  const uint32_t before = where;
  if (before == expected) where = desired;
  return before;
}

inline float square_root(float value) { return std::sqrt(value); }

template <class T>
inline T& global_element(uint64_t address, uint64_t index, uint64_t count) {
  return *static_cast<T*>(emulated::global_element(address, index, count, sizeof(T), alignof(T)));
}

template <class T, size_t kCount>
class SharedArray {
 public:
  explicit SharedArray(const void* declaration)
      : elements_(static_cast<T*>(emulated::shared_array(declaration, kCount * sizeof(T), alignof(T)))) {}

  T& operator[](uint64_t i) const {
    emulated::check_shared_index(i, kCount);
    return elements_[i];
  }

 private:
  T* elements_;
};

}  // namespace embstore::gpu
