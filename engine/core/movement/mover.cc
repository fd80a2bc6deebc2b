#include "movement/mover.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "error.h"

namespace embstore {
namespace {

// Ids that wait to be counted before a look-up stops to count them itself: 32 MiB.
constexpr size_t kMostWaitingIds = size_t{4} << 20;

}  // namespace

Mover::Mover(TierStack& tiers, const Index& index, Epochs& epochs, const RowLayout& layout,
             CacheStrategy strategy)
    : tiers_(tiers),
      index_(index),
      epochs_(epochs),
      layout_(layout),
      strategy_(strategy),
      largest_claim_(tiers.headroom_rows(0) / 2),
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

Mover::Claim Mover::claim_paused(uint64_t count) {
  if (std::optional<Claim> claim = try_claim(count)) return std::move(*claim);
  shrink_from(0);
  std::optional<Claim> claim = try_claim(count);
  return std::move(claim.value());  // nobody else claims
}

void Mover::rows_came() {
  if (tiers_.excess_rows(0) != 0) EvictionPool::instance().schedule(*this);
  tiers_.compact();
}

// --- Counting

void Mover::count_served(std::span<const int64_t> ids, std::span<const uint32_t> excepted,
                         uint64_t first_stamp) {
  if (log_.append(first_stamp, ids, excepted) > kMostWaitingIds) {
    settle();
  } else {
    EvictionPool::instance().schedule(*this);
  }
}

void Mover::count_waiting() {
  constexpr size_t kAhead = 16;
  const Epochs::Guard guard = epochs_.enter();
  MemoryTier& first = tiers_.first();
  std::vector<AccessLog::Batch> batches = log_.take();
  std::vector<Access> lower;
  for (const AccessLog::Batch& batch : batches) {
    IndexReader reader(index_);
    auto excepted = batch.excepted.begin();
    const auto count = [&](size_t i, RowRef ref) {
      if (excepted != batch.excepted.end() && *excepted == i) {
        ++excepted;
      } else if (ref && ref.tier() != 0) {
        lower.push_back({batch.ids[i], batch.first_stamp + i});
      } else if (ref) {
        // Only this mutex's holder takes rows out of the first tier, so the slot stays the key's.
        first.count_served(ref.slot());
        first.touch(ref.slot(), batch.first_stamp + i);
      }
    };
    // As look-ups do: a bucket is fetched kAhead ids before it's probed, a rank as many before it's counted.
    std::array<RowRef, kAhead> refs;
    const size_t size = batch.ids.size();
    for (size_t i = 0; i < size + 2 * kAhead; ++i) {
      RowRef& ref = refs[i % kAhead];
      if (i >= 2 * kAhead) count(i - 2 * kAhead, ref);
      if (i >= kAhead && i - kAhead < size) {
        const int64_t id = batch.ids[i - kAhead];
        ref = reader.find(hash_key(id), id).ref;
        if (ref && ref.tier() == 0) first.prefetch_rank(ref.slot());
      }
      if (i < size) reader.prefetch(hash_key(batch.ids[i]));
    }
  }
  log_.recycle(std::move(batches));
  if (!lower.empty()) count_lower(lower);
}

// Rows that were demoted between a look-up and its being counted: they were accessed, so they come back.
void Mover::count_lower(std::vector<Access>& accesses) {
  std::sort(accesses.begin(), accesses.end());
  StagedRows staged(layout_);
  for (size_t next = 0; next < accesses.size();) {
    IndexReader reader(index_);
    staged.clear();
    size_t end = next;
    for (; end < accesses.size() && staged.size() < largest_claim_; ++end) {
      const int64_t key = accesses[end].key;
      if (end != next && key == accesses[end - 1].key) continue;
      const KeyHash hash = hash_key(key);
      const Found found = reader.find(hash, key);
      if (found.ref && found.ref.tier() != 0) staged.add(key, hash, found, end);
    }
    staged.read(tiers_);
    Claim claim = [this, &staged] {
      for (;;) {
        if (std::optional<Claim> granted = try_claim(staged.size())) return std::move(*granted);
        shrink_from(0);
        std::this_thread::yield();
      }
    }();
    if (!promote(staged, claim)) continue;  // some changed while they were read: once more
    for (; next < end; ++next) {
      const RowRef ref = reader.find(hash_key(accesses[next].key), accesses[next].key).ref;
      if (!ref || ref.tier() != 0) continue;
      tiers_.first().count_served(ref.slot());
      tiers_.first().touch(ref.slot(), accesses[next].stamp);
    }
  }
}

// --- Up

bool Mover::promote(const StagedRows& staged, Claim& claim, std::vector<size_t>* promoted) {
  std::vector<size_t> order(staged.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&staged](size_t a, size_t b) {
    return staged.entry(a).hash < staged.entry(b).hash;  // so by shard
  });
  constexpr size_t kAhead = 8;
  bool all = true;
  std::vector<std::pair<size_t, Entry>> held;
  std::vector<Slot> slots;
  std::array<std::vector<Place>, RowRef::kMaxTiers> left;  // by tier
  for (size_t first = 0; first < order.size();) {
    const int shard_number = Index::shard_of(staged.entry(order[first]).hash);
    IndexShard& shard = index_.shard(shard_number);
    const std::lock_guard lock(shard.mutex);
    held.clear();
    for (; first < order.size(); ++first) {
      const size_t i = order[first];
      const StagedRows::Entry& wanted = staged.entry(i);
      if (Index::shard_of(wanted.hash) != shard_number) break;
      if (first + kAhead < order.size()) {
        __builtin_prefetch(staged.entry(order[first + kAhead]).found.bucket);
      }
      const Entry entry = shard.entry(wanted.hash, wanted.key);
      if (!entry || entry.ref().tier() == 0) continue;  // removed, or promoted by another
      if (entry.bucket == wanted.found.bucket && staged.holds(i)) {
        held.emplace_back(i, entry);
      } else {
        all = false;
      }
    }
    slots.resize(held.size());
    claim.take(slots);
    for (auto& places : left) places.clear();
    for (size_t h = 0; h < held.size(); ++h) {
      const auto& [i, entry] = held[h];
      const RowRef from = entry.ref();
      left[from.tier()].push_back({staged.entry(i).key, from.slot()});
      tiers_.first().put(slots[h], staged.header(i), staged.row(i));
      if (promoted != nullptr) promoted->push_back(i);
    }
    // In this order, as in promote_entry().
    for (size_t t = 1; t < tiers_.size(); ++t) {
      tiers_.add_rows(t, -static_cast<int64_t>(left[t].size()));
    }
    for (size_t h = 0; h < held.size(); ++h) shard.set_ref(held[h].second, RowRef(0, slots[h]));
    for (size_t t = 1; t < tiers_.size(); ++t) {
      if (!left[t].empty()) tiers_.tier(t).erase(left[t]);
    }
    tiers_.add_rows(0, static_cast<int64_t>(held.size()));
    promotions_.fetch_add(held.size(), std::memory_order_relaxed);
  }
  return all;
}

