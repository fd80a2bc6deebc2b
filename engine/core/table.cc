#include "table.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

#include "error.h"
#include "memory/memory.h"
#include "row_copy.h"

namespace embstore {
namespace {

// Keys whose cache misses are in flight together. Enough to cover a miss's latency, few enough for the
// core's outstanding-miss buffers.
constexpr size_t kBlock = 16;

constexpr size_t kLineFloats = 64 / sizeof(float);

inline void prefetch_row(const float* row, size_t floats) {
  for (size_t i = 0; i < floats; i += kLineFloats) __builtin_prefetch(row + i);
}

std::unique_ptr<MemoryTier> make_tier(const TierSpec& spec, const RowLayout& layout) {
  const uint64_t capacity_rows = spec.size_bytes / layout.row_bytes();
  if (capacity_rows == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: " + std::to_string(spec.size_bytes) + " bytes hold no row of " +
                    std::to_string(layout.row_bytes()) + " bytes");
  }
  if (capacity_rows > RowRef::kMaxSlots) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: " + std::to_string(spec.size_bytes) + " bytes hold " +
                    std::to_string(capacity_rows) + " rows, more than the " +
                    std::to_string(RowRef::kMaxSlots) +
                    " that one partition can address; raise partition_num");
  }
  const size_t bytes = capacity_rows * layout.row_bytes();
  std::unique_ptr<Memory> memory;
  if (spec.kind == "DRAM") {
    memory = allocate_heap_memory(bytes);
  } else if (spec.kind == "PMEM_LIBPMEM") {
    if (!spec.path) {
      throw Error(ErrorKind::kInvalidArgument, "storage_path: a PMEM_LIBPMEM tier needs one");
    }
    memory = map_libpmem_memory(*spec.path, bytes);
  } else if (spec.kind == "PMEM_MEMKIND") {
    memory = allocate_memkind_memory(bytes);
  } else {
    throw Error(ErrorKind::kInvalidArgument, "tiers: there is no tier of kind " + spec.kind);
  }
  return std::make_unique<MemoryTier>(spec.kind, layout, capacity_rows, std::move(memory));
}

const TierSpec& only_tier(const std::vector<TierSpec>& tiers) {
  if (tiers.size() != 1) {
    throw Error(ErrorKind::kInvalidArgument, "tiers: a table has one tier, got " +
                                                 std::to_string(tiers.size()));
  }
  return tiers.front();
}

}  // namespace

Table::Table(const TableSpec& spec)
    : name_(spec.name),
      optimizer_(make_optimizer(spec.optimizer, spec.optimizer_params)),
      layout_(spec.dim, optimizer_->slot_count()),
      default_values_(spec.default_values),
      default_row_count_(static_cast<int64_t>(default_values_.size()) / spec.dim),
      tier_(make_tier(only_tier(spec.tiers), layout_)),
      index_(std::make_unique<Index>(epochs_)),
      optimizer_state_(optimizer_->initial_state()) {}

Table::~Table() { close(); }

Table::Operation::Operation(const Table& table) : guard_(table.epochs_.enter()) {
  if (table.closed_.load()) throw Error(ErrorKind::kClosed, table.name_ + " is closed");
}

void Table::close() {
  const std::lock_guard lock(close_mutex_);
  closed_.store(true);
  epochs_.wait_until_idle();
  index_.reset();
  tier_.reset();
}

const float* Table::default_row(int64_t key) const {
  int64_t row = key % default_row_count_;
  if (row < 0) row += default_row_count_;
  return default_values_.data() + row * layout_.dim();
}

void Table::lookup(std::span<const int64_t> ids, float* out) const {
  const Operation operation(*this);
  uint64_t hits = 0;
  switch (layout_.dim()) {
    case 4: hits = lookup_rows<4>(ids, out); break;
    case 8: hits = lookup_rows<8>(ids, out); break;
    case 16: hits = lookup_rows<16>(ids, out); break;
    case 32: hits = lookup_rows<32>(ids, out); break;
    case 64: hits = lookup_rows<64>(ids, out); break;
    case 128: hits = lookup_rows<128>(ids, out); break;
    default: hits = lookup_rows<0>(ids, out); break;
  }
  hits_.fetch_add(hits, std::memory_order_relaxed);
  misses_.fetch_add(ids.size() - hits, std::memory_order_relaxed);
}

