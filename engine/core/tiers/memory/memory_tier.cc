#include "tiers/memory/memory_tier.h"

#include <algorithm>
#include <utility>

#include "access/phase.h"
#include "errors/error.h"
#include "memory/address_space.h"
#include "platform/round_up.h"

namespace embstore {
namespace {

RowArray::SideData side_data_for(MemoryRole role) {
  switch (role) {
    case MemoryRole::kOnly: return RowArray::SideData::kMeta;
    case MemoryRole::kFirst: return RowArray::SideData::kMetaInDram;
    case MemoryRole::kMiddle:
    case MemoryRole::kLast: break;
  }
  return RowArray::SideData::kHeader;
}

// Returns how many arrivals are noted between two looks at them. A first tier's slots may be filled later
// than they are taken, so each is noted; in a tier below, all slots are looked at if there are too many.
uint64_t max_arrivals(MemoryRole role, uint64_t slots, uint64_t max_slots) {
  switch (role) {
    case MemoryRole::kFirst: return max_slots;
    case MemoryRole::kMiddle: return std::max<uint64_t>(slots / 32, 256);
    case MemoryRole::kOnly:
    case MemoryRole::kLast: break;
  }
  return 0;
}

bool ranks(MemoryRole role) { return role == MemoryRole::kFirst || role == MemoryRole::kMiddle; }

}  // namespace

size_t MemoryTier::bytes_for(const RowLayout& layout, MemoryRole role, uint64_t slots) {
  return RowArray::bytes_for(layout, side_data_for(role), slots);
}

size_t MemoryTier::bytes_per_added_slot(const RowLayout& layout) {
  return layout.row_bytes() + sizeof(RowMeta) + SlotRanks::kBytesPerAccessedSlot +
         SlotAllocator::kBytesPerSlot;
}

MemoryTier::MemoryTier(std::string name, const RowLayout& layout, MemoryRole role, uint64_t slots,
                       uint64_t max_slots, std::unique_ptr<Memory> memory)
    : name_(std::move(name)),
      layout_(layout),
      role_(role),
      rows_(layout, side_data_for(role), slots, max_slots, std::move(memory)),
      slots_(slots, max_slots, max_arrivals(role, slots, max_slots)),
      ranks_(embstore::ranks(role)
                 ? std::make_unique<SlotRanks>(slots, max_slots, /*accessed=*/role == MemoryRole::kFirst)
                 : nullptr) {}

void MemoryTier::write(const RowBatch& rows, std::span<Slot> slots) {
  if (!slots_.try_claim(rows.size())) {
    throw Error(ErrorKind::kStoreFull, "the " + name_ + " tier has no " + std::to_string(rows.size()) +
                                           " free slots of its " + std::to_string(slots_.slots()));
  }
  slots_.take(slots);
  Phase phase(meter());
  for (size_t i = 0; i < rows.size(); ++i) put(slots[i], rows.header(i), rows.row(i));
  count_rows(phase, Access::kStore, rows.size(), layout_.row_bytes(), [slots](size_t i) { return slots[i]; });
}

void MemoryTier::count_header(Phase& phase, Access access, Slot slot) const {
  const size_t bytes = rows_.side_bytes();
  if (bytes == 0) return;
  phase.count_at(meter(), access, 1, bytes);
  if (phase.wants_addresses()) phase.touch(meter(), access, bytes, rows_.side_data(slot));
}

void MemoryTier::touch(Phase& phase, Access access, Slot slot, size_t bytes) const {
  phase.touch(meter(), access, bytes, rows_.row(slot));
  if (rows_.side_bytes() != 0) phase.touch(meter(), access, rows_.side_bytes(), rows_.side_data(slot));
}

void MemoryTier::read_rows(RowBatch& rows, RowPart) const {
  rows.start_reading(/*are_whole=*/true);
  const std::span<const Place> places = rows.places();
  constexpr size_t kRowsFetchedAhead = 8;
  Phase phase(meter());
  const size_t floats = layout_.row_floats();
  for (size_t i = 0; i < places.size(); ++i) {
    if (i + kRowsFetchedAhead < places.size()) {
      rows_.prefetch(places[i + kRowsFetchedAhead].slot);
      if (role_ == MemoryRole::kFirst) ranks_->prefetch(places[i + kRowsFetchedAhead].slot);
    }
    rows.header(i) = header(places[i].slot, places[i].key);
    rows_.copy_floats(places[i].slot, floats, rows.row(i));
  }
  count_rows(phase, Access::kLoad, places.size(), floats * sizeof(float),
             [places](size_t i) { return places[i].slot; });
}

bool MemoryTier::try_set_rank(Slot slot, const RowHeader& header) {
  if (!can_set_ranks()) return false;
  rows_.set_rank(slot, header.served, header.stamp);
  if (ranks_ != nullptr) ranks_->set(slot, header.frequency + header.served, header.stamp);
  return true;
}

void MemoryTier::erase(std::span<const Place> places) {
  if (ranks_ != nullptr) {
    for (const Place& place : places) ranks_->empty(place.slot);
  }
  slots_.give_back(places);
}

void MemoryTier::give_back(std::span<const Slot> slots) {
  if (ranks_ != nullptr) {
    for (const Slot slot : slots) ranks_->empty(slot);
  }
  slots_.give_back(slots);
}

void MemoryTier::pin_rows(const std::shared_ptr<gpu::Device>& device) {
  constexpr size_t kPageBytes = 4096;
  const size_t bytes = slots_.slots() * layout_.row_bytes();
  is_below_gpu_ = true;
  // Memory for the index, the ranks and what lies beside rows, roughly: neither this tier's share nor that of
  // tables before it has been allocated yet. An eighth is left for other uses.
  constexpr size_t kBytesBesideARow = 128;
  reservation_.add(slots_.slots() * kBytesBesideARow);
  const std::optional<uint64_t> available = available_memory_bytes();
  if (available && bytes + MemoryReservation::process_total() > *available - *available / 8) return;
  pinned_.emplace(device, std::span(rows_.memory().data(), round_up(bytes, kPageBytes)));
  if (!pinned_->address()) rows_.discard(0, slots_.slots());  // pages were allocated before it was refused
}

void MemoryTier::add_slots(uint64_t count) {
  const uint64_t wanted = slots_.slots() + count;
  if (wanted > slots_.max_slots()) {
    throw Error(ErrorKind::kStoreFull, "a batch needs " + std::to_string(count) + " slots more than the " +
                                           name_ + " tier can have at a time; it can have " +
                                           std::to_string(slots_.max_slots()) + advice_on_address_limit() +
                                           "; or make the batch smaller");
  }
  rows_.extend_to(wanted);
  ranks_->extend_to(wanted);
  slots_.add_slots(count);
}

void MemoryTier::remove_added_slots() {
  slots_.remove_added([this](uint64_t begin, uint64_t end) {
    rows_.discard(begin, end);
    ranks_->discard(begin, end);
  });
}

void MemoryTier::put(Slot slot, const RowHeader& header, const float* floats) {
  rows_.put(slot, header, floats);
  if (ranks_ != nullptr) ranks_->fill(slot, header.key, header.frequency, header.served, header.stamp);
}

void MemoryTier::start(Slot slot, int64_t key, const float* weights, const float* slot_values,
                       uint64_t frequency) {
  rows_.start(slot, weights, slot_values, frequency);
  if (ranks_ != nullptr) ranks_->fill(slot, key, frequency, /*served=*/0, AccessClock::kFirstStamp);
}

RowHeader MemoryTier::header(Slot slot, int64_t key) const {
  RowHeader header = rows_.header(slot, key);
  if (role_ == MemoryRole::kFirst) {
    header.served = ranks_->served(slot);
    header.stamp = ranks_->stamp(slot);
  }
  return header;
}

uint64_t MemoryTier::count_update(Slot slot, int64_t key, uint64_t occurrences, int64_t step,
                                  uint16_t save_span, uint64_t stamp) {
  if (role_ == MemoryRole::kFirst) {
    RowMeta& meta = rows_.meta(slot);
    meta.count(occurrences, step, save_span);
    ranks_->count_update(slot, meta.frequency, stamp);
    return meta.frequency + ranks_->served(slot);
  }
  RowHeader header = rows_.header(slot, key);
  header.frequency += occurrences;
  header.version = step;
  header.save_span = save_span;
  header.stamp = std::max(header.stamp, stamp);
  rows_.put_header(slot, header);
  if (ranks_ != nullptr) ranks_->set(slot, header.frequency + header.served, header.stamp);
  return header.frequency + header.served;
}

TierStats MemoryTier::stats() const {
  return TierStats{
      .name = name_,
      .rows = slots_.taken_slots(),
      .row_bytes = layout_.row_bytes(),
      .address = reinterpret_cast<uintptr_t>(rows_.memory().data()),
      .mapped_bytes = rows_.memory().size_bytes(),
      .path = rows_.memory().path(),
      .is_pmem = rows_.memory().is_pmem(),
      .is_pinned = is_below_gpu_ ? std::optional(has_pinned_rows()) : std::nullopt,
  };
}

}  // namespace embstore
