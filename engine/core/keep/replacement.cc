#include "keep/replacement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "errors/error.h"
#include "platform/prefetch.h"
#include "store/shard_order.h"
#include "store/transaction.h"
#include "threads/helping_threads.h"

namespace embstore {

Replacement::Replacement(TableParts& table) NO_THREAD_SAFETY_ANALYSIS : turn_(table),
                                                                        operation_(table),
                                                                        table_(table),
                                                                        store_(*table_.store),
                                                                        standstill_(table_),
                                                                        floors_(store_.tiers().size()) {
  save_span_ = table_.spans.start_over();
  if (table_.steps) table_.steps->forget_error();  // it concerns the rows that are replaced
}

void Replacement::clear() {
  constexpr size_t kKeysAtATime = 4096;
  for (int s = 0; s < kShards; ++s) {
    std::vector<int64_t> keys;
    {
      IndexShard& shard = store_.shard(s);
      MutexLock lock(shard.mutex);
      keys.reserve(shard.entries());
      shard.for_each([&keys](int64_t key, RowRef) { keys.push_back(key); });
      if (AdmissionFilter* const filter = table_.filters.shard(s)) filter->reset();
    }
    for (size_t first = 0; first < keys.size(); first += kKeysAtATime) {
      store_.remove(std::span(keys).subspan(first, std::min(kKeysAtATime, keys.size() - first)));
    }
    IndexShard& shard = store_.shard(s);
    MutexLock lock(shard.mutex);
    shard.reserve(0, /*sample_key=*/0);
  }
  table_.epochs.reclaim();
  store_.tiers().compact();
  table_.gate.assert_held_alone();  // by standstill_
  table_.removed_keys.reset();
  floors_.assign(floors_.size(), std::nullopt);
}

void Replacement::replace_initial_rows(std::span<const float> values, size_t dim) {
  const auto own_dim = static_cast<size_t>(table_.layout.dim());
  const size_t common = std::min(dim, own_dim);
  std::vector<float> fitted;
  fitted.reserve(values.size() / dim * own_dim);
  for (size_t row = 0; row < values.size() / dim; ++row) {
    const float* const saved = values.data() + row * dim;
    const float* const own = table_.initial.row_of(static_cast<int64_t>(row));
    fitted.insert(fitted.end(), saved, saved + common);
    fitted.insert(fitted.end(), own + common, own + own_dim);
  }
  table_.initial.replace(std::move(fitted), table_.epochs);
}

void Replacement::make_expected_room(int64_t sample_key) {
  const uint64_t rows = expected_rows_.exchange(0);
  if (rows == 0) return;
  // Keys are spread evenly, so a shard gets no more rows than this; if it does, it grows.
  const uint64_t rows_a_shard = rows / kShards + rows / kShards / 32;
  for (int s = 0; s < kShards; ++s) {
    IndexShard& shard = store_.shard(s);
    MutexLock lock(shard.mutex);
    shard.reserve(rows_a_shard, sample_key);
  }
}

void Replacement::put(RowBatch& rows) {
  if (rows.size() != 0) make_expected_room(rows.header(0).key);
  uint64_t newest_stamp = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    rows.header(i).save_span = save_span_;
    newest_stamp = std::max(newest_stamp, rows.header(i).stamp);
  }
  note_stamp(newest_stamp);
  std::vector<std::vector<size_t>> by_tier(store_.tiers().size());
  for (const size_t i : positions_of_new(rows)) by_tier[tier_for(rows.header(i))].push_back(i);
  for (size_t t = 0; t < by_tier.size(); ++t) put_in_tier(t, rows, by_tier[t]);
  // Lets arrays that the index has outgrown be freed.
  operation_.refresh();
}

std::vector<size_t> Replacement::positions_of_new(const RowBatch& rows) const {
  constexpr size_t kAhead = IndexReader::kBucketsFetchedAhead;
  std::vector<size_t> fresh;
  fresh.reserve(rows.size());
  const Epochs::Guard guard = table_.epochs.enter();
  IndexReader reader(store_.index());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) reader.prefetch(rows.header(i + kAhead).key);
    const int64_t key = rows.header(i).key;
    if (!reader.find(key).ref) fresh.push_back(i);
  }
  return fresh;
}