// Three stages, so that no id waits for its own cache misses: an id's bucket is fetched kAhead ids before
// it is probed, and its row as many before it is copied. Per id rather than in blocks: evenly spread, the
// fetches of one id overlap with the work on others, and a long row's lines don't queue up.
template <int kDim>
uint64_t Table::lookup_rows(std::span<const int64_t> ids, float* out) const {
  constexpr size_t kAhead = 16;
  const size_t dim = kDim != 0 ? kDim : static_cast<size_t>(layout_.dim());
  const size_t count = ids.size();
  const MemoryTier& tier = *tier_;
  IndexReader reader(*index_);
  std::array<KeyHash, kAhead> hashes;
  std::array<Found, kAhead> found;
  uint64_t hits = 0;

  const auto copy = [&](size_t i, Found entry) {
    float* const target = out + i * dim;
    for (;;) {
      if (!entry.ref) {
        std::copy_n(default_row(ids[i]), dim, target);
        return;
      }
      copy_row<kDim>(target, tier.row(entry.ref.slot()), static_cast<int>(dim));
      if (entry.bucket->unchanged_since(entry.state)) [[likely]] {
        ++hits;
        return;
      }
      entry = reader.find(hash_key(ids[i]), ids[i]);
    }
  };

  for (size_t i = 0; i < count + 2 * kAhead; ++i) {
    const size_t place = i % kAhead;
    if (i >= 2 * kAhead) copy(i - 2 * kAhead, found[place]);
    if (i >= kAhead && i - kAhead < count) {
      found[place] = reader.find(hashes[place], ids[i - kAhead]);
      if (found[place].ref) prefetch_row(tier.row(found[place].ref.slot()), dim);
    }
    if (i < count) {
      hashes[place] = hash_key(ids[i]);
      reader.prefetch(hashes[place]);
    }
  }
  return hits;
}

void Table::apply_gradients(std::span<const int64_t> ids, const float* gradients,
                            std::optional<int64_t> global_step) {
  const Operation operation(*this);
  thread_local GradientBatch batch;
  batch.group(ids, gradients, layout_.dim());

  const std::shared_lock gate = [this] {
    const std::lock_guard queue(turnstile_);
    return std::shared_lock(apply_gate_);
  }();
  uint64_t reserved = reserve_rows(batch);
  const ApplyContext context = begin_apply(global_step);

  // Threads start at different shards, and take what is free before they wait for what is not.
  std::array<int, Index::kShards> pending;
  const size_t start = std::hash<std::thread::id>{}(std::this_thread::get_id());
  for (size_t i = 0; i < pending.size(); ++i) {
    pending[i] = static_cast<int>((start + i) % Index::kShards);
  }
  size_t count = pending.size();
  while (count != 0) {
    size_t busy = 0;
    for (size_t i = 0; i < count; ++i) {
      IndexShard& shard = index_->shard(pending[i]);
      std::unique_lock lock(shard.mutex, std::try_to_lock);
      if (!lock.owns_lock()) {
        if (busy != i || i + 1 != count) {
          pending[busy++] = pending[i];
          continue;
        }
        lock.lock();
      }
      reserved -= apply_to_shard(shard, batch.shard(pending[i]), context);
    }
    count = busy;
  }
  tier_->release(reserved);
}

uint64_t Table::reserve_rows(const GradientBatch& batch) {
  // As if every key were new: cheap, and nearly always to be had.
  if (tier_->reserve(batch.keys().size())) return batch.keys().size();
  IndexReader reader(*index_);
  uint64_t absent = 0;
  for (const KeyGradient& key : batch.keys()) absent += !reader.find(key.hash, key.key).ref;
  if (!tier_->reserve(absent)) {
    const TierStats stats = tier_->stats();
    throw Error(ErrorKind::kStoreFull,
                name_ + ": the batch brings " + std::to_string(absent) + " new keys, but the " +
                    stats.name + " tier has room for " +
                    std::to_string(stats.capacity_rows - std::min(stats.rows, stats.capacity_rows)) +
                    " more rows of its " + std::to_string(stats.capacity_rows) +
                    "; raise storage_size");
  }
  return absent;
}

ApplyContext Table::begin_apply(std::optional<int64_t> global_step) {
  const std::lock_guard lock(state_mutex_);
  const ApplyContext context{global_step.value_or(apply_count_), optimizer_state_};
  ++apply_count_;
  optimizer_->advance(optimizer_state_);
  return context;
}

uint64_t Table::apply_to_shard(IndexShard& shard, std::span<const KeyGradient> keys,
                               const ApplyContext& context) {
  std::array<Entry, kBlock> entries;
  std::array<RowUpdate, kBlock> updates;
  std::array<Slot, kBlock> slots;
  uint64_t inserted = 0;

  for (size_t first = 0; first < keys.size(); first += kBlock) {
    const auto block = keys.subspan(first, std::min(kBlock, keys.size() - first));
    shard.reserve(block.size());
    const BucketArray& buckets = shard.buckets();
    for (const KeyGradient& key : block) {
      __builtin_prefetch(buckets.data() + home_bucket(key.hash, buckets.count()));
    }

    size_t absent = 0;
    for (size_t i = 0; i < block.size(); ++i) {
      entries[i] = shard.entry(block[i].hash, block[i].key);
      if (entries[i]) {
        const Slot slot = entries[i].ref().slot();
        prefetch_row(tier_->row(slot), layout_.row_floats());
        __builtin_prefetch(&tier_->meta(slot));
      } else {
        ++absent;
      }
    }
    if (absent != 0) {
      tier_->take({slots.data(), absent});
      inserted += absent;
      const Slot* slot = slots.data();
      for (size_t i = 0; i < block.size(); ++i) {
        if (!entries[i]) entries[i] = insert_row(shard, block[i], *slot++);
      }
    }
    for (size_t i = 0; i < block.size(); ++i) {
      const Slot slot = entries[i].ref().slot();
      RowMeta& meta = tier_->meta(slot);
      meta.frequency += block[i].occurrences;
      meta.version = context.global_step;
      updates[i] = {entries[i].bucket, tier_->row(slot), block[i].gradient};
    }
    optimizer_->update({updates.data(), block.size()}, layout_, context);
  }
  return inserted;
}

