#include "movement/mover.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "errors/error.h"
#include "movement/shard_order.h"
#include "platform/prefetch.h"

namespace embstore {
namespace {

// What waits to be counted before a look-up stops to count it itself.
constexpr size_t kMostWaitingBytes = size_t{32} << 20;

// Rows that go down at once: enough to write them in large pieces, few enough that the slots they leave are
// still in the cache when other rows come.
constexpr uint64_t kRowsAtOnce = 2048;

}  // namespace

Mover::Mover(TierStack& tiers, const Index& index, Epochs& epochs, const RowLayout& layout,
             CacheStrategy strategy)
    : tiers_(tiers),
      index_(index),
      epochs_(epochs),
      layout_(layout),
      strategy_(strategy),
      largest_claim_(tiers.headroom_rows(0) / 2),
      leaving_rows_(layout),
      log_(layout),
      free_slots_(static_cast<int64_t>(tiers.first().slot_count())) {
  for (size_t t = 0; t + 1 < tiers.size(); ++t) coldest_.emplace_back(*tiers.memory(t), strategy);
  tiers_.start_compaction(*this);
  EvictionPool::instance();  // a bad number of threads is told here rather than by a look-up
}

// --- Room

Mover::Claim::~Claim() {
  mover_.free_slots_.fetch_add(static_cast<int64_t>(unused_), std::memory_order_relaxed);
}

void Mover::Claim::take(std::span<Slot> slots) {
  mover_.tiers_.first().take(slots);
  unused_ -= slots.size();
}

void Mover::Claim::give_back(std::span<const Slot> slots) {
  mover_.tiers_.first().give_back(slots);
  unused_ += slots.size();
}

std::optional<Mover::Claim> Mover::try_claim(uint64_t count) {
  int64_t free = free_slots_.load(std::memory_order_relaxed);
  do {
    if (free < static_cast<int64_t>(count)) return std::nullopt;
  } while (!free_slots_.compare_exchange_weak(free, free - static_cast<int64_t>(count)));
  return Claim(*this, count);
}

Mover::Claim Mover::claim(uint64_t count) {
  for (;;) {
    if (std::optional<Claim> claim = try_claim(count)) return std::move(*claim);
    settle();
    if (std::optional<Claim> claim = try_claim(count)) return std::move(*claim);
    // Others have claimed what is free; they need no room of ours to go on.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

Mover::Claim Mover::claim_locked(uint64_t count) {
  for (;;) {
    if (std::optional<Claim> claim = try_claim(count)) return std::move(*claim);
    if (!shrink_once(0)) std::this_thread::yield();  // as in claim()
  }
}

void Mover::rows_came() {
  if (tiers_.excess_rows(0) != 0) EvictionPool::instance().schedule(*this);
  tiers_.compact();
}

// --- Counting

void Mover::count_served(ServedBatch&& batch) {
  if (log_.append(std::move(batch)) > kMostWaitingBytes) {
    settle();
  } else {
    EvictionPool::instance().schedule(*this);
  }
}

void Mover::count_waiting() {
  std::vector<ServedBatch> batches = log_.take_waiting();
  if (batches.empty()) return;
  std::vector<Accesses> missed;
  // All of what is known before any row moves, so that none goes down that was accessed.
  for (const ServedBatch& batch : batches) count_hits(batch, missed);
  for (const ServedBatch& batch : batches) count_lower(batch, missed);
  for (ServedBatch& batch : batches) log_.recycle(std::move(batch));
  count_missed(std::move(missed));
}

void Mover::count_hits(const ServedBatch& batch, std::vector<Accesses>& missed) {
  constexpr size_t kAhead = 16;
  MemoryTier& first = tiers_.first();
  const auto is_hit = [](RowRef ref) { return ref && ref.tier() == 0; };
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    if (i + kAhead < batch.ids.size() && is_hit(batch.refs[i + kAhead])) {
      first.prefetch_rank(batch.refs[i + kAhead].slot());
    }
    if (!is_hit(batch.refs[i])) continue;
    const Slot slot = batch.refs[i].slot();
    const uint64_t stamp = batch.first_stamp + i;
    // Only this mutex's holder takes rows out of the first tier, so what fills the slot stays there.
    if (first.is_filled(slot) && first.key(slot) == batch.ids[i]) {
      first.count_served(slot, 1, stamp);
    } else {
      missed.push_back({batch.ids[i], 1, stamp});
    }
  }
}

void Mover::count_lower(const ServedBatch& batch, std::vector<Accesses>& missed) {
  const StagedRows& staged = batch.lower;
  std::vector<StagedAccesses> accesses;
  accesses.reserve(staged.size());
  for (const uint32_t i :
       in_order_of_shards(staged.size(), [&staged](size_t row) { return staged.entry(row).hash; })) {
    accesses.push_back({i, 1, batch.first_stamp + staged.entry(i).tag});
  }
  promote(staged, accesses, missed);
}

void Mover::count_missed(std::vector<Accesses> missed) {
  constexpr size_t kAhead = 16;
  StagedRows staged(layout_);
  while (!missed.empty()) {
    const Epochs::Guard guard = epochs_.enter();
    IndexReader reader(index_);
    staged.start(tiers_);
    for (size_t n = 0; n < missed.size(); ++n) {
      if (n + kAhead < missed.size()) reader.prefetch(hash_key(missed[n + kAhead].key));
      const auto& [key, count, stamp] = missed[n];
      const KeyHash hash = hash_key(key);
      const IndexHit found = reader.find(hash, key);
      if (!found.ref) continue;
      if (found.ref.tier() == 0) {
        tiers_.first().count_served(found.ref.slot(), count, stamp);
      } else {
        staged.add(key, hash, found, n);
      }
    }
    staged.read(tiers_);
    std::vector<StagedAccesses> accesses;
    accesses.reserve(staged.size());
    for (const uint32_t i :
         in_order_of_shards(staged.size(), [&staged](size_t row) { return staged.entry(row).hash; })) {
      const Accesses& row = missed[staged.entry(i).tag];
      accesses.push_back({i, row.count, row.stamp});
    }
    missed.clear();
    promote(staged, accesses, missed);  // those that changed while they were read come once more
  }
}

// --- Up

void Mover::promote(const StagedRows& staged, std::span<const StagedAccesses> accesses,
                    std::vector<Accesses>& missed) {
  constexpr size_t kAhead = 8;
  MemoryTier& to = tiers_.first();
  const Epochs::Guard guard = epochs_.enter();
  const IndexReader reader(index_);
  std::vector<Slot> slots;
  std::array<std::vector<Place>, RowRef::kMaxTiers> left;  // by tier
  const auto hash_of = [&](size_t n) { return staged.entry(accesses[n].row).hash; };
  for (size_t first = 0; first < accesses.size();) {
    const int shard_number = shard_of(hash_of(first));
    size_t end = first;
    while (end < accesses.size() && end - first < largest_claim_ && shard_of(hash_of(end)) == shard_number) {
      ++end;
    }
    Claim claim = claim_locked(end - first);
    slots.resize(end - first);
    claim.take(slots);
    size_t used = 0;
    for (auto& places : left) places.clear();
    // Also where a tier has lost a row, which is told by an error.
    struct End {
      TierStack& tiers;
      Claim& claim;
      const std::vector<Slot>& slots;
      const size_t& used;
      const decltype(left)& left_places;
      ~End() {
        for (size_t t = 1; t < tiers.size(); ++t) {
          if (!left_places[t].empty()) tiers.tier(t).erase(left_places[t]);
        }
        claim.give_back(std::span(slots).subspan(used));
      }
    };
    {
      IndexShard& shard = index_.shard(shard_number);
      const MutexLock lock(shard.mutex);
      const End at_the_end{tiers_, claim, slots, used, left};
      for (size_t n = first; n < end; ++n) {
        if (n + kAhead < end) {
          reader.prefetch(hash_of(n + kAhead));
          to.prefetch(slots[used + kAhead]);
          staged.prefetch(accesses[n + kAhead].row);
        }
        const auto& [row, count, stamp] = accesses[n];
        const StagedRows::Entry& wanted = staged.entry(row);
        const IndexEntry entry = shard.entry(wanted.hash, wanted.key);
        if (!entry) continue;  // removed
        const RowRef from = entry.ref();
        if (from.tier() == 0) {
          to.count_served(from.slot(), count, stamp);
          continue;
        }
        const MemoryTier* const memory = tiers_.memory(from.tier());
        if (memory == nullptr && !staged.holds_at(row, from, tiers_)) {
          missed.push_back({wanted.key, count, stamp});
          continue;
        }
        RowHeader header = memory != nullptr ? memory->header(from.slot(), wanted.key) : staged.header(row);
        // Counted at once, so that a row that has just come isn't taken for colder than it is.
        header.served += count;
        header.stamp = std::max(header.stamp, stamp);
        const Slot slot = slots[used++];
        const float* const floats = memory != nullptr ? memory->row(from.slot()) : staged.row(row);
        left[from.tier()].push_back(move_up(shard, entry, header, floats, slot));
      }
    }
    first = end;
  }
}

void Mover::promote_entry(IndexShard& shard, const IndexEntry& entry, const RowHeader& header,
                          const float* row, Slot slot) {
  const uint32_t tier = entry.ref().tier();
  const Place left = move_up(shard, entry, header, row, slot);
  tiers_.tier(tier).erase({&left, 1});
}

Place Mover::move_up(IndexShard& shard, const IndexEntry& entry, const RowHeader& header, const float* row,
                     Slot slot) {
  const RowRef from = entry.ref();
  // Off one count first and on the other last: a tier that looked fuller than it is would give up a row
  // that outranks one which is on its way through the first tier.
  tiers_.add_rows(from.tier(), -1);
  tiers_.first().put(slot, header, row);
  shard.set_ref(entry, RowRef(0, slot));
  tiers_.add_rows(0, 1);
  promotions_.fetch_add(1, std::memory_order_relaxed);
  return {header.key, from.slot()};
}

// --- Down

void Mover::run() noexcept {
  try {
    const std::lock_guard lock(move_mutex_);
    settle_locked();
  } catch (...) {
    const std::lock_guard lock(error_mutex_);
    error_ = std::current_exception();
  }
}

void Mover::settle() {
  {
    const std::lock_guard lock(error_mutex_);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  const std::lock_guard lock(move_mutex_);
  settle_locked();
}

void Mover::stop() { EvictionPool::instance().cancel(*this); }

void Mover::settle_locked() {
  do {
    count_waiting();
    shrink_from(0);
  } while (!log_.empty());
  tiers_.compact();
}

// Only the last tier moves rows on its own accord.
void Mover::relocate(std::span<Relocation> rows) {
  constexpr size_t kAhead = 8;
  const auto tier = static_cast<uint32_t>(tiers_.size() - 1);
  const Epochs::Guard guard = epochs_.enter();
  const IndexReader reader(index_);
  const std::vector<uint32_t> order =
      in_order_of_shards(rows.size(), [&rows](size_t i) { return hash_key(rows[i].key); });
  for (size_t first = 0; first < order.size();) {
    const int shard_number = shard_of(hash_key(rows[order[first]].key));
    IndexShard& shard = index_.shard(shard_number);
    const MutexLock lock(shard.mutex);
    for (; first < order.size(); ++first) {
      Relocation& row = rows[order[first]];
      const KeyHash hash = hash_key(row.key);
      if (shard_of(hash) != shard_number) break;
      if (first + kAhead < order.size()) reader.prefetch(hash_key(rows[order[first + kAhead]].key));
      const IndexEntry entry = shard.entry(hash, row.key);
      row.done = entry && entry.ref() == RowRef(tier, row.from);
      if (row.done) shard.set_ref(entry, RowRef(tier, row.to));
    }
  }
}

void Mover::shrink_from(size_t t) {
  while (shrink_once(t)) {
  }
}

bool Mover::shrink_once(size_t t) {
  if (t + 1 == tiers_.size()) return false;
  // From the bottom, so that there is room below for what comes down.
  shrink_from(t + 1);
  const uint64_t excess = tiers_.excess_rows(t);
  if (excess == 0) return false;
  uint64_t count = std::min(excess, kRowsAtOnce);
  if (tiers_.memory(t + 1) != nullptr) count = std::min(count, tiers_.headroom_rows(t + 1));
  // Rows that changed while they were copied stay; the next round finds colder ones.
  if (demote(t, count) == 0) std::this_thread::yield();
  return true;
}

uint64_t Mover::demote(size_t t, uint64_t count) {
  constexpr size_t kAhead = 16;
  const Epochs::Guard guard = epochs_.enter();
  MemoryTier& from = *tiers_.memory(t);
  Tier& to = tiers_.tier(t + 1);

  std::vector<Leaving> found_rows;
  IndexReader reader(index_);
  const std::vector<MemoryTier::Candidate>& coldest = coldest_[t].next(count);
  found_rows.reserve(coldest.size());
  for (size_t i = 0; i < coldest.size(); ++i) {
    if (i + 2 * kAhead < coldest.size()) from.prefetch_rank(coldest[i + 2 * kAhead].slot);
    if (i + kAhead < coldest.size()) reader.prefetch(hash_key(from.key(coldest[i + kAhead].slot)));
    const auto& [rank, slot] = coldest[i];
    const int64_t key = from.key(slot);
    const KeyHash hash = hash_key(key);
    const IndexHit found = reader.find(hash, key);
    if (found.ref != RowRef(static_cast<uint32_t>(t), slot)) continue;
    // Accessed since it was ranked: not the coldest any more. An access from here on changes the bucket.
    if (from.rank(slot, strategy_) != rank) continue;
    found_rows.push_back({{key, slot}, hash, found});
  }
  // As many as are still too many: rows may have been promoted from here since they were counted.
  found_rows.resize(std::min<uint64_t>(found_rows.size(), tiers_.excess_rows(t)));
  std::vector<Leaving>& leaving = leaving_;
  leaving.clear();
  for (const uint32_t i :
       in_order_of_shards(found_rows.size(), [&found_rows](size_t row) { return found_rows[row].hash; })) {
    leaving.push_back(found_rows[i]);
  }
  RowBatch& rows = leaving_rows_;
  std::vector<Place> places(leaving.size());
  std::transform(leaving.begin(), leaving.end(), places.begin(),
                 [](const Leaving& row) { return row.place; });
  from.read(places, rows);
  std::vector<Slot> slots(leaving.size());
  to.write(rows, slots);

  std::vector<Place> left;
  std::vector<Place> written_in_vain;
  std::vector<IndexEntry> entries;
  for (size_t first = 0; first < leaving.size();) {
    const int shard_number = shard_of(leaving[first].hash);
    IndexShard& shard = index_.shard(shard_number);
    const MutexLock lock(shard.mutex);
    // First which rows are still what was copied, then the changes: they would look like others'.
    entries.clear();
    size_t end = first;
    for (; end < leaving.size() && shard_of(leaving[end].hash) == shard_number; ++end) {
      if (end + kAhead < leaving.size()) prefetch_line(leaving[end + kAhead].found.bucket);
      const Leaving& row = leaving[end];
      const IndexEntry entry = shard.entry(row.hash, row.place.key);
      const bool unchanged = entry && entry.bucket == row.found.bucket && row.found.holds();
      entries.push_back(unchanged ? entry : IndexEntry{});
    }
    for (size_t i = first; i < end; ++i) {
      if (const IndexEntry& entry = entries[i - first]) {
        shard.set_ref(entry, RowRef(static_cast<uint32_t>(t + 1), slots[i]));
        left.push_back(leaving[i].place);
        coldest_[t].left(leaving[i].place.slot);
      } else {
        written_in_vain.push_back({leaving[i].place.key, slots[i]});
      }
    }
    first = end;
  }

  to.erase(written_in_vain);
  from.erase(left);
  const auto moved = static_cast<int64_t>(left.size());
  tiers_.add_rows(t + 1, moved);
  tiers_.add_rows(t, -moved);
  if (t == 0) free_slots_.fetch_add(moved);
  demotions_.fetch_add(left.size(), std::memory_order_relaxed);
  return left.size();
}

}  // namespace embstore
