// The rows of a memory tier, by slot: their floats, and what is kept beside them.
//
// What works on many rows takes them in one call, so that rows may lie where each call is dear. Who may touch
// a slot is the store's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "memory/huge_pages.h"
#include "memory/memory.h"
#include "platform/prefetch.h"
#include "row/place.h"
#include "row/row_batch.h"
#include "row/row_guard.h"
#include "row/row_layout.h"
#include "tiers/memory/row_gather.h"

namespace embstore {

class RowArray {
 public:
  // What lies beside a row's floats.
  enum class Beside {
    kMeta,        // RowMeta, in the same memory
    kMetaInDram,  // RowMeta, in DRAM, so that the memory can be made longer
    kHeader,      // all of RowHeader, in the same memory
  };
  static size_t bytes_for(const RowLayout& layout, Beside beside, uint64_t slots);

  // `memory` has bytes_for() of `slots`. Only with kMetaInDram may most_slots be more.
  RowArray(const RowLayout& layout, Beside beside, uint64_t slots, uint64_t most_slots,
           std::unique_ptr<Memory> memory);

  const Memory& memory() const { return *memory_; }
  // What lies beside each row in the same memory; 0 where nothing does.
  size_t beside_bytes() const;
  // REQUIRES: beside_bytes() != 0.
  const void* beside(Slot slot) const {
    return headers_ != nullptr ? static_cast<const void*>(&headers_[slot]) : &meta_[slot];
  }
  // Makes room for so many. Throws Error(kStorage).
  void extend_to(uint64_t slots);
  // Gives back what is behind slots `begin` to `end`, which hold no rows.
  void discard(uint64_t begin, uint64_t end);

  // Calls work(gather) once, with a RowGather to which it adds the rows whose weights are to be copied to
  // out + position * dim. kByDim: by code that is compiled for each usual dim, which is quicker.
  template <bool kByDim = true, class Changed, class Work>
  void gather(float* out, Changed changed, Work work) const {
    with_row_gather<kByDim>(floats_, row_floats_, layout_.dim(), out, std::move(changed), std::move(work));
  }

  // Puts a row into a slot that nothing refers to.
  void put(Slot slot, const RowHeader& header, const float* floats);
  // A new row: dim weights, and each of the layout's slots filled with one value.
  void start(Slot slot, const float* weights, const float* slot_values, uint64_t frequency);
  // What is kept beside the row: of kMeta without served and stamp, which are then zero.
  RowHeader header(Slot slot, int64_t key) const;
  // REQUIRES, of these three: kHeader.
  int64_t key(Slot slot) const;
  void set_rank(Slot slot, uint64_t served, uint64_t stamp);
  void put_header(Slot slot, const RowHeader& header);
  void copy_floats(Slot slot, size_t floats, float* out) const;
  // REQUIRES, to write: the mutex of the row's shard is held, and its guard says that it's being written.
  float* row(Slot slot) const { return floats_ + slot * row_floats_; }

  RowMeta& meta(Slot slot) const { return meta_[slot]; }
  // What work on a slot starts with.
  void prefetch(Slot slot, size_t floats) const {
    prefetch_row(row(slot), floats);
    prefetch_beside(slot);
  }
  void prefetch_beside(Slot slot) const {
    if (meta_ != nullptr) {
      prefetch_line(&meta_[slot]);
    } else {
      prefetch_line(&headers_[slot]);
      prefetch_line(&headers_[slot].save_span);  // most headers lie in two cache lines
    }
  }
  void prefetch(Slot slot) const { prefetch(slot, row_floats_); }

 private:
  const RowLayout layout_;
  const size_t row_floats_;
  const std::unique_ptr<Memory> memory_;
  float* const floats_;
  std::optional<PageArray<RowMeta>> meta_in_dram_;
  RowMeta* meta_ = nullptr;       // of kMeta and kMetaInDram
  RowHeader* headers_ = nullptr;  // of kHeader
};

}  // namespace embstore
