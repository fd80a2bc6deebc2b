// The memory of steps on a device, each made for so many ids: used again when its step has ended.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

namespace embstore {

// Of a batch.
struct StepSize {
  uint32_t ids;
  uint32_t tables;
};

// `Memory` is a StepInFlight that has the size it was made for. For one thread at a time.
template <class Memory>
class StepMemories {
 public:
  // That of a step which has ended, if there is one large enough; else make(size).
  template <class Make>
  std::shared_ptr<Memory> take(const StepSize& size, Make make) {
    std::shared_ptr<Memory>* best = nullptr;
    for (std::shared_ptr<Memory>& memory : memories_) {
      // What is in flight is the steps' too.
      if (memory.use_count() != 1 || !fits(memory->size, size)) continue;
      if (best == nullptr || memory->size.ids < (*best)->size.ids) best = &memory;
    }
    if (best != nullptr) return *best;
    // What is too small goes, unless it's in flight: batches have grown.
    std::erase_if(memories_, [&size](const auto& memory) {
      return memory.use_count() == 1 && memory->size.ids < size.ids;
    });
    return memories_.emplace_back(make(StepSize{std::bit_ceil(std::max(size.ids, kLeastIds)), size.tables}));
  }

 private:
  // Smaller batches take the memory of such a one.
  static constexpr uint32_t kLeastIds = 256;

  static bool fits(const StepSize& memory, const StepSize& batch) {
    return memory.ids >= batch.ids && memory.tables == batch.tables;
  }

  std::vector<std::shared_ptr<Memory>> memories_;
};

}  // namespace embstore
