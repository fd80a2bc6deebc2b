#include "keep/save.h"

#include <algorithm>

#include "access/phase.h"
#include "errors/error.h"
#include "keep/table_moment.h"

namespace embstore {
namespace {

// Rows that are read at a time: a megabyte of them, and not so many that their bookkeeping is more.
size_t rows_at_a_time(const RowLayout& layout) {
  return std::clamp<size_t>(checkpoint::kBlockBytes / layout.row_bytes(), 1, 4096);
}

// The keys of a shard's rows in a tier, in the order of their places, in which a tier reads them fastest.
// `is_wanted` is asked of rows that can be addressed.
template <class IsWanted>
std::vector<int64_t> keys_of(IndexShard& shard, uint32_t tier, IsWanted is_wanted) {
  std::vector<Place> places;
  {
    MutexLock lock(shard.mutex);
    shard.for_each([&](int64_t key, RowRef ref) {
      if (ref.tier() == tier && is_wanted(ref.slot())) places.push_back({key, ref.slot()});
    });
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.slot < b.slot; });
  std::vector<int64_t> keys(places.size());
  std::transform(places.begin(), places.end(), keys.begin(), [](const Place& place) { return place.key; });
  return keys;
}

// Tells whether a key has a row. REQUIRES: a guard of the epochs is held on.
auto row_question(const RowStore& store) {
  return [reader = IndexReader(store.index())](int64_t key) mutable {
    return static_cast<bool>(reader.find(hash_key(key), key).ref);
  };
}

// Reads the rows of `keys`; visits those that are whole, and collects the keys of the others.
class RowVisits {
 public:
  explicit RowVisits(const TableParts& table) : table_(table), rows_(table.layout) {}

  template <class Visit>
  void visit(std::span<const int64_t> keys, Visit visit_row) {
    const size_t most = rows_at_a_time(table_.layout);
    for (size_t first = 0; first < keys.size(); first += most) {
      const auto some = keys.subspan(first, std::min(most, keys.size() - first));
      table_.store->read_settled(some, rows_);
      for (const auto& [position, reason] : rows_.damaged()) {
        if (damaged_.empty()) first_damage_ = reason;
        damaged_.push_back(some[position]);
      }
      for (size_t i = 0; i < some.size(); ++i) {
        if (!rows_.is_damaged(i)) visit_row(first + i, rows_.header(i), rows_.row(i));
      }
    }
  }
  std::vector<int64_t>& damaged() { return damaged_; }
  void raise() {
    if (!damaged_.empty()) throw DamagedRowsError(std::move(damaged_), first_damage_);
  }

 private:
  const TableParts& table_;
  RowBatch rows_;
  std::vector<int64_t> damaged_;
  std::string first_damage_;
};

}  // namespace

void save_waiting_keys(const TableParts& table, checkpoint::Writer& file) {
  for (int s = 0; s < kShards; ++s) {
    MutexLock lock(table.store->shard(s).mutex);
    const AdmissionFilter* const filter = table.filters.shard(s);
    if (filter == nullptr) continue;
    const SketchShape shape = filter->sketch_shape();
    if (shape.counter_bits == 0) {
      filter->for_each([&file](const WaitingKey& waiting) {
        file.add_waiting_key({waiting.key, waiting.count, waiting.version});
      });
    } else {
      file.add_sketch({.counters = shape.counters,
                       .hashes = shape.hashes,
                       .counter_bits = shape.counter_bits,
                       .waiting_keys = filter->waiting_keys(),
                       .shard = static_cast<uint32_t>(s),
                       .shard_count = kShards},
                      filter->sketch());
    }
  }
}

bool EvictionRule::evicts(const RowHeader& header, const float* weights, int dim) const {
  if (least_version && header.version < *least_version) return true;
  if (!least_half_square) return false;
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += static_cast<double>(weights[d]) * weights[d];
  return 0.5 * sum < *least_half_square;
}

