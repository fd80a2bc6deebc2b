#include "table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "errors/error.h"

namespace embstore {

Table::Table(const TableSpec& spec)
    : name_(spec.name),
      optimizer_(make_optimizer(spec.optimizer, spec.optimizer_params)),
      layout_(spec.dim, optimizer_->slot_count()),
      default_values_(spec.default_values),
      default_row_count_(static_cast<int64_t>(default_values_.size()) / spec.dim),
      no_permission_row_(static_cast<size_t>(spec.dim), spec.no_permission_value),
      filter_spec_(spec.filter),
      index_(std::make_unique<Index>(epochs_)),
      tiers_(std::make_unique<TierStack>(spec.name, spec.tiers, layout_)),
      budget_(tiers_->total_capacity_rows()),
      optimizer_state_(optimizer_->initial_state()) {
  for (auto& filter : filters_) filter = make_filter(spec.filter);
  std::vector<RankedKey> recovered;
  if (tiers_->last().keeps_rows()) recovered = take_over_rows(spec.cache_strategy);
  if (tiers_->size() > 1) {
    mover_ = std::make_unique<Mover>(*tiers_, *index_, epochs_, layout_, spec.cache_strategy);
  }
  bring_up(std::move(recovered));
}

Table::~Table() {
  try {
    close();
  } catch (const Error&) {
    // Whoever wants to know calls close().
  }
}

Table::Operation::Operation(const Table& table) : guard_(table.epochs_.enter()) {
  if (table.closed_.load()) throw Error(ErrorKind::kClosed, table.name_ + " is closed");
}

void Table::close() {
  const std::lock_guard lock(close_mutex_);
  closed_.store(true);
  epochs_.wait_until_idle();
  if (!tiers_) return;
  if (mover_) mover_->stop();
  if (tiers_->last().keeps_rows()) write_down();
  tiers_->close();  // before the mover goes, which a tier's own thread may be calling
  mover_.reset();
  index_.reset();
  tiers_.reset();
}

void Table::drain() const {
  const Operation operation(*this);
  if (!mover_) return;
  const std::shared_lock gate = enter_gate();
  mover_->settle();
  tiers_->drain();
}

std::shared_lock<std::shared_mutex> Table::enter_gate() const {
  const std::lock_guard queue(turnstile_);
  return std::shared_lock(apply_gate_);
}

template <class Visit>
void Table::visit_facts(std::span<const int64_t> ids, Visit visit) const {
  const Operation operation(*this);
  RowBatch row(layout_);
  for (size_t i = 0; i < ids.size(); ++i) {
    const KeyHash hash = hash_key(ids[i]);
    IndexShard& shard = index_->shard(shard_of(hash));
    const MutexLock lock(shard.mutex);
    const IndexEntry entry = shard.entry(hash, ids[i]);
    KeyFacts facts;
    if (!entry) {
      if (const AdmissionFilter* filter = filter_of(hash)) {
        facts = {filter->count(ids[i], hash), filter->version(ids[i], hash)};
      }
    } else if (const MemoryTier* memory = tiers_->memory(entry.ref().tier())) {
      const RowHeader header = memory->header(entry.ref().slot(), ids[i]);
      facts = {header.frequency, header.version};
    } else {
      const Place place{ids[i], entry.ref().slot()};
      tiers_->tier(entry.ref().tier()).read({&place, 1}, row);
      facts = {row.header(0).frequency, row.header(0).version};
    }
    visit(i, facts);
  }
}

void Table::lookup_tier(std::span<const int64_t> ids, int32_t* tiers) const {
  const Operation operation(*this);
  IndexReader reader(*index_);
  for (size_t i = 0; i < ids.size(); ++i) {
    const RowRef ref = reader.find(hash_key(ids[i]), ids[i]).ref;
    tiers[i] = ref ? static_cast<int32_t>(ref.tier()) : -1;
  }
}

void Table::frequencies(std::span<const int64_t> ids, int64_t* frequencies) const {
  visit_facts(ids, [frequencies](size_t i, const KeyFacts& facts) {
    frequencies[i] = static_cast<int64_t>(facts.frequency);
  });
}

void Table::versions(std::span<const int64_t> ids, int64_t* versions) const {
  visit_facts(ids, [versions](size_t i, const KeyFacts& facts) { versions[i] = facts.version; });
}

uint64_t Table::row_count() const {
  const Operation operation(*this);
  uint64_t rows = 0;
  for (int s = 0; s < kShards; ++s) {
    IndexShard& shard = index_->shard(s);
    const MutexLock lock(shard.mutex);
    rows += shard.entries();
  }
  return rows;
}

void Table::read_settled(std::span<const int64_t> keys, RowBatch& rows) const {
  rows.resize(keys.size());
  IndexReader reader(*index_);
  StagedRows staged(layout_);
  std::vector<size_t> pending(keys.size());
  std::iota(pending.begin(), pending.end(), size_t{0});
  while (!pending.empty()) {
    staged.start(*tiers_);
    for (const size_t i : pending) {
      const KeyHash hash = hash_key(keys[i]);
      staged.add(keys[i], hash, reader.find(hash, keys[i]), i);
    }
    staged.read(*tiers_);
    pending.clear();
    for (size_t k = 0; k < staged.size(); ++k) {
      const size_t i = staged.entry(k).tag;
      if (!staged.holds(k)) {
        pending.push_back(i);
        continue;
      }
      rows.header(i) = staged.header(k);
      std::copy_n(staged.row(k), layout_.row_floats(), rows.row(i));
    }
  }
}

ExportedRows Table::export_rows() const {
  constexpr size_t kRowsAtATime = 4096;
  const Operation operation(*this);
  const std::lock_guard queue(turnstile_);
  const std::unique_lock gate(apply_gate_);
  const std::unique_lock moves = mover_ ? mover_->pause() : std::unique_lock<std::mutex>();

  std::vector<int64_t> keys;
  for (int s = 0; s < kShards; ++s) {
    const MutexLock lock(index_->shard(s).mutex);
    index_->shard(s).for_each([&keys](int64_t key, RowRef) { keys.push_back(key); });
  }
  std::sort(keys.begin(), keys.end());

  const size_t dim = static_cast<size_t>(layout_.dim());
  ExportedRows exported;
  exported.frequencies.resize(keys.size());
  exported.versions.resize(keys.size());
  exported.values.resize(keys.size() * dim);
  exported.slots.assign(static_cast<size_t>(layout_.slot_count()), std::vector<float>(keys.size() * dim));
  RowBatch batch(layout_);
  for (size_t next = 0; next < keys.size(); next += kRowsAtATime) {
    const auto some = std::span(keys).subspan(next, std::min(kRowsAtATime, keys.size() - next));
    read_settled(some, batch);
    for (size_t i = 0; i < some.size(); ++i) {
      const size_t position = next + i;
      exported.frequencies[position] = static_cast<int64_t>(batch.header(i).frequency);
      exported.versions[position] = batch.header(i).version;
      const float* const row = batch.row(i);
      std::copy_n(row, dim, exported.values.data() + position * dim);
      for (size_t s = 0; s < exported.slots.size(); ++s) {
        std::copy_n(row + (1 + s) * layout_.block_floats(), dim, exported.slots[s].data() + position * dim);
      }
    }
  }
  exported.keys = std::move(keys);
  return exported;
}

TableStats Table::stats() const {
  const Operation operation(*this);
  TableStats stats{
      .hits = hits_.load(std::memory_order_relaxed),
      .misses = misses_.load(std::memory_order_relaxed),
      .promotions = mover_ ? mover_->promotions() : 0,
      .demotions = mover_ ? mover_->demotions() : 0,
      .waiting_keys = 0,
      .index_bytes = 0,
      .tiers = {},
  };
  for (size_t t = 0; t < tiers_->size(); ++t) {
    stats.tiers.push_back({tiers_->tier(t).stats(), tiers_->rows(t), tiers_->capacity_rows(t)});
  }
  for (int s = 0; s < kShards; ++s) {
    IndexShard& shard = index_->shard(s);
    const MutexLock lock(shard.mutex);
    stats.index_bytes += shard.size_bytes();
    if (const auto& filter = filters_[static_cast<size_t>(s)]) {
      stats.waiting_keys += filter->waiting_keys();
    }
  }
  return stats;
}

}  // namespace embstore
