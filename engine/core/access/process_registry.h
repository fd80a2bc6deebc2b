// What tiers of this process share by a key, as long as any of them has it.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "platform/fork.h"
#include "threads/mutex.h"

namespace embstore {

// One of a kind for each Value. A forked child starts with an empty one: another thread of the parent's may have held
// the lock.
template <class Key, class Value>
class ProcessRegistry {
 public:
  // The one that others have by this key, or what make() gives.
  template <class Make>
  static std::shared_ptr<Value> get(const Key& key, Make make) {
    ProcessRegistry& registry = instance();
    const MutexLock lock(registry.mutex_);
    std::erase_if(registry.values_, [](const auto& known) { return known.second.expired(); });
    std::weak_ptr<Value>& known = registry.values_[key];
    std::shared_ptr<Value> value = known.lock();
    if (value == nullptr) known = value = make();
    return value;
  }

 private:
  // Never destroyed: tables may outlive what main() leaves behind.
  static ProcessRegistry& instance() {
    static std::atomic<ProcessRegistry*> current{nullptr};
    ProcessRegistry* registry = current.load(std::memory_order_acquire);
    while (registry == nullptr || inherited(registry->made_in_)) {
      auto made = std::make_unique<ProcessRegistry>();
      if (current.compare_exchange_strong(registry, made.get())) registry = made.release();
    }
    return *registry;
  }

  const ForkGeneration made_in_ = fork_generation();
  Mutex mutex_;
  std::map<Key, std::weak_ptr<Value>> values_ GUARDED_BY(mutex_);
};

}  // namespace embstore
