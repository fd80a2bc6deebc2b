// The sequence lock of rows: readers never wait for the writer.
//
// A writer, which holds a mutex of its own, encloses every change in a RowWrite. A reader takes no lock: it
// notes the state, copies the row, and accepts the copy if the state has not changed.
#pragma once

#include <atomic>
#include <cstdint>

namespace embstore {

struct RowGuard {
  // Bits of the state. Three are flags of the guard's owner; the bits above them count changes. A reader
  // would accept a torn copy after exactly 2^28 changes, but no copy of a row takes that long.
  static constexpr uint32_t kWriting = 1;  // a change is under way
  static constexpr uint32_t kFirstOwnersFlag = 2;
  static constexpr uint32_t kSecondOwnersFlag = 4;
  static constexpr uint32_t kThirdOwnersFlag = 8;
  static constexpr uint32_t kOneChange = 16;

  std::atomic<uint32_t> state;

  // Returns the state after all reads before this call.
  uint32_t state_after_reads() const {
#if defined(__SANITIZE_THREAD__)
    // The sanitizer doesn't model fences; a read-modify-write has the same order.
    return const_cast<std::atomic<uint32_t>&>(state).fetch_add(0, std::memory_order_acq_rel);
#else
    std::atomic_thread_fence(std::memory_order_acquire);
    return state.load(std::memory_order_relaxed);
#endif
  }
  // Returns whether the state is still `noted`, so that everything read in between is consistent.
  bool unchanged_since(uint32_t noted) const { return state_after_reads() == noted; }
};

// The scope of one change. REQUIRES: the caller holds the mutex of the guard's owner.
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

  // Change the owner's flags.
  void set_flag(uint32_t flag) { state_ |= flag; }
  void clear_flag(uint32_t flag) { state_ &= ~flag; }

 private:
  RowGuard& guard_;
  uint32_t state_;
};

}  // namespace embstore