void Replacement::set_expected_ranks(std::vector<Rank> sample, size_t step) {
  constexpr double kFewest = 1000;  // in the sample: fewer say nothing of a tier's rows
  double rows = 0;                  // that fit in the tiers so far
  for (size_t t = 0; t + 1 < store_.tiers().size(); ++t) {
    const uint64_t capacity = store_.tiers().capacity_rows(t);
    if (capacity == kUnlimitedRows) return;
    rows += static_cast<double>(capacity);
    const double expected = rows / static_cast<double>(step);
    // Rather too many rows, which move down in the end, than too few: six standard deviations, and 5 %
    // more.
    const auto most = static_cast<size_t>(1.05 * expected + 6 * std::sqrt(expected));
    if (expected < kFewest || most >= sample.size()) continue;
    const auto least = sample.begin() + static_cast<ptrdiff_t>(most);
    std::nth_element(sample.begin(), least, sample.end(), std::greater<>());
    // If many rows rank the same, only as many of them belong in this tier as there is room for, and it
    // is unknown which.
    const bool is_tied = std::count(sample.begin(), least, *least) > static_cast<ptrdiff_t>(most) / 32;
    if (!is_tied) floors_[t] = *least;
  }
}

Rank Replacement::rank_of(uint64_t count, uint64_t stamp) const {
  return Rank::of(table_.mover->strategy(), count, std::max(stamp, AccessClock::kFirstStamp));
}

size_t Replacement::tier_for(const RowHeader& header) const {
  if (!table_.mover) return 0;
  const Rank rank = rank_of(header.frequency + header.served, header.stamp);
  size_t t = store_.tiers().tier_of_level(0);
  while (t + 1 < floors_.size() && floors_[t] && rank <= *floors_[t]) ++t;
  return t;
}

void Replacement::put_in_tier(size_t t, const RowBatch& rows, std::span<const size_t> which) {
  const TierStack& tiers = store_.tiers();
  const bool is_pool = store_.cache() != nullptr && t == store_.cache()->pool_tier();
  const bool bounded = table_.mover && (tiers.memory(t) != nullptr || tiers.ranked(t) != nullptr);
  const size_t most = bounded || is_pool ? std::max<size_t>(1, tiers.headroom_rows(t) / 2) : which.size();
  for (size_t first = 0; first < which.size(); first += most) {
    const auto some = which.subspan(first, std::min(most, which.size() - first));
    while (bounded && store_.rows(t) + some.size() > tiers.capacity_rows(t) + tiers.headroom_rows(t)) {
      make_room();
    }
    if (some.size() == rows.size()) {
      store_rows(t, rows);
      continue;
    }
    RowBatch part(table_.layout);
    part.resize(some.size());
    for (size_t k = 0; k < some.size(); ++k) {
      part.header(k) = rows.header(some[k]);
      std::copy_n(rows.row(some[k]), rows.row_floats(), part.row(k));
    }
    store_rows(t, part);
  }
}

void Replacement::store_rows(size_t t, const RowBatch& rows) {
  Transaction arrival(store_, /*max_departures=*/0);
  if (!arrival.try_reserve_rows(rows.size(), t)) {
    // The pool is short because of what its checkpoints keep. Its rows go below it, and come up when they
    // are wanted.
    const InclusiveCache* const cache = store_.cache();
    const size_t below = cache != nullptr ? cache->tier_below() : store_.tiers().size();
    if (t >= below || below == store_.tiers().size()) throw_no_room();
    return store_rows(below, rows);
  }
  RowCopies copies(store_, t, rows);
  const auto shard_at = [&rows](size_t i) { return shard_of_key(rows.header(i).key); };
  for (size_t first = 0; first < rows.size();) {
    size_t end = first + 1;  // a save has the rows of a shard side by side
    while (end < rows.size() && shard_at(end) == shard_at(first)) ++end;
    IndexShard& shard = store_.shard(shard_at(first));
    IndexShard::Room room;
    MutexLock lock(shard.mutex);
    room = shard.reserve_room(end - first, rows.header(first).key);
    for (; first < end; ++first) {
      const int64_t key = rows.header(first).key;
      // A checkpoint that was tampered with may contain a key twice.
      if (!shard.entry(key)) arrival.insert(shard, key, copies.place(first), room);
    }
  }
}

void Replacement::throw_no_room() const {
  const TierStack& tiers = store_.tiers();
  const std::string room = store_.cache() == nullptr
                               ? "they hold " + std::to_string(tiers.total_capacity_rows()) + " rows"
                               : "the pool is " + store_.cache()->pool().described_room();
  throw Error(ErrorKind::kStoreFull, table_.name +
                                         ": its tiers have no room for the rows of the checkpoint; " + room +
                                         "; raise storage_size");
}