void Mover::promote_entry(IndexShard& shard, const Entry& entry, const RowHeader& header,
                          const float* row, Slot slot) {
  const RowRef from = entry.ref();
  // Off one count first and on the other last: a tier that looked fuller than it is would give up a row
  // that outranks one which is on its way through the first tier.
  tiers_.add_rows(from.tier(), -1);
  tiers_.first().put(slot, header, row);
  shard.set_ref(entry, RowRef(0, slot));
  const Place left{header.key, from.slot()};
  tiers_.tier(from.tier()).erase({&left, 1});
  tiers_.add_rows(0, 1);
  promotions_.fetch_add(1, std::memory_order_relaxed);
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
bool Mover::relocate(int64_t key, Slot from, Slot to) {
  const auto tier = static_cast<uint32_t>(tiers_.size() - 1);
  const KeyHash hash = hash_key(key);
  IndexShard& shard = index_.shard(Index::shard_of(hash));
  const std::lock_guard lock(shard.mutex);
  const Entry entry = shard.entry(hash, key);
  if (!entry || entry.ref() != RowRef(tier, from)) return false;
  shard.set_ref(entry, RowRef(tier, to));
  return true;
}

void Mover::shrink_from(size_t t) {
  if (t + 1 == tiers_.size()) return;
  // From the bottom, so that there is room below for what comes down.
  shrink_from(t + 1);
  while (const uint64_t excess = tiers_.excess_rows(t)) {
    uint64_t count = std::min(excess, tiers_.headroom_rows(t));
    if (tiers_.memory(t + 1) != nullptr) count = std::min(count, tiers_.headroom_rows(t + 1));
    // Rows that changed while they were copied stay; the next round finds colder ones.
    if (demote(t, count) == 0) std::this_thread::yield();
    shrink_from(t + 1);
  }
}

uint64_t Mover::demote(size_t t, uint64_t count) {
  struct Leaving {
    Place place;
    KeyHash hash;
    Found found;
  };
  constexpr size_t kAhead = 16;
  const Epochs::Guard guard = epochs_.enter();
  MemoryTier& from = *tiers_.memory(t);
  Tier& to = tiers_.tier(t + 1);

  std::vector<Leaving> leaving;
  RowBatch rows(layout_);
  IndexReader reader(index_);
  const std::vector<MemoryTier::Candidate> coldest = coldest_[t].next(count);
  for (size_t i = 0; i < coldest.size(); ++i) {
    if (i + kAhead < coldest.size()) reader.prefetch(hash_key(coldest[i + kAhead].place.key));
    const auto& [rank, place] = coldest[i];
    const KeyHash hash = hash_key(place.key);
    const Found found = reader.find(hash, place.key);
    if (found.ref != RowRef(static_cast<uint32_t>(t), place.slot)) continue;
    // Accessed since it was ranked: not the coldest any more. An access from here on changes the bucket.
    if (from.rank(place.slot, strategy_) != rank) continue;
    leaving.push_back({place, hash, found});
  }
  // As many as are still too many: rows may have been promoted from here since they were counted.
  leaving.resize(std::min<uint64_t>(leaving.size(), tiers_.excess_rows(t)));
  std::sort(leaving.begin(), leaving.end(),
            [](const Leaving& a, const Leaving& b) { return a.hash < b.hash; });  // so by shard
  std::vector<Place> places(leaving.size());
  std::transform(leaving.begin(), leaving.end(), places.begin(),
                 [](const Leaving& row) { return row.place; });
  from.read(places, rows);
  std::vector<Slot> slots(leaving.size());
  to.write(rows, slots);

  std::vector<Place> left;
  std::vector<Place> written_in_vain;
  std::vector<Entry> entries;
  for (size_t first = 0; first < leaving.size();) {
    const int shard_number = Index::shard_of(leaving[first].hash);
    IndexShard& shard = index_.shard(shard_number);
    const std::lock_guard lock(shard.mutex);
    // First which rows are still what was copied, then the changes: they would look like others'.
    entries.clear();
    size_t end = first;
    for (; end < leaving.size() && Index::shard_of(leaving[end].hash) == shard_number; ++end) {
      if (end + kAhead < leaving.size()) __builtin_prefetch(leaving[end + kAhead].found.bucket);
      const Leaving& row = leaving[end];
      const Entry entry = shard.entry(row.hash, row.place.key);
      const bool unchanged = entry && entry.bucket == row.found.bucket && row.found.holds();
      entries.push_back(unchanged ? entry : Entry{});
    }
    for (size_t i = first; i < end; ++i) {
      if (const Entry& entry = entries[i - first]) {
        shard.set_ref(entry, RowRef(static_cast<uint32_t>(t + 1), slots[i]));
        left.push_back(leaving[i].place);
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
