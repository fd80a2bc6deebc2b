// Counts how often serving look-ups asked for rows in files, whose records stay as they were written.
//
// Four bytes for each record that was asked for: a page takes memory only once it's written.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "memory/huge_pages.h"
#include "platform/prefetch.h"
#include "row/place.h"

namespace embstore::log {

// Several threads may use it, each with other slots.
class ServedCounts {
 public:
  ServedCounts() : chunks_(kChunks, PageSize::kSmall) {}
  ~ServedCounts() {
    for_each_chunk([](const Chunk& chunk) { delete &chunk; });
  }
  ServedCounts(const ServedCounts&) = delete;
  ServedCounts& operator=(const ServedCounts&) = delete;

  // Returns the number of all accesses, those in the record included; 0 if none were counted beyond those.
  uint32_t count_of(Slot slot) const {
    const Chunk* const chunk = chunk_of(slot);
    return chunk == nullptr ? 0 : (*chunk)[slot % kSlotsAChunk].load(std::memory_order_relaxed);
  }
  void prefetch(Slot slot) const {
    if (const Chunk* const chunk = chunk_of(slot)) prefetch_line(&(*chunk)[slot % kSlotsAChunk]);
  }
  // Throws Error(kStorage) if there is no memory for it, but never with 0.
  void set(Slot slot, uint32_t count) {
    const Chunk* chunk = chunk_of(slot);
    if (chunk == nullptr) {
      if (count == 0) return;
      chunk = &make_chunk(slot);
    }
    std::atomic<uint32_t>& word = (*chunk)[slot % kSlotsAChunk];
    if (word.load(std::memory_order_relaxed) != count) word.store(count, std::memory_order_relaxed);
  }
  // Frees memory of slots `begin` to `end`, which hold no rows. Some counts may stay.
  void discard(uint64_t begin, uint64_t end) const {
    while (begin < end) {
      const uint64_t first = begin % kSlotsAChunk;
      const uint64_t count = std::min(end - begin, kSlotsAChunk - first);
      if (const Chunk* const chunk = chunk_of(static_cast<Slot>(begin))) chunk->discard(first, first + count);
      begin += count;
    }
  }
  void clear() const {
    for_each_chunk([](const Chunk& chunk) { chunk.discard(0, kSlotsAChunk); });
  }

 private:
  static constexpr uint64_t kSlotsAChunk = uint64_t{1} << 16;  // whole pages
  static constexpr uint64_t kChunks = (uint64_t{RowRef::kMaxSlots} + kSlotsAChunk) / kSlotsAChunk;
  using Chunk = PageArray<std::atomic<uint32_t>>;

  const Chunk* chunk_of(Slot slot) const {
    return chunks_[slot / kSlotsAChunk].load(std::memory_order_acquire);
  }
  const Chunk& make_chunk(Slot slot) {
    auto made = std::make_unique<const Chunk>(kSlotsAChunk, PageSize::kSmall);
    const Chunk* there = nullptr;
    if (!chunks_[slot / kSlotsAChunk].compare_exchange_strong(there, made.get(), std::memory_order_acq_rel)) {
      return *there;  // another thread was faster
    }
    return *made.release();
  }
  template <class Visit>
  void for_each_chunk(Visit visit) const {
    for (uint64_t i = 0; i < kChunks; ++i) {
      if (const Chunk* const chunk = chunks_[i].load(std::memory_order_acquire)) visit(*chunk);
    }
  }

  PageArray<std::atomic<const Chunk*>> chunks_;
};

}  // namespace embstore::log