SavedTable save_table(TableParts& table, checkpoint::Writer& file, const EvictionRule& eviction,
                      bool waiting_keys, OnDamage on_damage) {
  RowStore& store = *table.store;
  SavedTable saved;
  saved.state = state_of(table);
  saved.next_span = table.spans.begin_next();
  const SaveSpans spans = table.spans;  // a copy, since the analysis doesn't see that lambdas have the gate
  const bool unsaved_only = file.incremental() && !eviction.any();
  RowVisits visits(table);
  std::vector<int64_t> evicted;
  for (uint32_t t = 0; t < store.tiers().size(); ++t) {
    // Where rows can be addressed, those that nobody wants needn't be read.
    const MemoryTier* const memory = unsaved_only ? store.tiers().memory(t) : nullptr;
    for (int s = 0; s < kShards; ++s) {
      const std::vector<int64_t> keys = [&] {
        Phase phase(store.tiers().tier(t).meter());
        return keys_of(store.shard(s), t, [&](Slot slot) {
          if (memory == nullptr) return true;
          memory->count_header(phase, Access::kLoad, slot);
          return spans.unsaved(static_cast<uint16_t>(memory->header(slot, 0).save_span));
        });
      }();
      evicted.clear();
      visits.visit(keys, [&](size_t, const RowHeader& header, const float* row) {
        if (eviction.evicts(header, row, table.layout.dim())) {
          evicted.push_back(header.key);
        } else if (!file.incremental() || spans.unsaved(static_cast<uint16_t>(header.save_span))) {
          file.add_row(header, row);
        }
      });
      if (!evicted.empty()) drop_rows(table, evicted);
    }
  }
  if (on_damage == OnDamage::kRaise) visits.raise();
  saved.skipped = std::move(visits.damaged());
  std::sort(saved.skipped.begin(), saved.skipped.end());
  const std::span<const int64_t> removed = table.removed_keys.tell(row_question(store));
  if (file.incremental()) {
    for (const int64_t key : removed) file.add_removed_key(key);
  }
  if (waiting_keys) save_waiting_keys(table, file);
  for (size_t t = 0; t < store.tiers().size(); ++t) saved.rows_left += store.rows(t);
  store.tiers().compact();
  return saved;
}

ExportedRows export_rows(TableParts& table, OnDamage on_damage) {
  RowStore& store = *table.store;
  std::vector<int64_t> keys;
  for (int s = 0; s < kShards; ++s) {
    IndexShard& shard = store.shard(s);
    MutexLock lock(shard.mutex);
    shard.for_each([&keys](int64_t key, RowRef) { keys.push_back(key); });
  }
  std::sort(keys.begin(), keys.end());

  const auto dim = static_cast<size_t>(table.layout.dim());
  ExportedRows exported;
  exported.frequencies.reserve(keys.size());
  exported.versions.reserve(keys.size());
  exported.keys.reserve(keys.size());
  exported.values.resize(keys.size() * dim);
  exported.slots.assign(static_cast<size_t>(table.layout.slot_count()),
                        std::vector<float>(keys.size() * dim));
  RowVisits visits(table);
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
  RowVisits visits(table);
  for (uint32_t t = 0; t < store.tiers().size(); ++t) {
    if (store.tiers().memory(t) != nullptr) continue;
    for (int s = 0; s < kShards; ++s) {
      visits.visit(keys_of(store.shard(s), t, [](Slot) { return true; }),
                   [](size_t, const RowHeader&, const float*) {});
    }
  }
  std::sort(visits.damaged().begin(), visits.damaged().end());
  return std::move(visits.damaged());
}

uint64_t drop_rows(TableParts& table, std::span<const int64_t> keys) {
  const uint64_t before = table.store->row_count();
  table.removed_keys.note(keys, row_question(*table.store));
  table.store->remove(keys);
  return before - table.store->row_count();
}

}  // namespace embstore
