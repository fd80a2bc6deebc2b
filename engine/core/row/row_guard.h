// The sequence lock under which rows are read without waiting for whoever writes them.
//
// Writers, who hold a mutex of their own, bracket every change with a RowWrite. Readers take no lock: they
// note the state, copy what they want, and accept the copy if the state is still the same.
#pragma once

#include <atomic>
#include <cstdint>

namespace embstore {

struct RowGuard {
  // Bits of the state. Three are its owner's, who keeps flags beside the lock; the bits above count changes. A
  // reader that sleeps through exactly 2^28 changes would be deceived; no copy of a row takes that long.
  static constexpr uint32_t kWriting = 1;  // a change is under way
  static constexpr uint32_t kFirstOwnersFlag = 2;
  static constexpr uint32_t kSecondOwnersFlag = 4;
  static constexpr uint32_t kThirdOwnersFlag = 8;
  static constexpr uint32_t kOneChange = 16;

  std::atomic<uint32_t> state;

  // The state now that everything before this call has been read.
  uint32_t state_after_reads() const {
#if defined(__SANITIZE_THREAD__)
    // The sanitizer doesn't model fences; a read-modify-write orders as much.
    return const_cast<std::atomic<uint32_t>&>(state).fetch_add(0, std::memory_order_acq_rel);
#else
    std::atomic_thread_fence(std::memory_order_acquire);
    return state.load(std::memory_order_relaxed);
#endif
  }
  // True if nothing changed since `noted`, so that everything read in between is whole.
  bool unchanged_since(uint32_t noted) const { return state_after_reads() == noted; }
};

// The scope of one change. The mutex of the guard's owner must be held.
class RowWrite {
 public:
  explicit RowWrite(RowGuard& guard) : guard_(guard), state_(guard.state.load(std::memory_order_relaxed)) {
#if defined(__SANITIZE_THREAD__)
    guard_.state.exchange(state_ | RowGuard::kWriting, std::memory_order_acq_rel);
#else
    guard_.state.store(state_ | RowGuard::kWriting, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
#endif
  }
  ~RowWrite() { guard_.state.store(state_ + RowGuard::kOneChange, std::memory_order_release); }
  RowWrite(const RowWrite&) = delete;
  RowWrite& operator=(const RowWrite&) = delete;

  // Of the owner's flags.
  void set_flag(uint32_t flag) { state_ |= flag; }
  void clear_flag(uint32_t flag) { state_ &= ~flag; }

 private:
  RowGuard& guard_;
  uint32_t state_;
};

}  // namespace embstore
