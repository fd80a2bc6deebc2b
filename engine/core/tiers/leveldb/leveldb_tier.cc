#include "tiers/leveldb/leveldb_tier.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <string_view>

#include "access/phase.h"
#include "errors/error.h"

namespace embstore {
namespace {

constexpr size_t kErasuresABatch = size_t{1} << 16;

std::string_view bytes_of(const LevelDbRowKey& key) { return {key.data(), key.size()}; }

}  // namespace

LevelDbTier::LevelDbTier(const std::string& table_name, const RowLayout& layout, const std::string& path,
                         const LevelDbOptions& options)
    : layout_(layout),
      row_value_(layout),
      shared_(path, table_name, layout, options),
      database_(shared_.database()) {}

void LevelDbTier::write(const RowBatch& rows, std::span<Slot> slots) {
  if (rows.empty()) return;
  std::vector<char> value(row_value_.bytes());

  const MutexLock lock(write_mutex_);
  LevelDbDatabase::Batch batch = database_.make_batch();
  if (const uint64_t end = next_sequence_ + rows.size(); end > kSlots) {
    reused_places_.store(end, std::memory_order_release);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t sequence = next_sequence_++;
    slots[i] = slot_of(sequence);
    row_value_.encode(sequence, rows.header(i), rows.row(i), value.data());
    const LevelDbRowKey key = row_key({rows.header(i).key, slots[i]});
    database_.put(batch, bytes_of(key), {value.data(), value.size()});
  }
  delete_erased_then(&batch, rows.size() * (sizeof(LevelDbRowKey) + row_value_.bytes()));
  rows_ += rows.size();
}

void LevelDbTier::read_rows(RowBatch& rows, RowPart) const {
  rows.start_reading(/*are_whole=*/true);
  const std::span<const Place> places = rows.places();
  // Neighbours in key order share LevelDB's blocks.
  std::vector<uint32_t> order(places.size());
  std::iota(order.begin(), order.end(), 0u);
  Phase phase(meter());
  const size_t row_bytes = sizeof(LevelDbRowKey) + row_value_.bytes();
  phase.count_in_rounds(Access::kFileRead, places.size(), places.size() * row_bytes, places.size());
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return places[a].key < places[b].key; });
  for (const uint32_t i : order) {
    const Place& place = places[i];
    try {
      const LevelDbDatabase::Value value = database_.get(bytes_of(row_key(place)));
      if (value.data == nullptr) {
        rows.header(i) = RowHeader{};
        rows.header(i).key = ~place.key;
        continue;
      }
      uint64_t sequence = 0;
      const bool whole = row_value_.decode(value.bytes(), sequence, rows.header(i), rows.row(i));
      if (!whole || rows.header(i).key != place.key || slot_of(sequence) != place.slot) {
        database_.fail("the row of key " + std::to_string(place.key) + " is damaged");
      }
    } catch (const Error& error) {
      rows.add_damaged(i, error.what());
    }
  }
}

void LevelDbTier::erase(std::span<const Place> places) noexcept {
  note_erased(places);
  rows_ -= places.size();
}

void LevelDbTier::note_erased(std::span<const Place> places) noexcept {
  const MutexLock lock(erased_mutex_);
  try {
    erased_.insert(erased_.end(), places.begin(), places.end());
  } catch (const std::bad_alloc&) {
    // The records stay as long as the database does. Nothing refers to them, and a place that is given out
    // again gets a new record in place of the old.
  }
}

// If rows only leave, no write() comes to delete their records. The caller doesn't get an error, since its
// change is made: the places stay noted, and the next write() or drain() reports the error.
void LevelDbTier::compact() {
  const size_t waiting = [this] {
    const MutexLock lock(erased_mutex_);
    return erased_.size();
  }();
  if (waiting < compact_from_.load(std::memory_order_relaxed)) return;
  try {
    drain();
  } catch (const Error&) {
    compact_from_.store(2 * waiting, std::memory_order_relaxed);  // so that not every batch tries again
  }
}

void LevelDbTier::drain() {
  const MutexLock lock(write_mutex_);
  delete_erased_then(nullptr, 0);
}

TierStats LevelDbTier::stats() const {
  return TierStats{
      .name = "LEVELDB",
      .rows = rows_.load(),
      .row_bytes = layout_.row_bytes(),
      .address = 0,
      .mapped_bytes = database_.file_bytes() / shared_.table_count(),  // an equal share
      .path = database_.path(),
      .is_pmem = std::nullopt,
  };
}

void LevelDbTier::delete_erased_then(const LevelDbDatabase::Batch* puts, size_t bytes_put) {
  std::vector<Place> erased;
  {
    const MutexLock lock(erased_mutex_);
    erased.swap(erased_);
  }
  if (erased.empty() && puts == nullptr) return;
  try {
    LevelDbDatabase::Batch batch = database_.make_batch();
    do {
      const size_t count = std::min(kErasuresABatch, erased.size());
      for (const Place& place : std::span(erased).last(count)) {
        database_.remove(batch, bytes_of(row_key(place)));
      }
      size_t bytes = count * sizeof(LevelDbRowKey);
      if (count == erased.size() && puts != nullptr) {
        database_.append(batch, *puts);
        bytes += bytes_put;
      }
      Phase phase(meter());
      phase.count(Access::kFileWrite, 1, bytes);
      database_.write(batch);
      database_.clear(batch);
      erased.resize(erased.size() - count);
    } while (!erased.empty());
  } catch (...) {
    note_erased(erased);
    throw;
  }
  compact_from_.store(kManyErased, std::memory_order_relaxed);
}

}  // namespace embstore
