#include "tiers/pool/pool_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "access/phase.h"
#include "errors/error.h"
#include "platform/prefetch.h"
#include "row/row_copy.h"
#include "tiers/pool/restoring.h"

namespace embstore {
namespace {

constexpr size_t kRowsFetchedAhead = 8;

// By floats, since that copy may race; see row_copy.h.
pool::RecordHeader copy_record_header(const std::byte* record) {
  constexpr int kFloats = sizeof(pool::RecordHeader) / sizeof(float);
  float bits[kFloats];
  copy_row<kFloats>(bits, reinterpret_cast<const float*>(record), kFloats);
  pool::RecordHeader header;
  std::memcpy(&header, bits, sizeof header);
  return header;
}

// Beyond it, all slots are looked at.
uint64_t most_arrivals(PoolRole role, uint64_t slots) {
  return role == PoolRole::kMiddle ? std::max<uint64_t>(slots / 32, 256) : 0;
}

}  // namespace

uint64_t PoolTier::slots_for(const RowLayout& layout, uint64_t size_bytes) {
  return pool::slots_that_fit(layout, size_bytes);
}

PoolTier::PoolTier(const std::string& path, const RowLayout& layout, const PoolIdentity& identity,
                   uint64_t size_bytes, const LibPmem& libpmem, files::FileCalls& calls, PoolRole role)
    : PoolTier(layout, role,
               pool::open_pool_files({.path = path,
                                      .layout = layout,
                                      .table_name = identity.table_name,
                                      .optimizer = identity.optimizer,
                                      .size_bytes = size_bytes},
                                     libpmem, calls)) {}

PoolTier::PoolTier(const RowLayout& layout, PoolRole role, pool::PoolFiles files)
    : layout_(layout),
      shape_(layout),
      role_(role),
      path_(files.rows->path()),
      lock_(std::move(files.lock)),
      rows_(std::move(files.rows)),
      ranks_(std::make_unique<SlotRanks>(files.slots, files.slots, /*accessed=*/false)),
      slots_(files.slots, files.slots, /*most_arrivals=*/0),
      references_(files.slots),
      unverified_(files.slots),
      arrivals_(files.slots, most_arrivals(role, files.slots)),
      table_(std::make_unique<pool::CheckpointTable>(std::move(files.checkpoints), files.slots)) {
  take_up_checkpoints();
}

PoolTier::~PoolTier() = default;

void PoolTier::take_up_checkpoints() {
  const MutexLock lock(mutex_);
  table_->load([this](size_t entry, const pool::Entry& found, std::span<const uint64_t> words) {
    mutex_.assert_held();
    references_.load(entry, words);
    checkpoints_.push_back({{found.number, found.id, found.rows}, entry, /*is_pending=*/false});
  });
  std::sort(checkpoints_.begin(), checkpoints_.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.is.number < b.is.number; });
  newest_number_ = table_->greatest_number();
  note_pending();
  awaits_restore_ = !checkpoints_.empty();
  slots_.begin_with(references_.taken());
}

void PoolTier::close() {
  const MutexLock lock(mutex_);
  table_.reset();
  rows_.reset();
  lock_.reset();
}

// --- Rows

void PoolTier::write(const RowBatch& rows, std::span<Slot> slots) {
  if (!slots_.try_claim(rows.size())) {
    throw Error(ErrorKind::kStoreFull, path_ + ": the pool has no " + std::to_string(rows.size()) +
                                           " free slots of its " + std::to_string(slots_.slots()) +
                                           "; give it a larger storage_size");
  }
  slots_.take(slots);
  std::sort(slots.begin(), slots.end());  // media are written best in the order of their lines
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

void PoolTier::was_copy(Slot slot, const RowHeader& header) noexcept { rank(slot, header); }

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
  auto record = pool::RecordHeader::of(header, next_checkpoint_.load(std::memory_order_relaxed), slot);
  shape_.seal(record, floats);
  const size_t offset = shape_.offset(slot);
  rows_->write(offset, &record, sizeof record);
  rows_->write(offset + sizeof record, floats, shape_.row_bytes);
  const Access of_header = rows_->access_of_write(sizeof record);
  const Access of_floats = rows_->access_of_write(shape_.row_bytes);
  phase.count_at(meter(), of_header, 1, sizeof record);
  phase.count_at(meter(), of_floats, 1, shape_.row_bytes);
  if (phase.wants_places()) [[unlikely]] {
    phase.touch(meter(), of_header, sizeof record, rows_->data() + offset);
    phase.touch(meter(), of_floats, shape_.row_bytes, rows_->data() + offset + sizeof record);
  }
  if (unverified_.contains(slot)) unverified_.remove(slot);
}

