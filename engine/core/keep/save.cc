#include "keep/save.h"

#include <algorithm>

#include "errors/error.h"

namespace embstore {
namespace {

// Returns the keys of a shard's rows in a tier, in the order of their places, in which the tier reads
// them fastest.
std::vector<int64_t> keys_of(IndexShard& shard, uint32_t tier) {
  std::vector<Place> places = places_in(tier, shard);
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.slot < b.slot; });
  std::vector<int64_t> keys(places.size());
  std::transform(places.begin(), places.end(), keys.begin(), [](const Place& place) { return place.key; });
  return keys;
}

}  // namespace

std::vector<Place> places_in(uint32_t tier, IndexShard& shard) {
  std::vector<Place> places;
  MutexLock lock(shard.mutex);
  shard.for_each([&](int64_t key, RowRef ref) {
    if (ref.tier() == tier) places.push_back({key, ref.slot()});
  });
  return places;
}

size_t rows_at_a_time(const RowLayout& layout) {
  return std::clamp<size_t>(checkpoint::kBlockBytes / layout.row_bytes(), 1, 4096);
}

WaitingKeys::WaitingKeys(const TableParts& table) {
  for (int s = 0; s < kShards; ++s) {
    MutexLock lock(table.store->shard(s).mutex);
    const AdmissionFilter* const filter = table.filters.shard(s);
    if (filter == nullptr) continue;
    const SketchShape shape = filter->sketch_shape();
    if (shape.counter_bits == 0) {
      filter->for_each([this](const WaitingKey& waiting) {
        keys_.push_back({waiting.key, waiting.count, waiting.version});
      });
    } else {
      const std::span<const std::byte> counters = filter->sketch();
      sketches_.push_back({{.counters = shape.counters,
                            .hashes = shape.hashes,
                            .counter_bits = shape.counter_bits,
                            .waiting_keys = filter->waiting_keys(),
                            .shard = static_cast<uint32_t>(s),
                            .shard_count = kShards},
                           {counters.begin(), counters.end()}});
    }
  }
}

void WaitingKeys::write(checkpoint::Writer& file) const {
  for (const checkpoint::WaitingKeyRecord& waiting : keys_) file.add_waiting_key(waiting);
  for (const Sketch& sketch : sketches_) file.add_sketch(sketch.header, sketch.counters);
}

PageVector<int64_t> HasRow::keys_with_row(std::span<const int64_t> keys) {
  constexpr size_t kAhead = IndexReader::kBucketsFetchedAhead;
  PageVector<int64_t> held;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) reader_.prefetch(keys[i + kAhead]);
    if ((*this)(keys[i])) held.push_back(keys[i]);
  }
  return held;
}

std::vector<int64_t> keys_with_row(TableParts& table, KeyRange range) {
  std::vector<int64_t> keys;
  for (int s = 0; s < kShards; ++s) {
    IndexShard& shard = table.store->shard(s);
    MutexLock lock(shard.mutex);
    shard.for_each([&keys, range](int64_t key, RowRef) {
      if (range.first <= key && key <= range.last) keys.push_back(key);
    });
  }
  return keys;
}

ExportedRows export_rows(TableParts& table, std::span<const int64_t> keys, OnDamage on_damage) {
  const auto dim = static_cast<size_t>(table.layout.dim());
  ExportedRows exported;
  exported.frequencies.reserve(keys.size());
  exported.versions.reserve(keys.size());
  exported.keys.reserve(keys.size());
  exported.values.resize(keys.size() * dim);
  exported.slots.assign(static_cast<size_t>(table.layout.slot_count()),
                        std::vector<float>(keys.size() * dim));
  RowVisitor visits(table);
  visits.visit(keys, [&](size_t, const RowHeader& header, const float* row) {
    const size_t at = exported.keys.size() * dim;
    exported.keys.push_back(header.key);
    exported.frequencies.push_back(static_cast<int64_t>(header.frequency));
    exported.versions.push_back(header.version);
    std::copy_n(row, dim, exported.values.data() + at);
    for (size_t s = 0; s < exported.slots.size(); ++s) {
      std::copy_n(row + (1 + s) * table.layout.block_floats(), dim, exported.slots[s].data() + at);
    }
  });
  if (on_damage == OnDamage::kRaise) visits.raise();
  exported.values.resize(exported.keys.size() * dim);
  for (auto& slot : exported.slots) slot.resize(exported.keys.size() * dim);
  return exported;
}

std::vector<int64_t> find_damaged_rows(TableParts& table) {
  RowStore& store = *table.store;
  RowVisitor visits(table);
  for (uint32_t t = 0; t < store.tiers().size(); ++t) {
    if (store.tiers().memory(t) != nullptr) continue;
    for (int s = 0; s < kShards; ++s) {
      visits.visit(keys_of(store.shard(s), t), [](size_t, const RowHeader&, const float*) {});
    }
  }
  std::sort(visits.damaged().begin(), visits.damaged().end());
  return std::move(visits.damaged());
}

uint64_t drop_rows(TableParts& table, std::span<const int64_t> keys) {
  HasRow has_row(*table.store);
  const PageVector<int64_t> held = has_row.keys_with_row(keys);
  const uint64_t before = table.store->row_count();
  table.removed_keys.note(held, has_row);
  table.store->remove(held);
  return before - table.store->row_count();
}

}  // namespace embstore