void Replacement::make_room() {
  Mover::Pause& moves = *standstill_.moves();
  while (moves.shrink_once()) {
  }
  const TierStack& tiers = store_.tiers();
  for (size_t t = 0; t + 1 < tiers.size(); ++t) {
    if (store_.rows(t) < tiers.capacity_rows(t)) continue;
    if (const std::optional<Rank> least = moves.min_rank(t)) floors_[t] = least;
  }
}

void Replacement::take_over(uint64_t number, const Seen& seen) {
  const auto threads = static_cast<int>(HelpingThreads::max_threads());
  log::Checkpoints& checkpoints = *store_.tiers().checkpoints();
  for (const log::KeptCheckpoint& kept : checkpoints.kept()) {
    if (kept.number == number) expect_rows(kept.rows);
  }
  checkpoints.restore(number, threads,
                      [&](size_t durable, std::span<const RowHeader> headers, std::span<const Slot> slots) {
                        refer_to(store_.tiers().durable_tier(durable), headers, slots);
                        if (seen) seen(headers);
                      });
}

void Replacement::refer_to(uint32_t tier, std::span<const RowHeader> headers, std::span<const Slot> slots) {
  if (!headers.empty()) make_expected_room(headers.front().key);
  Transaction arrival(store_, /*max_departures=*/0);
  if (!arrival.try_reserve_placed_rows(headers.size())) {
    throw_no_room();
  }
  uint64_t newest_stamp = 0;
  for (const RowHeader& header : headers) newest_stamp = std::max(newest_stamp, header.stamp);
  note_stamp(newest_stamp);
  const PageVector<uint32_t> order =
      in_order_of_shards(headers.size(), [&headers](size_t i) { return headers[i].key; });
  for (size_t first = 0; first < order.size();) {
    const int number = shard_of_key(headers[order[first]].key);
    size_t end = first;
    while (end < order.size() && shard_of_key(headers[order[end]].key) == number) ++end;
    IndexShard& shard = store_.shard(number);
    IndexShard::Room room;
    MutexLock lock(shard.mutex);
    room = shard.reserve_room(end - first, headers[order[first]].key);
    const BucketArray& buckets = shard.buckets();
    for (size_t i = first; i < end; ++i) {
      prefetch_line(buckets.home(headers[order[i]].key));
    }
    for (; first < end; ++first) {
      const int64_t key = headers[order[first]].key;
      if (shard.entry(key)) {
        throw Error(ErrorKind::kStorage, store_.tiers().tier(tier).stats().path.value_or("") + ": key " +
                                             std::to_string(key) + " has two rows in one checkpoint");
      }
      arrival.insert(shard, key, RowRef(tier, slots[order[first]]), room);
    }
  }
}

void Replacement::note_stamp(uint64_t stamp) {
  uint64_t newest = newest_stamp_.load();
  while (newest < stamp && !newest_stamp_.compare_exchange_weak(newest, stamp)) {
  }
}

void Replacement::put_waiting_key(const checkpoint::WaitingKeyRecord& waiting) {
  IndexShard& shard = store_.shard_of_key(waiting.key);
  MutexLock lock(shard.mutex);
  AdmissionFilter* const filter = table_.filters.filter_of(waiting.key);
  if (filter == nullptr || shard.entry(waiting.key)) return;
  filter->restore({.key = waiting.key, .count = waiting.count, .version = waiting.version});
}

void Replacement::put_sketch(const checkpoint::SketchHeader& header, std::span<const std::byte> counters) {
  MutexLock lock(store_.shard(static_cast<int>(header.shard)).mutex);
  AdmissionFilter* const filter = table_.filters.shard(static_cast<int>(header.shard));
  if (filter == nullptr) return;
  filter->merge_sketch(
      {.counters = header.counters, .hashes = header.hashes, .counter_bits = header.counter_bits}, counters,
      header.waiting_keys);
}

void Replacement::finish(const TableState& state) {
  if (Mover::Pause* const moves = standstill_.moves()) {
    while (moves->shrink_once()) {
    }
    store_.tiers().compact();
  }
  operation_.refresh();
  table_.epochs.reclaim();
  // Rows of older checkpoints may have later stamps than their clock says.
  table_.clock.advance_to(std::max<uint64_t>(state.clock, newest_stamp_ + 1));
  MutexLock lock(table_.state_mutex);
  table_.apply_count = state.apply_count;
  table_.optimizer_state = state.optimizer;
}

}  // namespace embstore