void PoolTier::read_rows(std::span<const Place> places, RowPart part, RowBatch& rows,
                         std::vector<DamagedRow>& damaged) const {
  const size_t floats = part == RowPart::kAll ? layout_.row_floats() : layout_.block_floats();
  const size_t bytes = sizeof(pool::RecordHeader) + floats * sizeof(float);
  rows.resize(places.size());
  Phase phase(meter());
  phase.count(Access::kLoad, places.size(), bytes);
  if (phase.wants_places()) [[unlikely]] {
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
    const pool::RecordHeader record = copy_record_header(from);
    copy_row<0>(rows.row(i), reinterpret_cast<const float*>(from + sizeof record), static_cast<int>(floats));
    RowHeader& header = rows.header(i);
    header = record.row();
    const Rank rank = ranks_->rank(place.slot, CacheStrategy::kLfu);
    header.served = rank.count - std::min(rank.count, header.frequency);
    header.stamp = rank.stamp;
    const bool is_unverified = unverified_.contains(place.slot);
    const char* const fault = is_unverified          ? fault_of(record, place, part, rows.row(i))
                              : is_of(record, place) ? nullptr
                                                     : "it's that of another row";
    if (fault == nullptr) {
      if (is_unverified && part == RowPart::kAll) unverified_.remove(place.slot);
      continue;
    }
    header.key = place.key;
    damaged.push_back({i, pool::damage_of(*rows_, shape_, place.slot, fault)});
  }
}

bool PoolTier::is_of(const pool::RecordHeader& record, const Place& place) {
  return record.key == place.key && record.slot == place.slot;
}

const char* PoolTier::fault_of(const pool::RecordHeader& record, const Place& place, RowPart part,
                               const float* floats) const {
  if (!record.is_whole()) return "its header's checksum is wrong";
  if (!is_of(record, place)) return "it's that of another row";
  if (record.weights_checksum != shape_.checksum_of_weights(floats)) return "its weights' checksum is wrong";
  if (part == RowPart::kAll && record.slots_checksum != shape_.checksum_of_slots(floats)) {
    return "the checksum of its optimizer's slots is wrong";
  }
  return nullptr;
}

uint64_t PoolTier::reused_places() const { return slots_.reused_slots(); }

