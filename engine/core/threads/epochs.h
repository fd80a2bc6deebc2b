// Epoch-based reclamation: memory that readers may still be looking at is freed only after every operation
// that was under way when it was retired has ended.
//
// An operation (a whole batch, not a row) holds a Guard. Entering costs one compare-and-swap on a cache line
// that is usually this thread's own, and never waits: any number of threads hold guards at once, and a thread
// may hold several.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "threads/mutex.h"

namespace embstore {

// An object that can be retired. It contains the link of the list that keeps it, so retiring takes no memory
// and can't fail.
class Retirable {
 public:
  virtual ~Retirable() = default;
  Retirable(const Retirable&) = delete;
  Retirable& operator=(const Retirable&) = delete;

 protected:
  Retirable() = default;

 private:
  friend class Epochs;
  Retirable* next_retired_ = nullptr;
  uint64_t retired_in_ = 0;  // epoch in which it was retired
};

class Epochs {
 private:
  static constexpr uint64_t kIdle = 0;
  struct alignas(64) Participant {
    std::atomic<uint64_t> epoch{kIdle};
  };

 public:
  class Guard {
   public:
    ~Guard() { epochs_.leave(participant_); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    // As if this guard ended and another began: objects that were reachable before may be freed from now on.
    // Use it in long operations, which would otherwise keep everything that is retired meanwhile.
    void refresh() { epochs_.refresh(participant_); }

   private:
    friend class Epochs;
    Guard(Epochs& epochs, Participant& participant) : epochs_(epochs), participant_(participant) {}

    Epochs& epochs_;
    Participant& participant_;
  };

  Epochs() = default;
  // REQUIRES: no guard is held.
  ~Epochs();
  Epochs(const Epochs&) = delete;
  Epochs& operator=(const Epochs&) = delete;

  // Throws std::bad_alloc if more guards are held than ever before and there is no memory for another.
  [[nodiscard]] Guard enter();

  // Keeps `object` until no operation that began before this call is under way; the last of these operations,
  // if there are any, frees it. REQUIRES: operations that begin later can't reach it.
  void retire(std::unique_ptr<Retirable> object) noexcept EXCLUDES(mutex_);

  // Frees what can be freed. Seldom needed: retire(), and the end of an operation that held objects back,
  // call it.
  void reclaim() noexcept EXCLUDES(mutex_);

  // Waits until no operation is under way. REQUIRES: new operations are turned away; otherwise the wait may
  // not end.
  void wait_until_idle() const;

 private:
  // The first block has this number of participants; each further block, as many as all before it.
  static constexpr size_t kFirstBlock = 64;
  static constexpr size_t kFurtherBlocks = 24;

  Participant& participant(size_t i) const;
  // Doubles the number of participants from `count`; returns the number that there are then.
  size_t grow(size_t count);
  void leave(Participant& participant) noexcept;
  void refresh(Participant& participant) noexcept;
  // Returns the epoch in which the oldest operation under way began, or any epoch that is no later than
  // `enough`.
  uint64_t oldest_under_way(uint64_t enough) const;

  mutable std::array<Participant, kFirstBlock> first_block_;
  std::array<std::atomic<Participant*>, kFurtherBlocks> further_blocks_{};  // null: not made yet
  std::atomic<size_t> participants_{kFirstBlock};
  std::atomic<uint64_t> epoch_{1};  // incremented for every object that is retired
  Mutex mutex_;
  Retirable* oldest_retired_ GUARDED_BY(mutex_) = nullptr;  // each links to the next newer one
  Retirable* newest_retired_ GUARDED_BY(mutex_) = nullptr;
};

}  // namespace embstore
