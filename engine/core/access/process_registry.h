// What tiers of this process share by a key, as long as any of them has it.
#pragma once

#include <map>
#include <memory>

#include "platform/process_local.h"
#include "threads/mutex.h"

namespace embstore {

// One of a kind for each Value; a forked child starts with an empty one.
template <class Key, class Value>
class ProcessRegistry {
 public:
  // The one that others have by this key, or what make() gives.
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
