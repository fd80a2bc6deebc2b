// The memory of steps on a device, each made for a size of batch, and used again when its step has ended.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

namespace embstore {

// The size of a batch.
struct StepSize {
  uint32_t ids;
  uint32_t tables;
};

// `Memory` is a StepInFlight with a member `size`, for which it was made. Used by one thread at a time.
template <class Memory>
class StepMemories {
 public:
  // Returns the memory of a step that has ended, if it is large enough; else make(size).
  template <class Make>
  std::shared_ptr<Memory> take(const StepSize& size, Make make) {
    std::shared_ptr<Memory>* best = nullptr;
    for (std::shared_ptr<Memory>& memory : memories_) {
      // Memory in flight is also owned by its steps.
      if (memory.use_count() != 1 || !fits(memory->size, size)) continue;
      if (best == nullptr || memory->size.ids < (*best)->size.ids) best = &memory;
    }
    if (best != nullptr) return *best;
    // Frees memory that is too small, unless it is in flight: batches have grown.
    std::erase_if(memories_, [&size](const auto& memory) {
      return memory.use_count() == 1 && memory->size.ids < size.ids;
    });
    return memories_.emplace_back(make(StepSize{std::bit_ceil(std::max(size.ids, kMinIds)), size.tables}));
  }

 private:
  // Smaller batches use memory of this size.
  static constexpr uint32_t kMinIds = 256;

  static bool fits(const StepSize& memory, const StepSize& batch) {
    return memory.ids >= batch.ids && memory.tables == batch.tables;
  }

  std::vector<std::shared_ptr<Memory>> memories_;
};

}  // namespace embstore
