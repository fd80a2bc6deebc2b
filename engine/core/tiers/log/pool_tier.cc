#include "tiers/log/pool_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "access/phase.h"
#include "errors/error.h"
#include "platform/prefetch.h"
#include "row/row_copy.h"
#include "tiers/log/file_names.h"
#include "tiers/log/restore_rows.h"

namespace embstore {
namespace {

constexpr size_t kRowsFetchedAhead = 8;

// Copied as floats, since the copy may race with a write; see row_copy.h.
log::RecordHeader copy_record_header(const std::byte* record) {
  constexpr int kFloats = sizeof(log::RecordHeader) / sizeof(float);
  float bits[kFloats];
  copy_row<kFloats>(bits, reinterpret_cast<const float*>(record), kFloats);
  log::RecordHeader header;
  std::memcpy(&header, bits, sizeof header);
  return header;
}

// Returns how many arrivals are noted. If there are more, all slots are looked at.
uint64_t max_arrivals(PoolRole role, uint64_t slots) {
  return role == PoolRole::kMiddle ? std::max<uint64_t>(slots / 32, 256) : 0;
}

}  // namespace

uint64_t PoolTier::slots_for(const RowLayout& layout, uint64_t size_bytes) {
  return log::records_that_fit(layout, size_bytes);
}

PoolTier::PoolTier(const std::string& path, const log::TableIdentity& table, uint64_t size_bytes,
                   bool is_needed, const LibPmem& libpmem, files::FileCalls& calls, PoolRole role)
    : PoolTier(table, role, log::open_pool_file(path, table, size_bytes, is_needed, libpmem, calls)) {}

PoolTier::PoolTier(const log::TableIdentity& table, PoolRole role, std::unique_ptr<medium::PmemFile> rows)
    : layout_(table.layout),
      shape_(log::shape_in_pool(table.layout)),
      role_(role),
      path_(rows->path()),
      rows_(std::move(rows)),
      slots_(slots_for(layout_, rows_->size_bytes()), slots_for(layout_, rows_->size_bytes()),
             /*max_arrivals=*/0),
      ranks_(std::make_unique<SlotRanks>(slots_.slots(), slots_.slots(), /*accessed=*/false)),
      references_(slots_.slots()),
      unverified_(slots_.slots()),
      arrivals_(slots_.slots(), max_arrivals(role, slots_.slots())) {}

PoolTier::~PoolTier() = default;

void PoolTier::close() { rows_.reset(); }

// --- Rows

void PoolTier::write(const RowBatch& rows, std::span<Slot> slots) {
  if (!slots_.try_claim(rows.size())) {
    throw Error(ErrorKind::kStoreFull, path_ + ": the pool has no " + std::to_string(rows.size()) +
                                           " free slots of its " + std::to_string(slots_.slots()) +
                                           "; give it a larger storage_size");
  }
  slots_.take(slots);
  std::sort(slots.begin(), slots.end());  // media are written fastest in address order
  Phase phase(meter());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kRowsFetchedAhead < rows.size()) ranks_->prefetch(slots[i + kRowsFetchedAhead]);
    put(slots[i], rows.header(i), rows.row(i), phase);
  }
  fence();
  for (size_t i = 0; i < rows.size(); ++i) {
    references_.add_live(slots[i]);
    rank(slots[i], rows.header(i));
  }
}

void PoolTier::fill_rank(Slot slot, const RowHeader& header) noexcept {
  ranks_->fill(slot, header.key, header.frequency, header.served, header.stamp);
}

void PoolTier::rank(Slot slot, const RowHeader& header) noexcept {
  fill_rank(slot, header);
  if (role_ != PoolRole::kMiddle) return;
  const MutexLock lock(arrivals_mutex_);
  arrivals_.note(slot);
}

void PoolTier::promote_copy(Slot slot, const RowHeader& header) noexcept { rank(slot, header); }

bool PoolTier::take_arrivals(std::vector<Slot>& slots) {
  const MutexLock lock(arrivals_mutex_);
  return arrivals_.take(slots);
}

int64_t PoolTier::key(Slot slot) const { return copy_record_header(rows_->data() + shape_.offset(slot)).key; }

Slot PoolTier::write_claimed(const RowHeader& header, const float* floats, bool is_live) noexcept {
  Phase phase(meter());
  return write_claimed(header, floats, is_live, phase);
}

Slot PoolTier::write_claimed(const RowHeader& header, const float* floats, bool is_live,
                             Phase& phase) noexcept {
  Slot slot;
  slots_.take(std::span(&slot, 1));
  put(slot, header, floats, phase);
  if (is_live) {
    references_.add_live(slot);
    rank(slot, header);
  }
  return slot;
}