void PoolTier::erase(std::span<const Place> places) {
  constexpr size_t kSlotsAtOnce = 256;
  Slot free[kSlotsAtOnce];
  size_t count = 0;
  for (const Place& place : places) {
    ranks_->empty(place.slot);
    if (references_.remove_live(place.slot)) free[count++] = place.slot;
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
      .rows = references_.live_slots(),
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

std::vector<PoolTier::Checkpoint>::iterator PoolTier::find(uint64_t number) {
  return std::find_if(checkpoints_.begin(), checkpoints_.end(),
                      [number](const Checkpoint& checkpoint) { return checkpoint.is.number == number; });
}

void PoolTier::note_pending() {
  const auto is_pending = [](const Checkpoint& checkpoint) { return checkpoint.is_pending; };
  const auto oldest = std::find_if(checkpoints_.begin(), checkpoints_.end(), is_pending);
  next_checkpoint_.store(oldest == checkpoints_.end() ? newest_number() + 1 : oldest->is.number,
                         std::memory_order_relaxed);
  pending_.store(static_cast<uint64_t>(std::count_if(checkpoints_.begin(), checkpoints_.end(), is_pending)),
                 std::memory_order_release);
}

void PoolTier::begin_checkpoint(uint64_t number) {
  const MutexLock lock(mutex_);
  if (number <= newest_number()) {
    throw Error(ErrorKind::kStorage, path_ + ": checkpoint " + std::to_string(number) +
                                         " comes after checkpoint " + std::to_string(newest_number()));
  }
  if (checkpoints_.size() == kMostCheckpoints) {
    throw Error(ErrorKind::kStorage, path_ + ": has " + std::to_string(kMostCheckpoints) +
                                         " checkpoints already, kept and pending, and can't have more");
  }
  std::array<bool, pool::kEntries> is_used{};
  for (const Checkpoint& checkpoint : checkpoints_) is_used[checkpoint.entry] = true;
  const size_t entry = table_->choose(is_used);
  checkpoints_.reserve(checkpoints_.size() + 1);
  references_.begin(entry, number);
  checkpoints_.push_back({{number, {}, 0}, entry, /*is_pending=*/true});
  newest_number_.store(number, std::memory_order_release);
  note_pending();
}

void PoolTier::add_to_checkpoints(uint64_t first_number, Slot slot) noexcept {
  if (references_.add_to_pending(first_number, slot)) slots_.give_back(std::span(&slot, 1));
}

void PoolTier::commit_checkpoint(uint64_t number, const CheckpointId& id) {
  const MutexLock lock(mutex_);
  const auto checkpoint = find(number);
  if (checkpoint == checkpoints_.end() || !checkpoint->is_pending) {
    throw Error(ErrorKind::kStorage, path_ + ": there's no pending checkpoint " + std::to_string(number));
  }
  rows_->sync(0, rows_->size_bytes());
  checkpoint->is.rows = table_->commit(checkpoint->entry, number, id, references_.bits(checkpoint->entry));
  checkpoint->is.id = id;
  checkpoint->is_pending = false;
  references_.settle(checkpoint->entry);
  note_pending();
}

void PoolTier::drop_checkpoint(uint64_t number) {
  const MutexLock lock(mutex_);
  const auto checkpoint = find(number);
  if (checkpoint != checkpoints_.end()) drop(checkpoint);
}

void PoolTier::drop(std::vector<Checkpoint>::iterator checkpoint) {
  // What it has may be written over only when it's gone from the medium.
  if (!checkpoint->is_pending) table_->drop(checkpoint->entry);
  references_.drop(checkpoint->entry, [this](std::span<const Slot> slots) { slots_.give_back(slots); });
  checkpoints_.erase(checkpoint);
  note_pending();
}

std::vector<PoolCheckpoint> PoolTier::checkpoints() const {
  const MutexLock lock(mutex_);
  std::vector<PoolCheckpoint> durable;
  for (const Checkpoint& checkpoint : checkpoints_) {
    if (!checkpoint.is_pending) durable.push_back(checkpoint.is);
  }
  return durable;
}

// --- Restoring

void PoolTier::restore(uint64_t number, int threads, const Restored& visit) {
  const MutexLock lock(mutex_);
  const auto checkpoint = find(number);
  if (checkpoint == checkpoints_.end() || checkpoint->is_pending) {
    throw Error(ErrorKind::kStorage,
                path_ + ": there's no checkpoint " + std::to_string(number) + " that is durable");
  }
  const size_t entry = checkpoint->entry;
  const pool::SlotBits& bits = references_.bits(entry);
  try {
    pool::visit_records(*rows_, shape_, bits, number, threads, meter(),
                        [&](std::span<const RowHeader> headers, std::span<const Slot> slots) {
                          for (size_t i = 0; i < slots.size(); ++i) fill_rank(slots[i], headers[i]);
                          visit(headers, slots);
                        });
    while (checkpoints_.back().is.number > number) drop(checkpoints_.end() - 1);
  } catch (...) {
    for (size_t i = 0; i < bits.words(); ++i) {
      pool::for_each_slot(bits.word(i), i * 64, [&](Slot slot) { ranks_->empty(slot); });
    }
    throw;
  }
  {
    const MutexLock arrivals_lock(arrivals_mutex_);
    arrivals_.note_too_many();
  }
  references_.make_live(entry);
  unverified_.copy_from(bits);
  awaits_restore_ = false;
}

void PoolTier::check_is_taken_up() const {
  if (!awaits_restore_) return;
  throw Error(
      ErrorKind::kStorage,
      path_ +
          ": holds checkpoints of an earlier run; take them over with restore_persisted(), or give them "
          "up with discard_persisted(), before rows are put in or persisted");
}

void PoolTier::start_over() {
  const MutexLock lock(mutex_);
  while (!checkpoints_.empty()) drop(checkpoints_.end() - 1);
  awaits_restore_ = false;
}

}  // namespace embstore
