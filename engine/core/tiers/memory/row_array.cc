#include "tiers/memory/row_array.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "platform/round_up.h"
#include "row/row_copy.h"

namespace embstore {
namespace {

constexpr size_t kLineBytes = 64;

size_t floats_bytes(const RowLayout& layout, uint64_t slots) {
  return round_up(slots * layout.row_bytes(), kLineBytes);
}

}  // namespace

size_t RowArray::bytes_for(const RowLayout& layout, SideData side_data, uint64_t slots) {
  switch (side_data) {
    case SideData::kMeta: return floats_bytes(layout, slots) + slots * sizeof(RowMeta);
    case SideData::kMetaInDram: return slots * layout.row_bytes();
    case SideData::kHeader: return floats_bytes(layout, slots) + slots * sizeof(RowHeader);
  }
  return 0;
}

RowArray::RowArray(const RowLayout& layout, SideData side_data, uint64_t slots, uint64_t max_slots,
                   std::unique_ptr<Memory> memory)
    : layout_(layout),
      row_floats_(layout.row_floats()),
      memory_(std::move(memory)),
      floats_(reinterpret_cast<float*>(memory_->data())) {
  std::byte* const after = memory_->data() + floats_bytes(layout, slots);
  if (side_data != SideData::kMetaInDram) memory_->use_small_pages_from(floats_bytes(layout, slots));
  switch (side_data) {
    case SideData::kMeta: meta_ = reinterpret_cast<RowMeta*>(after); break;
    case SideData::kMetaInDram:
      meta_in_dram_.emplace(slots, max_slots);
      meta_ = meta_in_dram_->data();
      break;
    case SideData::kHeader: headers_ = reinterpret_cast<RowHeader*>(after); break;
  }
}

size_t RowArray::side_bytes() const {
  if (headers_ != nullptr) return sizeof(RowHeader);
  return meta_in_dram_ ? 0 : sizeof(RowMeta);
}

void RowArray::extend_to(uint64_t slots) {
  memory_->extend_to(slots * layout_.row_bytes());
  meta_in_dram_->extend_to(slots);
}

void RowArray::discard(uint64_t begin, uint64_t end) {
  memory_->discard(begin * layout_.row_bytes(), end * layout_.row_bytes());
  if (meta_in_dram_) meta_in_dram_->discard(begin, end);
}

void RowArray::put(Slot slot, const RowHeader& header, const float* floats) {
  std::copy_n(floats, row_floats_, row(slot));
  if (meta_ != nullptr) {
    meta_[slot] = RowMeta::of(header.frequency, header.version, static_cast<uint16_t>(header.save_span));
    return;
  }
  put_header(slot, header);
}

void RowArray::put_header(Slot slot, const RowHeader& header) {
  RowHeader& kept = headers_[slot];
  // Atomic, since a thread that looks for rows to move may read the key of a slot that is being filled.
  std::atomic_ref(kept.key).store(header.key, std::memory_order_relaxed);
  kept.frequency = header.frequency;
  kept.version = header.version;
  kept.served = header.served;
  kept.stamp = header.stamp;
  kept.save_span = header.save_span;
}

void RowArray::start(Slot slot, const float* weights, const float* slot_values, uint64_t frequency) {
  float* const floats = row(slot);
  const size_t block = layout_.block_floats();
  std::copy_n(weights, layout_.dim(), floats);
  for (int s = 0; s < layout_.slot_count(); ++s) {
    std::fill_n(floats + static_cast<size_t>(1 + s) * block, block, slot_values[s]);
  }
  meta_[slot] = RowMeta::of(frequency, RowMeta::kNeverUpdated, /*save_span=*/0);
}

RowHeader RowArray::header(Slot slot, int64_t key) const {
  if (headers_ != nullptr) {
    RowHeader header = copy_header(headers_[slot]);
    header.key = key;
    return header;
  }
  const RowMeta meta = copy_meta(meta_[slot]);
  return {.key = key,
          .frequency = meta.frequency,
          .version = meta.version,
          .served = 0,
          .stamp = 0,
          .save_span = meta.save_span};
}

int64_t RowArray::key(Slot slot) const {
  return std::atomic_ref(headers_[slot].key).load(std::memory_order_relaxed);
}

void RowArray::set_rank(Slot slot, uint64_t served, uint64_t stamp) {
  headers_[slot].served = served;
  headers_[slot].stamp = stamp;
}

void RowArray::copy_floats(Slot slot, size_t floats, float* out) const {
  copy_row<0>(out, row(slot), static_cast<int>(floats));
}

}  // namespace embstore