void PoolTier::put(Slot slot, const RowHeader& header, const float* floats, Phase& phase) noexcept {
  auto record = log::RecordHeader::of(header, next_checkpoint_.load(std::memory_order_relaxed), slot);
  shape_.seal(record, floats);
  const size_t offset = shape_.offset(slot);
  rows_->write(offset, &record, sizeof record);
  rows_->write(offset + sizeof record, floats, shape_.row_bytes);
  const Access of_header = rows_->access_of_write(sizeof record);
  const Access of_floats = rows_->access_of_write(shape_.row_bytes);
  phase.count_at(meter(), of_header, 1, sizeof record);
  phase.count_at(meter(), of_floats, 1, shape_.row_bytes);
  if (phase.wants_addresses()) [[unlikely]] {
    phase.touch(meter(), of_header, sizeof record, rows_->data() + offset);
    phase.touch(meter(), of_floats, shape_.row_bytes, rows_->data() + offset + sizeof record);
  }
  if (unverified_.contains(slot)) unverified_.remove(slot);
}

void PoolTier::read_rows(RowBatch& rows, RowPart part) const {
  rows.start_reading(part == RowPart::kAll || layout_.slot_count() == 0);
  const std::span<const Place> places = rows.places();
  const size_t floats = part == RowPart::kAll ? layout_.row_floats() : layout_.block_floats();
  const size_t bytes = sizeof(log::RecordHeader) + floats * sizeof(float);
  Phase phase(meter());
  phase.count(Access::kLoad, places.size(), bytes);
  if (phase.wants_addresses()) [[unlikely]] {
    for (const Place& place : places) {
      phase.touch(meter(), Access::kLoad, bytes, rows_->data() + shape_.offset(place.slot));
    }
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (i + kRowsFetchedAhead < places.size()) {
      const Slot ahead = places[i + kRowsFetchedAhead].slot;
      prefetch_bytes(rows_->data() + shape_.offset(ahead), bytes);
      ranks_->prefetch(ahead);
    }
    const Place& place = places[i];
    const std::byte* const from = rows_->data() + shape_.offset(place.slot);
    const log::RecordHeader record = copy_record_header(from);
    copy_row<0>(rows.row(i), reinterpret_cast<const float*>(from + sizeof record), static_cast<int>(floats));
    RowHeader& header = rows.header(i);
    header = record.row();
    update_rank(place.slot, header);
    const bool is_unverified = unverified_.contains(place.slot);
    const char* fault = is_unverified
                            ? log::fault_of(record, place.slot, rows.row(i), part == RowPart::kAll, shape_)
                            : nullptr;
    if (fault == nullptr && !is_of(record, place)) fault = "it's that of another row";
    if (fault == nullptr) {
      if (is_unverified && part == RowPart::kAll) unverified_.remove(place.slot);
      continue;
    }
    header.key = place.key;
    rows.add_damaged(i, damage_of(place.slot, fault));
  }
}

void PoolTier::update_rank(Slot slot, RowHeader& header) const {
  const Rank rank = ranks_->rank(slot, CacheStrategy::kLfu);
  header.served = rank.count - std::min(rank.count, header.frequency);
  header.stamp = rank.stamp;
}

bool PoolTier::is_of(const log::RecordHeader& record, const Place& place) {
  return record.key == place.key && record.record == place.slot;
}

std::string PoolTier::damage_of(Slot slot, const char* fault) const {
  return path_ + ": the record in slot " + std::to_string(slot) + " (at byte " +
         std::to_string(shape_.offset(slot)) + ") is damaged: " + fault;
}

uint64_t PoolTier::reused_places() const { return slots_.reused_slots(); }

void PoolTier::erase(std::span<const Place> places) {
  constexpr size_t kSlotsAtOnce = 256;
  Slot free[kSlotsAtOnce];
  size_t count = 0;
  for (const Place& place : places) {
    ranks_->empty(place.slot);
    if (references_.free_live(place.slot)) free[count++] = place.slot;
    if (count == kSlotsAtOnce) {
      slots_.give_back(std::span(free, count));
      count = 0;
    }
  }
  if (count != 0) slots_.give_back(std::span(free, count));
}

TierStats PoolTier::stats() const {
  return TierStats{
      .name = "PMEM_POOL",
      .rows = references_.live(),
      .row_bytes = layout_.row_bytes(),
      .address = reinterpret_cast<uintptr_t>(rows_->data() + shape_.offset(0)),
      .mapped_bytes = rows_->size_bytes(),
      .path = path_,
      .is_pmem = rows_->is_pmem(),
  };
}

