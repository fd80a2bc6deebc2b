// Objects that tiers of this process share by a key, for as long as any tier holds them.
#pragma once

#include <map>
#include <memory>

#include "platform/process_local.h"
#include "threads/mutex.h"

namespace embstore {

// Each pair of Key and Value has one registry; a forked child starts with an empty one.
template <class Key, class Value>
class ProcessRegistry {
 public:
  // Returns the value that others hold by this key, or else what make() returns.
  template <class Make>
  static std::shared_ptr<Value> get(const Key& key, Make make) {
    ProcessRegistry& registry = ProcessLocal<ProcessRegistry>::get();
    const MutexLock lock(registry.mutex_);
    std::erase_if(registry.values_, [](const auto& known) { return known.second.expired(); });
    std::weak_ptr<Value>& known = registry.values_[key];
    std::shared_ptr<Value> value = known.lock();
    if (value == nullptr) known = value = make();
    return value;
  }

 private:
  Mutex mutex_;
  std::map<Key, std::weak_ptr<Value>> values_ GUARDED_BY(mutex_);
};

}  // namespace embstore
