// The kernels' language on the emulated device. See language.h. Functions that are only declared here act for
// the kernel that the calling thread runs: emulated/kernel_run.cc defines them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/kernel.h"

#define EMBSTORE_KERNEL(name, Arguments)                                                           \
  inline void name##_thread(const Arguments& arguments);                                           \
  inline constexpr ::embstore::gpu::Kernel<Arguments> name{                                        \
      "embstore_" #name, [](const void* of) {                                                      \
        const auto& runs = *static_cast<const ::embstore::gpu::Runs<Arguments>*>(of);              \
        const uint32_t run = ::embstore::gpu::emulated::run_index();                               \
        if (::embstore::gpu::block_index() < runs.blocks[run]) name##_thread(runs.arguments[run]); \
      }};                                                                                          \
  inline void name##_thread(const Arguments& arguments)
// As in CUDA, a declaration stands for one array of the block, however often it is reached.
#define EMBSTORE_SHARED(T, name, count)   \
  static const char name##_declaration{}; \
  const ::embstore::gpu::SharedArray<T, count> name { &name##_declaration }
#define EMBSTORE_UNROLL

namespace embstore::gpu {

uint32_t thread_index();
uint32_t block_index();
uint32_t block_threads();
void sync_block();

namespace emulated {

// The number of the thread's run, among the runs of its launch.
uint32_t run_index();
// Called before an atomic access: the seed may draw that another thread runs first.
void before_atomic();
// These end the kernel with a Fault if the access isn't allowed.
void* global_element(uint64_t address, uint64_t index, uint64_t count, size_t bytes, size_t alignment);
void* shared_array(const void* declaration, size_t bytes, size_t alignment);
void check_shared_index(uint64_t index, uint64_t count);
enum class Access { kRead, kWrite, kAtomic };
void check_access(const void* element, Access access);

}  // namespace emulated

// The result of indexing an array. It tells reads from writes, so that a race is found whatever the schedule
// is.
template <class T>
class Element {
  using Value = std::remove_const_t<T>;

 public:
  explicit Element(T* element) : element_(element) {}
  Element(const Element&) = default;

  operator Value() const {  // NOLINT(google-explicit-constructor): it stands for the value
    emulated::check_access(element_, emulated::Access::kRead);
    return *element_;
  }
  const Element& operator=(const Value& value) const
    requires(!std::is_const_v<T>)
  {
    emulated::check_access(element_, emulated::Access::kWrite);
    *element_ = value;
    return *this;
  }
  const Element& operator=(const Element& other) const
    requires(!std::is_const_v<T>)
  {
    return *this = static_cast<Value>(other);
  }
  const Element& operator+=(const Value& value) const { return *this = static_cast<Value>(*this) + value; }
  const Element& operator++() const { return *this += 1; }
  Value operator++(int) const {
    const Value before = *this;
    *this = before + 1;
    return before;
  }

  T* address() const { return element_; }

 private:
  T* element_;
};

template <class T>
inline T& in_place(const Element<T>& element) {
  return *element.address();
}

// All atomic functions return the value that was there before. Threads of a kernel take turns, so plain
// accesses are atomic here.
namespace emulated {
template <class T, class Change>
inline T atomically(T* where, const Change& change) {
  before_atomic();
  check_access(where, Access::kAtomic);
  const T before = *where;
  *where = change(before);
  return before;
}
}  // namespace emulated

// Counts as atomic in the search for races, since the kernel means to read beside atomic accesses. (The value
// is never outdated here, but other threads may change it right afterwards.)
inline uint32_t stale(const Element<uint32_t>& where) {
  return emulated::atomically(where.address(), [](uint32_t before) { return before; });
}
inline uint32_t atomic_add(uint32_t& where, uint32_t value) {
  return emulated::atomically(&where, [=](uint32_t before) { return before + value; });
}
inline uint32_t atomic_sub(uint32_t& where, uint32_t value) {
  return emulated::atomically(&where, [=](uint32_t before) { return before - value; });
}
inline uint32_t atomic_min(uint32_t& where, uint32_t value) {
  return emulated::atomically(&where, [=](uint32_t before) { return value < before ? value : before; });
}
inline uint32_t atomic_max(uint32_t& where, uint32_t value) {
  return emulated::atomically(&where, [=](uint32_t before) { return before < value ? value : before; });
}
inline uint32_t atomic_exchange_if(uint32_t& where, uint32_t expected, uint32_t desired) {
  return emulated::atomically(&where, [=](uint32_t before) { return before == expected ? desired : before; });
}
inline uint64_t atomic_add(uint64_t& where, uint64_t value) {
  return emulated::atomically(&where, [=](uint64_t before) { return before + value; });
}
inline uint64_t atomic_max(uint64_t& where, uint64_t value) {
  return emulated::atomically(&where, [=](uint64_t before) { return before < value ? value : before; });
}
inline uint32_t atomic_add(const Element<uint32_t>& where, uint32_t value) {
  return atomic_add(in_place(where), value);
}
inline uint32_t atomic_sub(const Element<uint32_t>& where, uint32_t value) {
  return atomic_sub(in_place(where), value);
}
inline uint32_t atomic_min(const Element<uint32_t>& where, uint32_t value) {
  return atomic_min(in_place(where), value);
}
inline uint32_t atomic_max(const Element<uint32_t>& where, uint32_t value) {
  return atomic_max(in_place(where), value);
}
inline uint32_t atomic_exchange_if(const Element<uint32_t>& where, uint32_t expected, uint32_t desired) {
  return atomic_exchange_if(in_place(where), expected, desired);
}
inline uint64_t atomic_add(const Element<uint64_t>& where, uint64_t value) {
  return atomic_add(in_place(where), value);
}
inline uint64_t atomic_max(const Element<uint64_t>& where, uint64_t value) {
  return atomic_max(in_place(where), value);
}

template <class T>
inline Element<T> global_element(uint64_t address, uint64_t index, uint64_t count) {
  return Element<T>(static_cast<T*>(emulated::global_element(address, index, count, sizeof(T), alignof(T))));
}

template <class T, size_t kCount>
class SharedArray {
 public:
  explicit SharedArray(const void* declaration)
      : elements_(static_cast<T*>(emulated::shared_array(declaration, kCount * sizeof(T), alignof(T)))) {}

  Element<T> operator[](uint64_t i) const {
    emulated::check_shared_index(i, kCount);
    return Element<T>(elements_ + i);
  }

 private:
  T* elements_;
};

}  // namespace embstore::gpu
