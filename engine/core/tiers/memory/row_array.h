// The rows of a memory tier, by slot: their floats, and what is kept beside them.
//
// Functions that work on many rows take them in one call, so that rows may lie where each call is expensive.
// The store decides who may touch a slot.
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
  // The data that is kept beside a row's floats, and where.
  enum class SideData {
    kMeta,        // RowMeta, in the same memory
    kMetaInDram,  // RowMeta, in DRAM, so that the memory can be made longer
    kHeader,      // all of RowHeader, in the same memory
  };
  static size_t bytes_for(const RowLayout& layout, SideData side_data, uint64_t slots);

  // `memory` has bytes_for() of `slots`. max_slots may be more only with kMetaInDram.
  RowArray(const RowLayout& layout, SideData side_data, uint64_t slots, uint64_t max_slots,
           std::unique_ptr<Memory> memory);

  const Memory& memory() const { return *memory_; }
  // Returns how many bytes lie beside each row in the same memory; 0 if none.
  size_t side_bytes() const;
  // REQUIRES: side_bytes() != 0.
  const void* side_data(Slot slot) const {
    return headers_ != nullptr ? static_cast<const void*>(&headers_[slot]) : &meta_[slot];
  }
  // Makes room for `slots` slots. Throws Error(kStorage).
  void extend_to(uint64_t slots);
  // Frees the memory behind slots `begin` to `end`, which hold no rows.
  void discard(uint64_t begin, uint64_t end);

  // Calls work(gather) once, with a RowGather to which work adds the rows whose weights are to be copied to
  // out + position * dim. With kByDim, code compiled for each usual dim is used, which is faster.
  template <bool kByDim = true, class Changed, class Work>
  void gather(float* out, Changed changed, Work work) const {
    with_row_gather<kByDim>(floats_, row_floats_, layout_.dim(), out, std::move(changed), std::move(work));
  }

  // Puts a row into a slot that nothing refers to.
  void put(Slot slot, const RowHeader& header, const float* floats);
  // Puts a new row into a slot: dim weights, and each of the layout's optimizer slots filled with one value.
  void start(Slot slot, const float* weights, const float* slot_values, uint64_t frequency);
  // Returns what is kept beside the row. With kMeta and kMetaInDram, served and stamp aren't kept and are
  // zero.
  RowHeader header(Slot slot, int64_t key) const;
  // The next three REQUIRE kHeader.
  int64_t key(Slot slot) const;
  void set_rank(Slot slot, uint64_t served, uint64_t stamp);
  void put_header(Slot slot, const RowHeader& header);
  void copy_floats(Slot slot, size_t floats, float* out) const;
  // REQUIRES, before writing: the mutex of the row's shard is held, and the row's guard says that it's being
  // written.
  float* row(Slot slot) const { return floats_ + slot * row_floats_; }

  RowMeta& meta(Slot slot) const { return meta_[slot]; }
  // Prefetches what work on a slot touches first.
  void prefetch(Slot slot, size_t floats) const {
    prefetch_row(row(slot), floats);
    prefetch_side_data(slot);
  }
  void prefetch_side_data(Slot slot) const {
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
  RowMeta* meta_ = nullptr;       // only with kMeta and kMetaInDram
  RowHeader* headers_ = nullptr;  // only with kHeader
};

}  // namespace embstore