Entry Table::insert_row(IndexShard& shard, const KeyGradient& key, Slot slot) {
  float* const row = tier_->row(slot);
  const size_t block = layout_.block_floats();
  std::copy_n(default_row(key.key), layout_.dim(), row);
  for (int s = 0; s < layout_.slot_count(); ++s) {
    std::fill_n(row + static_cast<size_t>(1 + s) * block, block, optimizer_->initial_slot_value(s));
  }
  tier_->meta(slot) = {.frequency = 0, .version = -1};
  return shard.insert(key.hash, key.key, RowRef(/*tier=*/0, slot));
}

template <class Visit>
void Table::visit_meta(std::span<const int64_t> ids, Visit visit) const {
  const Operation operation(*this);
  for (size_t i = 0; i < ids.size(); ++i) {
    const KeyHash hash = hash_key(ids[i]);
    IndexShard& shard = index_->shard(Index::shard_of(hash));
    const std::lock_guard lock(shard.mutex);
    const Entry entry = shard.entry(hash, ids[i]);
    visit(i, entry ? &tier_->meta(entry.ref().slot()) : nullptr);
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
  visit_meta(ids, [frequencies](size_t i, const RowMeta* meta) {
    frequencies[i] = meta != nullptr ? static_cast<int64_t>(meta->frequency) : 0;
  });
}

void Table::versions(std::span<const int64_t> ids, int64_t* versions) const {
  visit_meta(ids, [versions](size_t i, const RowMeta* meta) {
    versions[i] = meta != nullptr ? meta->version : -1;
  });
}

uint64_t Table::row_count() const {
  const Operation operation(*this);
  uint64_t rows = 0;
  for (int s = 0; s < Index::kShards; ++s) {
    IndexShard& shard = index_->shard(s);
    const std::lock_guard lock(shard.mutex);
    rows += shard.entries();
  }
  return rows;
}

ExportedRows Table::export_rows() const {
  const Operation operation(*this);
  const std::lock_guard queue(turnstile_);
  const std::unique_lock gate(apply_gate_);
  std::vector<std::pair<int64_t, Slot>> rows;
  for (int s = 0; s < Index::kShards; ++s) {
    index_->shard(s).for_each([&](int64_t key, RowRef ref) { rows.emplace_back(key, ref.slot()); });
  }
  std::sort(rows.begin(), rows.end());

  const size_t dim = static_cast<size_t>(layout_.dim());
  ExportedRows exported;
  exported.keys.reserve(rows.size());
  exported.frequencies.reserve(rows.size());
  exported.versions.reserve(rows.size());
  exported.values.reserve(rows.size() * dim);
  exported.slots.resize(static_cast<size_t>(layout_.slot_count()));
  for (auto& slot_values : exported.slots) slot_values.reserve(rows.size() * dim);
  for (const auto& [key, slot] : rows) {
    const RowMeta& meta = tier_->meta(slot);
    exported.keys.push_back(key);
    exported.frequencies.push_back(static_cast<int64_t>(meta.frequency));
    exported.versions.push_back(meta.version);
    const float* const row = tier_->row(slot);
    exported.values.insert(exported.values.end(), row, row + dim);
    for (size_t s = 0; s < exported.slots.size(); ++s) {
      const float* const values = row + (1 + s) * layout_.block_floats();
      exported.slots[s].insert(exported.slots[s].end(), values, values + dim);
    }
  }
  return exported;
}

TableStats Table::stats() const {
  const Operation operation(*this);
  TableStats stats{
      .hits = hits_.load(std::memory_order_relaxed),
      .misses = misses_.load(std::memory_order_relaxed),
      .index_bytes = 0,
      .tiers = {tier_->stats()},
  };
  for (int s = 0; s < Index::kShards; ++s) {
    IndexShard& shard = index_->shard(s);
    const std::lock_guard lock(shard.mutex);
    stats.index_bytes += shard.size_bytes();
  }
  return stats;
}

}  // namespace embstore
