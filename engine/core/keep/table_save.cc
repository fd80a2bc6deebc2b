// Saves of a table, and its rows' removal.
#include <algorithm>

#include "keep/checkpoint/writer.h"
#include "table.h"

namespace embstore {
namespace {

// Rows that are read at a time: a megabyte of them, and not so many that their bookkeeping is more.
size_t rows_at_a_time(const RowLayout& layout) {
  return std::clamp<size_t>(checkpoint::kBlockBytes / layout.row_bytes(), 1, 4096);
}

}  // namespace

bool EvictionRule::evicts(const RowHeader& header, const float* weights, int dim) const {
  if (least_version && header.version < *least_version) return true;
  if (!least_half_square) return false;
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += static_cast<double>(weights[d]) * weights[d];
  return 0.5 * sum < *least_half_square;
}

SavedTable Table::save(checkpoint::Writer& file, const EvictionRule& eviction, bool waiting_keys) {
  const Operation operation(*this);
  const std::lock_guard queue(turnstile_);
  const std::unique_lock gate(apply_gate_);
  if (mover_) mover_->settle();  // so that what was served counts
  const std::unique_lock moves = mover_ ? mover_->pause() : std::unique_lock<std::mutex>();

  SavedTable saved;
  {
    const std::lock_guard lock(state_mutex_);
    saved.state = {apply_count_, optimizer_state_, clock_.next_batch()};
  }
  saved.next_span = spans_.begin_next();
  const bool unsaved_only = file.incremental() && !eviction.any();
  for (uint32_t t = 0; t < tiers_->size(); ++t) {
    for (int s = 0; s < kShards; ++s) {
      save_rows(file, eviction, rows_of(index_->shard(s), t, unsaved_only));
    }
  }
  if (file.incremental()) {
    for (const int64_t key : removed_keys_) file.add_removed_key(key);
  }
  // Gone means gone, even if the process is killed right after the save.
  if (eviction.any() && tiers_->last().keeps_rows()) tiers_->last().flush();
  if (waiting_keys) save_waiting_keys(file);
  for (size_t t = 0; t < tiers_->size(); ++t) saved.rows_left += tiers_->rows(t);
  return saved;
}

void Table::save_succeeded(uint16_t next_span) {
  const Operation operation(*this);
  const std::lock_guard queue(turnstile_);
  const std::unique_lock gate(apply_gate_);
  spans_.saved_before(next_span);
  removed_keys_ = {};
}

// In the order of their places, in which a tier reads them fastest.
std::vector<int64_t> Table::rows_of(IndexShard& shard, uint32_t tier, bool unsaved_only) const {
  // Where rows can be addressed, those that nobody wants needn't be read.
  const MemoryTier* const memory = unsaved_only ? tiers_->memory(tier) : nullptr;
  struct Row {
    Slot slot;
    int64_t key;
  };
  std::vector<Row> rows;
  {
    const MutexLock lock(shard.mutex);
    shard.for_each([&](int64_t key, RowRef ref) {
      if (ref.tier() != tier) return;
      if (memory != nullptr) {
        const auto span = static_cast<uint16_t>(memory->meta(ref.slot()).save_span);
        if (!spans_.unsaved(span)) return;
      }
      rows.push_back({ref.slot(), key});
    });
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.slot < b.slot; });
  std::vector<int64_t> keys(rows.size());
  std::transform(rows.begin(), rows.end(), keys.begin(), [](const Row& row) { return row.key; });
  return keys;
}

void Table::save_rows(checkpoint::Writer& file, const EvictionRule& eviction, std::span<const int64_t> keys) {
  const size_t most = rows_at_a_time(layout_);
  RowBatch rows(layout_);
  std::vector<int64_t> evicted;
  for (size_t first = 0; first < keys.size(); first += most) {
    read_settled(keys.subspan(first, std::min(most, keys.size() - first)), rows);
    evicted.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      const RowHeader& header = rows.header(i);
      if (eviction.evicts(header, rows.row(i), layout_.dim())) {
        evicted.push_back(header.key);
      } else if (!file.incremental() || spans_.unsaved(static_cast<uint16_t>(header.save_span))) {
        file.add_row(header, rows.row(i));
      }
    }
    if (evicted.empty()) continue;
    removed_keys_.insert(removed_keys_.end(), evicted.begin(), evicted.end());
    remove_rows(evicted);
  }
}

void Table::save_waiting_keys(checkpoint::Writer& file) const {
  for (int s = 0; s < kShards; ++s) {
    const MutexLock lock(index_->shard(s).mutex);
    const AdmissionFilter* const filter = filters_[static_cast<size_t>(s)].get();
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

void Table::remove_rows(std::span<const int64_t> keys) {
  struct Row {
    KeyHash hash;
    int64_t key;
  };
  std::vector<Row> rows(keys.size());
  std::transform(keys.begin(), keys.end(), rows.begin(), [](int64_t key) { return Row{hash_key(key), key}; });
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.hash < b.hash; });

  std::vector<std::vector<Place>> left(tiers_->size());
  for (size_t first = 0; first < rows.size();) {
    const int shard_number = shard_of(rows[first].hash);
    IndexShard& shard = index_->shard(shard_number);
    const MutexLock lock(shard.mutex);
    for (; first < rows.size() && shard_of(rows[first].hash) == shard_number; ++first) {
      const IndexEntry entry = shard.entry(rows[first].hash, rows[first].key);
      if (!entry) continue;
      const RowRef ref = entry.ref();
      shard.erase(entry);
      left[ref.tier()].push_back({rows[first].key, ref.slot()});
    }
  }
  uint64_t count = 0;
  for (size_t t = 0; t < left.size(); ++t) {
    if (left[t].empty()) continue;
    tiers_->tier(t).erase(left[t]);
    tiers_->add_rows(t, -static_cast<int64_t>(left[t].size()));
    count += left[t].size();
  }
  if (tiers_->last().keeps_rows()) {
    // From wherever they left: older records of theirs may lie in the files.
    std::vector<int64_t> gone;
    for (const auto& places : left) {
      for (const Place& place : places) gone.push_back(place.key);
    }
    tiers_->last().bury(gone);
  }
  budget_.release(count);
  if (mover_) {
    mover_->rows_left(left.front().size());
    tiers_->compact();
  }
}

}  // namespace embstore
