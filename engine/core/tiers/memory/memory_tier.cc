#include "tiers/memory/memory_tier.h"

#include <algorithm>
#include <utility>

#include "errors/error.h"
#include "row/row_copy.h"

namespace embstore {

MemoryTier::MemoryTier(std::string name, const RowLayout& layout, uint64_t slot_count,
                       std::unique_ptr<Memory> memory, bool ranked)
    : name_(std::move(name)),
      layout_(layout),
      slot_count_(slot_count),
      ranked_(ranked),
      memory_(std::move(memory)),
      rows_(reinterpret_cast<float*>(memory_->data())),
      row_floats_(layout.row_floats()),
      meta_(slot_count),
      ranks_(ranked ? slot_count : 1) {}

void MemoryTier::take(std::span<Slot> slots) {
  const std::lock_guard lock(mutex_);
  if (free_slots_.size() + (slot_count_ - untouched_from_) < slots.size()) {
    throw Error(ErrorKind::kStoreFull, "the " + name_ + " tier has no " + std::to_string(slots.size()) +
                                           " free slots of its " + std::to_string(slot_count_));
  }
  for (Slot& slot : slots) {
    if (free_slots_.empty()) {
      slot = static_cast<Slot>(untouched_from_++);
    } else {
      slot = free_slots_.back();
      free_slots_.pop_back();
      reused_places_.store(reused_places_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    if (arrived_.empty() || arrived_[slot]) continue;
    arrived_[slot] = true;
    arrivals_.push_back(slot);
  }
}

void MemoryTier::give_back(std::span<const Slot> slots) {
  const std::lock_guard lock(mutex_);
  if (ranked_) {
    for (const Slot slot : slots) ranks_[slot].stamp.store(0, std::memory_order_relaxed);
  }
  free_slots_.insert(free_slots_.end(), slots.begin(), slots.end());
}

void MemoryTier::put(Slot slot, const RowHeader& header, const float* source) {
  std::copy_n(source, row_floats_, row(slot));
  meta_[slot] = RowMeta::of(header.frequency, header.version, static_cast<uint16_t>(header.save_span));
  if (!ranked_) return;
  fill_rank(slot, header.key, header.frequency, header.served,
            std::max(header.stamp, AccessClock::kFirstStamp));
}

void MemoryTier::write(const RowBatch& rows, std::span<Slot> slots) {
  take(slots);
  for (size_t i = 0; i < rows.size(); ++i) put(slots[i], rows.header(i), rows.row(i));
}

void MemoryTier::read_rows(std::span<const Place> places, RowPart part, RowBatch& rows,
                           std::vector<DamagedRow>&) const {
  const size_t floats = part == RowPart::kAll ? row_floats_ : layout_.block_floats();
  constexpr size_t kAhead = 8;
  rows.resize(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    if (i + kAhead < places.size()) prefetch(places[i + kAhead].slot, floats);
    rows.header(i) = header(places[i].slot, places[i].key);
    copy_row<0>(rows.row(i), row(places[i].slot), static_cast<int>(floats));
  }
}

void MemoryTier::erase(std::span<const Place> places) {
  std::vector<Slot> slots(places.size());
  std::transform(places.begin(), places.end(), slots.begin(), [](const Place& p) { return p.slot; });
  give_back(slots);
}

RowHeader MemoryTier::header(Slot slot, int64_t key) const {
  const RowMeta meta = copy_meta(meta_[slot]);
  RowHeader header{.key = key,
                   .frequency = meta.frequency,
                   .version = meta.version,
                   .served = 0,
                   .stamp = 0,
                   .save_span = meta.save_span};
  if (ranked_) {
    header.served = ranks_[slot].served.load(std::memory_order_relaxed);
    header.stamp = ranks_[slot].stamp.load(std::memory_order_relaxed);
  }
  return header;
}

Rank MemoryTier::sampled_limit(uint64_t slots, uint64_t count, CacheStrategy strategy) const {
  constexpr uint64_t kSamples = 2048;
  if (count >= slots || slots < 4 * kSamples) return Rank::highest();
  std::vector<Rank> samples;
  samples.reserve(kSamples);
  for (uint64_t i = 0; i < kSamples; ++i) {
    const Slot slot = static_cast<Slot>(i * slots / kSamples);
    if (is_filled(slot)) samples.push_back(rank(slot, strategy));
  }
  const uint64_t place = samples.size() * count / slots;
  if (place < 8) return Rank::highest();  // too few to say
  std::nth_element(samples.begin(), samples.begin() + static_cast<ptrdiff_t>(place), samples.end());
  return samples[place];
}

Rank MemoryTier::coldest(uint64_t count, CacheStrategy strategy, std::vector<Candidate>& rows) const {
  uint64_t end = 0;
  {
    const std::lock_guard lock(mutex_);
    end = untouched_from_;
  }
  const auto colder = [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; };
  Rank limit = sampled_limit(end, count, strategy);
  rows.clear();
  // Where the limit lets too many pass, the colder half of them stays, and so on.
  const auto cut = [&] {
    const auto last = rows.begin() + static_cast<ptrdiff_t>(count);
    std::nth_element(rows.begin(), last, rows.end(), colder);
    limit = last->rank;
    rows.erase(last, rows.end());
  };
  for (uint64_t i = 0; i < end; ++i) {
    const Slot slot = static_cast<Slot>(i);
    if (!is_filled(slot)) continue;
    const Candidate row{rank(slot, strategy), slot};
    if (row.rank > limit) continue;
    rows.push_back(row);
    if (rows.size() == 2 * count) cut();
  }
  if (limit == Rank::highest() && rows.size() > count) cut();
  return limit;
}

void MemoryTier::note_arrivals() {
  const std::lock_guard lock(mutex_);
  arrived_.assign(slot_count_, false);
}

void MemoryTier::take_arrivals(std::vector<Slot>& slots) {
  const std::lock_guard lock(mutex_);
  for (const Slot slot : arrivals_) arrived_[slot] = false;
  slots.insert(slots.end(), arrivals_.begin(), arrivals_.end());
  arrivals_.clear();
}

TierStats MemoryTier::stats() const {
  const std::lock_guard lock(mutex_);
  return TierStats{
      .name = name_,
      .rows = untouched_from_ - free_slots_.size(),
      .row_bytes = layout_.row_bytes(),
      .address = reinterpret_cast<uintptr_t>(memory_->data()),
      .mapped_bytes = memory_->size_bytes(),
      .path = memory_->path(),
      .is_pmem = memory_->is_pmem(),
  };
}

}  // namespace embstore
