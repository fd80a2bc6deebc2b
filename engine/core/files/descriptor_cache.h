// The descriptors of all files of the process, and of its io_uring rings. At most a quarter of what the
// process may have (RLIMIT_NOFILE), and at least 16, are open at once; a descriptor that is needed again is
// opened again.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "platform/fork.h"
#include "threads/mutex.h"

namespace embstore::files {

class DescriptorCache;

// A file's descriptor, or a ring's, open or not. Callers pin it for the time of a call or of a batch.
class CachedDescriptor {
 public:
  CachedDescriptor(const CachedDescriptor&) = delete;
  CachedDescriptor& operator=(const CachedDescriptor&) = delete;

  class Pin {
   public:
    Pin() = default;
    explicit Pin(const CachedDescriptor& pinned) : pinned_(&pinned) {}
    Pin(Pin&& other) noexcept : pinned_(std::exchange(other.pinned_, nullptr)) {}
    Pin& operator=(Pin&& other) noexcept {
      std::swap(pinned_, other.pinned_);
      return *this;
    }
    ~Pin() {
      if (pinned_ != nullptr) pinned_->pins_.fetch_sub(1, std::memory_order_release);
    }
    explicit operator bool() const { return pinned_ != nullptr; }
    int number() const { return pinned_->number_; }

   private:
    const CachedDescriptor* pinned_ = nullptr;
  };

  // Opens the file again if it is closed; throws what open_descriptor() throws. If every descriptor is in
  // use, one more than the cache's limit is opened: there are never more than there are callers. REQUIRES:
  // the caller has pinned no other, except a ring's.
  Pin pin() const;
  // The same for callers who have pinned others already: returns an empty pin if there is no room for one
  // more descriptor.
  Pin try_pin() const;

 protected:
  CachedDescriptor() = default;
  ~CachedDescriptor() = default;

  virtual int open_descriptor() const = 0;  // or throws
  virtual void close_descriptor(int number) const = 0;
  // Some errors of the medium are reported on one descriptor alone, so what must reach the medium does so
  // before its descriptor is closed.
  virtual bool must_sync_before_close() const = 0;
  virtual void sync_before_close() const = 0;  // REQUIRES: pinned. Throws nothing

  void open() const;  // the first time
  // Closes the descriptor, unless it is the parent process's. REQUIRES: no thread uses it any more. Called by
  // the destructor of the derived class.
  void forget() const;

 private:
  friend class DescriptorCache;
  static constexpr int kClosed = -1;
  bool pin_if_open() const;

  const ForkGeneration made_in_ = fork_generation();
  mutable std::atomic<int> pins_{kClosed};
  mutable std::atomic<bool> used_lately_{false};
  mutable int number_ = -1;      // written by the cache alone, while pins_ is kClosed
  mutable size_t position_ = 0;  // in the cache's list; guarded by the cache
};

class DescriptorCache {
 public:
  static DescriptorCache& of_process();
  // Returns how many may be open at once. Asks the system each time, since a process may change its limit.
  static size_t limit();

  size_t open_count() const;

 private:
  friend class CachedDescriptor;

  // Pins `wanted`, which was closed. Returns false only with `only_if_room`, if there is no room.
  bool open(const CachedDescriptor& wanted, bool only_if_room);
  void forget(const CachedDescriptor& gone);
  // Returns false if none is idle.
  bool close_idle(bool may_sync) REQUIRES(mutex_);
  bool close_if_idle(const CachedDescriptor& candidate, bool may_sync) REQUIRES(mutex_);
  void close(const CachedDescriptor& claimed) REQUIRES(mutex_);

  mutable Mutex mutex_;    // innermost, except for system calls
  Condition idle_synced_;  // signals that an idle descriptor was synced
  std::vector<const CachedDescriptor*> open_ GUARDED_BY(mutex_);
  size_t hand_ GUARDED_BY(mutex_) = 0;  // of the clock algorithm that finds a descriptor not used lately
};

}  // namespace embstore::files
