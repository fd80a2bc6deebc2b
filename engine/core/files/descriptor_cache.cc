#include "files/descriptor_cache.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "files/file_error.h"
#include "platform/process_local.h"

namespace embstore::files {
namespace {

constexpr size_t kMinLimit = 16;
constexpr size_t kLimitWithoutLimit = 65536;

}  // namespace

bool CachedDescriptor::pin_if_open() const {
  int pins = pins_.load(std::memory_order_relaxed);
  while (pins != kClosed) {
    if (!pins_.compare_exchange_weak(pins, pins + 1, std::memory_order_acquire)) continue;
    if (!used_lately_.load(std::memory_order_relaxed)) used_lately_.store(true, std::memory_order_relaxed);
    return true;
  }
  return false;
}

CachedDescriptor::Pin CachedDescriptor::pin() const {
  if (!pin_if_open()) DescriptorCache::of_process().open(*this, /*only_if_room=*/false);
  return Pin(*this);
}

CachedDescriptor::Pin CachedDescriptor::try_pin() const {
  if (pin_if_open()) return Pin(*this);
  return DescriptorCache::of_process().open(*this, /*only_if_room=*/true) ? Pin(*this) : Pin();
}

void CachedDescriptor::open() const { static_cast<void>(pin()); }
void CachedDescriptor::forget() const {
  if (!inherited(made_in_)) DescriptorCache::of_process().forget(*this);
}

DescriptorCache& DescriptorCache::of_process() { return ProcessLocal<DescriptorCache>::get(); }

size_t DescriptorCache::limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kLimitWithoutLimit;
  return std::max(kMinLimit, static_cast<size_t>(limit.rlim_cur / 4));
}

size_t DescriptorCache::open_count() const {
  const MutexLock lock(mutex_);
  return open_.size();
}

bool DescriptorCache::open(const CachedDescriptor& wanted, bool only_if_room) {
  const MutexLock lock(mutex_);
  const size_t most = limit();
  for (;;) {
    // Another thread may have opened it, also while this one synced an idle descriptor.
    if (wanted.pin_if_open()) return true;
    if (open_.size() >= most && close_idle(/*may_sync=*/!only_if_room)) continue;
    if (open_.size() >= most && only_if_room) return false;
    try {
      open_.reserve(open_.size() + 1);
      wanted.number_ = wanted.open_descriptor();
      break;
    } catch (const FileError& error) {
      // Other code of the process uses descriptors too.
      const bool too_many = error.reason() == EMFILE || error.reason() == ENFILE;
      if (!too_many || !close_idle(/*may_sync=*/!only_if_room)) throw;
    }
  }
  wanted.position_ = open_.size();
  open_.push_back(&wanted);
  wanted.used_lately_.store(true, std::memory_order_relaxed);
  wanted.pins_.store(1, std::memory_order_release);
  return true;
}

void DescriptorCache::forget(const CachedDescriptor& gone) {
  const MutexLock lock(mutex_);
  for (;;) {
    int none = 0;
    if (gone.pins_.compare_exchange_strong(none, CachedDescriptor::kClosed, std::memory_order_acquire)) {
      close(gone);
      return;
    }
    if (none == CachedDescriptor::kClosed) return;
    idle_synced_.wait(mutex_);
  }
}

bool DescriptorCache::close_idle(bool may_sync) {
  // Goes around twice, since the first round passes over descriptors that were used lately. Descriptors
  // that must be synced come last, when no other is idle.
  for (const bool sync : {false, true}) {
    if (sync && !may_sync) return false;
    for (size_t looked = 2 * open_.size(); looked > 0 && !open_.empty(); --looked) {
      if (hand_ >= open_.size()) hand_ = 0;
      const CachedDescriptor& candidate = *open_[hand_++];
      if (candidate.used_lately_.exchange(false, std::memory_order_relaxed)) continue;
      if (close_if_idle(candidate, sync)) return true;
    }
  }
  return false;
}

bool DescriptorCache::close_if_idle(const CachedDescriptor& candidate, bool may_sync) {
  int none = 0;
  if (!candidate.pins_.compare_exchange_strong(none, CachedDescriptor::kClosed, std::memory_order_acquire)) {
    return false;
  }
  if (candidate.must_sync_before_close()) {
    // Pinned meanwhile rather than claimed, so that other threads may use it.
    candidate.pins_.store(may_sync ? 1 : 0, std::memory_order_release);
    if (!may_sync) return false;
    mutex_.unlock();
    candidate.sync_before_close();
    mutex_.lock();
    int mine = 1;
    const bool claimed =
        candidate.pins_.compare_exchange_strong(mine, CachedDescriptor::kClosed, std::memory_order_acquire);
    if (!claimed) candidate.pins_.fetch_sub(1, std::memory_order_release);
    const bool written_again = claimed && candidate.must_sync_before_close();
    if (written_again) candidate.pins_.store(0, std::memory_order_release);
    idle_synced_.notify_all();
    if (!claimed || written_again) return false;
  }
  close(candidate);
  return true;
}

void DescriptorCache::close(const CachedDescriptor& claimed) {
  claimed.close_descriptor(claimed.number_);
  claimed.number_ = -1;
  open_[claimed.position_] = open_.back();
  open_[claimed.position_]->position_ = claimed.position_;
  open_.pop_back();
}

}  // namespace embstore::files