std::string PoolTier::described_room() const {
  return path_ + ", of whose " + std::to_string(slot_count()) + " places " + std::to_string(free_slots()) +
         " are free, " + std::to_string(kHeadroomSlots) + " of them for moves";
}

// --- Checkpoints

void PoolTier::adopt_kept(std::span<const TierRows> kept) {
  for (const TierRows& checkpoint : kept) {
    const bool fits =
        checkpoint.extents.size() <= 1 &&
        (checkpoint.extents.empty() || log::end_of_rows(checkpoint.extents.front().rows) <= slots_.slots());
    if (!fits) {
      log::refuse_needed(path_, "is truncated: checkpoint " + std::to_string(checkpoint.checkpoint) +
                                    " has rows beyond its end");
    }
  }
  const MutexLock lock(mutex_);
  for (const TierRows& checkpoint : kept) {
    references_.load(checkpoint.checkpoint, checkpoint.extents.empty() ? std::span<const uint64_t>()
                                                                       : checkpoint.extents.front().rows);
    newest_checkpoint_ = checkpoint.checkpoint;
  }
  note_pending();
  slots_.take_existing(references_.taken());
}

void PoolTier::note_pending() {
  const uint64_t oldest = references_.oldest_pending();
  next_checkpoint_.store(oldest == 0 ? newest_checkpoint_ + 1 : oldest, std::memory_order_relaxed);
}

void PoolTier::begin_checkpoint(uint64_t number) {
  const MutexLock lock(mutex_);
  references_.begin(number);
  newest_checkpoint_ = number;
  note_pending();
}

void PoolTier::add_to_checkpoints(uint64_t first_number, Slot slot) noexcept {
  if (references_.add_to_pending(first_number, slot)) slots_.give_back(std::span(&slot, 1));
}

std::vector<ExtentRows> PoolTier::make_durable(uint64_t number) {
  rows_->sync(0, rows_->size_bytes());
  const MutexLock lock(mutex_);
  references_.end_pending(number);
  note_pending();
  return {{.extent = 0, .capacity = slots_.slots(), .rows = references_.rows_of(number)}};
}

void PoolTier::drop_checkpoint(uint64_t number) noexcept {
  const MutexLock lock(mutex_);
  if (!references_.has(number)) return;
  references_.drop(number, [this](std::span<const Slot> slots) { slots_.give_back(slots); });
  note_pending();
}

// --- Restoring

void PoolTier::read_headers(std::span<const Slot> slots, uint64_t number,
                            std::vector<RowHeader>& headers) const {
  Phase phase(meter());
  phase.count(Access::kLoad, slots.size(), sizeof(log::RecordHeader));
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i + 2 * kRowsFetchedAhead < slots.size()) {
      prefetch_line(rows_->data() + shape_.offset(slots[i + 2 * kRowsFetchedAhead]));
    }
    const log::RecordHeader record = log::header_of(rows_->data() + shape_.offset(slots[i]));
    const char* const fault = log::fault_of_header(record, slots[i], number);
    if (fault != nullptr) throw Error(ErrorKind::kStorage, damage_of(slots[i], fault));
    headers.push_back(record.row());
  }
}

void PoolTier::restore(uint64_t number, int threads, const Restored& visit) {
  constexpr size_t kRecordsAtOnce = 4096;  // enough to give visitors long batches
  const log::ExtentSlots pool{.first = 0, .rows = references_.rows_of(number)};
  try {
    log::restore_rows(
        {&pool, 1}, kRecordsAtOnce, threads,
        [&](size_t, std::span<const Slot> slots, std::vector<RowHeader>& headers) {
          read_headers(slots, number, headers);
        },
        [&](std::span<const RowHeader> headers, std::span<const Slot> slots) {
          for (size_t i = 0; i < slots.size(); ++i) fill_rank(slots[i], headers[i]);
          visit(headers, slots);
        });
  } catch (...) {
    for (size_t i = 0; i < pool.rows.size(); ++i) {
      log::for_each_row(pool.rows[i], i * 64, [&](uint64_t slot) { ranks_->empty(static_cast<Slot>(slot)); });
    }
    throw;
  }
  {
    const MutexLock arrivals_lock(arrivals_mutex_);
    arrivals_.note_too_many();
  }
  references_.make_live(number);
  unverified_.assign(0, log::words_for(slots_.slots()), pool.rows);
}

}  // namespace embstore
