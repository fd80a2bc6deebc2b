// The memory of steps on a device, each made for so many ids: used again when its step has ended.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

namespace embstore {

// `Memory` is a StepInFlight that has most_ids. For one thread at a time.
template <class Memory>
class StepMemories {
 public:
  // That of a step which has ended, if there is one large enough; else make(most_ids).
  template <class Make>
  std::shared_ptr<Memory> take(uint32_t ids, Make make) {
    std::shared_ptr<Memory>* best = nullptr;
    for (std::shared_ptr<Memory>& memory : memories_) {
      // What is in flight is the steps' too.
      if (memory.use_count() != 1 || memory->most_ids < ids) continue;
      if (best == nullptr || memory->most_ids < (*best)->most_ids) best = &memory;
    }
    if (best != nullptr) return *best;
    // What is too small goes, unless it's in flight: batches have grown.
    std::erase_if(memories_,
                  [ids](const auto& memory) { return memory.use_count() == 1 && memory->most_ids < ids; });
    return memories_.emplace_back(make(std::bit_ceil(std::max(ids, kLeastIds))));
  }

 private:
  // Smaller batches take the memory of such a one.
  static constexpr uint32_t kLeastIds = 256;

  std::vector<std::shared_ptr<Memory>> memories_;
};

}  // namespace embstore
