#include "keep/table_save.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <numeric>
#include <utility>

#include "access/phase.h"
#include "errors/error.h"
#include "keep/table_moment.h"
#include "platform/prefetch.h"

namespace embstore {
namespace {

// Rows of memory that are copied in one go while a shard's mutex is held.
constexpr size_t kRowsUnderMutex = 64;
// Few enough for the cache misses that a core can have in flight: each row is three cache lines or more.
constexpr size_t kRowsFetchedAhead = 12;

struct RowSpot {
  int64_t key;
  RowRef ref;  // where the row was when its shard was looked through
};
static_assert(sizeof(RowSpot) == 16);

// The rows of a shard, in groups of about `most` rows. Group g has those whose sort_hash() begins with the
// bits of g.
class GroupedSpots {
 public:
  explicit GroupedSpots(size_t most) : most_(most) {}

  // Replaces the rows by those of another shard.
  void take(IndexShard& shard) {
    unordered_.clear();
    {
      const MutexLock lock(shard.mutex);
      unordered_.reserve(shard.entries());
      shard.for_each([this](int64_t key, RowRef ref) { unordered_.push_back({key, ref}); });
    }
    bits_ = static_cast<int>(std::bit_width(unordered_.size() / most_));
    ends_.assign(size_t{1} << bits_, 0);
    for (const RowSpot& spot : unordered_) ++ends_[group_of(spot)];
    std::exclusive_scan(ends_.begin(), ends_.end(), ends_.begin(), size_t{0});
    spots_.resize(unordered_.size());
    for (const RowSpot& spot : unordered_) spots_[ends_[group_of(spot)]++] = spot;
  }

  size_t count() const { return ends_.size(); }
  std::span<const RowSpot> group(size_t g) const {
    const size_t first = g == 0 ? 0 : ends_[g - 1];
    return std::span(spots_).subspan(first, ends_[g] - first);
  }
  // Every row of groups up to g has a lower sort_hash() than this.
  uint64_t end_hash(size_t g) const { return static_cast<uint64_t>(g + 1) << (32 - bits_); }

 private:
  size_t group_of(const RowSpot& spot) const {
    return static_cast<size_t>(uint64_t{ShardSave::sort_hash(hash_key(spot.key))} >> (32 - bits_));
  }

  const size_t most_;
  int bits_ = 0;
  PageVector<RowSpot> unordered_;
  PageVector<RowSpot> spots_;
  std::vector<size_t> ends_;  // by group
};

// Reads the rows of one shard while batches change them and moves go on: as they were at the moment of the
// save, if it keeps images, or as they are.
class ChangingRows {
 public:
  ChangingRows(const TableParts& table, Operation& operation)
      : store_(*table.store),
        operation_(operation),
        spots_(rows_at_a_time(store_.layout())),
        batch_(store_.start_batch()) {}

  // Visits the rows that should_save() accepts, one group at a time. make_room() returns how many rows may be
  // visited next, at least one, and is called without a lock; visit_row() may be called with the shard's
  // mutex held. Calls after_some(hash) after all rows of lower hashes were visited.
  template <class MakeRoom, class IsWanted, class Visit, class AfterSome>
  void visit(IndexShard& shard, MakeRoom make_room, IsWanted should_save, Visit visit_row,
             AfterSome after_some) {
    spots_.take(shard);
    for (size_t g = 0; g < spots_.count(); ++g) {
      read(shard, spots_.group(g), make_room, [&](const RowHeader& header, const float* row) {
        const bool wanted = should_save(header);
        if (wanted) visit_row(header, row);
        return wanted;
      });
      operation_.refresh();
      after_some(spots_.end_hash(g));
    }
  }

  // Keys of rows that a medium didn't give back.
  std::vector<int64_t>& damaged() { return damaged_; }
  const std::string& first_damage() const { return first_damage_; }

 private:
  // `take` returns whether it wanted the row.
  template <class MakeRoom, class Take>
  void read(IndexShard& shard, std::span<const RowSpot> spots, MakeRoom make_room, Take take) {
    pending_.clear();
    for (size_t i = 0; i < std::min(kRowsFetchedAhead, spots.size()); ++i) fetch(shard, spots[i]);
    for (size_t next = 0; next < spots.size();) {
      const size_t end = next + std::min({make_room(), kRowsUnderMutex, spots.size() - next});
      MemoryPhase phase(store_.tiers());
      const MutexLock lock(shard.mutex);
      for (; next < end; ++next) {
        if (next + kRowsFetchedAhead < spots.size()) fetch(shard, spots[next + kRowsFetchedAhead]);
        if (!take_without_file(shard, spots[next].key, take, phase)) pending_.push_back(next);
      }
    }
    // In the order in which files are read fastest.
    std::sort(pending_.begin(), pending_.end(),
              [&spots](size_t a, size_t b) { return spots[a].ref.raw() < spots[b].ref.raw(); });
    while (!pending_.empty()) read_pending(shard, spots, make_room, take);
  }

  // Reads the pending rows, which lie in files, once. Rows that moved meanwhile stay pending.
  template <class MakeRoom, class Take>
  void read_pending(IndexShard& shard, std::span<const RowSpot> spots, MakeRoom make_room, Take take) {
    const TierStack& tiers = store_.tiers();
    IndexReader reader(store_.index());
    batch_->start(tiers);
    in_batch_.assign(pending_.size(), kNotInBatch);
    for (size_t p = 0; p < pending_.size(); ++p) {
      const int64_t key = spots[pending_[p]].key;
      const IndexHit hit = reader.find(key);
      if (!hit.ref || tiers.memory(hit.ref.tier()) != nullptr) continue;
      in_batch_[p] = batch_->size();
      batch_->add(key, hit);
    }
    batch_->read(tiers);

    size_t left = 0;
    for (size_t next = 0; next < pending_.size();) {
      const size_t end = std::min(next + std::min(make_room(), kRowsUnderMutex), pending_.size());
      MemoryPhase phase(store_.tiers());
      const MutexLock lock(shard.mutex);
      for (; next < end; ++next) {
        const int64_t key = spots[pending_[next]].key;
        if (take_without_file(shard, key, take, phase)) continue;
        const size_t row = in_batch_[next];
        const RowRef now = shard.entry(key).ref();
        if (row == kNotInBatch || !(batch_->is_valid(row) || batch_->is_valid_at(row, now, tiers))) {
          pending_[left++] = pending_[next];
        } else if (batch_->is_damaged(row)) {
          if (damaged_.empty()) first_damage_ = batch_->damage(row);
          damaged_.push_back(key);
        } else {
          RowHeader header = batch_->header(row);
          tiers.tier(now.tier()).update_rank(now.slot(), header);
          take(header, batch_->row(row));
        }
      }
    }
    pending_.resize(left);
  }

  // Takes the row if it has an image or lies in memory. Returns false if it lies in a file.
  template <class Take>
  bool take_without_file(IndexShard& shard, int64_t key, Take take, Phase& phase) REQUIRES(shard.mutex) {
    const ShardSave::Known known = shard.save->known(key);
    if (known.is_known) {
      if (known.header != nullptr) take(*known.header, known.floats);
      return true;
    }
    const IndexEntry entry = shard.entry(key);
    if (!entry) return true;  // it came in a batch that was given up, which concerns no save
    const Slot slot = entry.ref().slot();
    const MemoryTier* const memory = store_.tiers().memory(entry.ref().tier());
    if (memory == nullptr) return false;
    if (take(memory->header(slot, key), memory->rows().row(slot))) {
      memory->count_row(phase, Access::kLoad, slot);
    } else {
      memory->count_header(phase, Access::kLoad, slot);
    }
    return true;
  }

  // Prefetches the row's place in the index and in its tier. It nearly always is where it was when the shard
  // was looked through.
  void fetch(const IndexShard& shard, const RowSpot& spot) const {
    const BucketArray& buckets = shard.buckets();
    prefetch_line(buckets.home(spot.key));
    if (const MemoryTier* const memory = store_.tiers().memory(spot.ref.tier())) {
      memory->prefetch(spot.ref.slot());
    }
  }

  static constexpr size_t kNotInBatch = SIZE_MAX;

  const RowStore& store_;
  Operation& operation_;
  GroupedSpots spots_;
  std::vector<size_t> pending_;   // indices of a group's spots
  std::vector<size_t> in_batch_;  // the positions of pending rows in batch_
  BatchPtr batch_;                // rows in files
  std::vector<int64_t> damaged_;
  std::string first_damage_;
};

// Settles moves beforehand, so that little is left to do while batches wait.
void settle(Mover* mover) {
  if (mover == nullptr) return;
  try {
    mover->settle();
  } catch (const std::exception&) {
    // Rows that can't move are saved where they are.
  }
}

}  // namespace

bool EvictionRule::evicts(const RowHeader& header, const float* weights, int dim) const {
  if (min_version && header.version < *min_version) return true;
  if (!min_half_square) return false;
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += static_cast<double>(weights[d]) * weights[d];
  return 0.5 * sum < *min_half_square;
}

TableSave::TableSave(TableParts& table, checkpoint::Writer* file, const EvictionRule& eviction)
    : turn_(table),
      table_(table),
      operation_(table, Operation::Uses::kRowsForLong),
      file_(file),
      eviction_(eviction) {
  if (!eviction.any()) return;
  try {
    find_evicted();
  } catch (...) {
    for (int s = 0; s < kShards; ++s) end_shard(s);
    throw;
  }
}

TableSave::~TableSave() {
  for (int s = 0; s < kShards; ++s) end_shard(s);
}

void TableSave::start_shards(ShardSave::Keeps keeps) {
  for (int s = 0; s < kShards; ++s) {
    auto save = std::make_unique<ShardSave>(keeps, table_.layout, table_.image_memory);
    IndexShard& shard = table_.store->shard(s);
    const MutexLock lock(shard.mutex);
    std::swap(shards_[static_cast<size_t>(s)], save);
    shard.save = shards_[static_cast<size_t>(s)].get();
  }
  table_.store->set_being_saved(keeps == ShardSave::Keeps::kImages);
}

void TableSave::end_shard(int number) {
  std::unique_ptr<ShardSave>& left = shards_[static_cast<size_t>(number)];
  if (left == nullptr) return;
  {
    IndexShard& shard = table_.store->shard(number);
    const MutexLock lock(shard.mutex);
    shard.save = nullptr;
  }
  left.reset();
  const bool is_last =
      std::none_of(shards_.begin(), shards_.end(), [](const auto& shard) { return shard != nullptr; });
  if (is_last) table_.store->set_being_saved(false);
}

void TableSave::find_evicted() {
  {
    const ApplyGate::Alone gate(table_.gate);
    start_shards(ShardSave::Keeps::kKeys);
  }
  ChangingRows rows(table_, operation_);
  for (int s = 0; s < kShards; ++s) {
    rows.visit(
        table_.store->shard(s), [] { return SIZE_MAX; }, [](const RowHeader&) { return true; },
        [this](const RowHeader& header, const float* row) {
          if (eviction_.evicts(header, row, table_.layout.dim())) evicted_.push_back(header.key);
        },
        [](uint64_t) {});
  }
}

uint64_t TableSave::evict() {
  std::vector<int64_t> changed;
  HasRow has_row(*table_.store);
  for (int s = 0; s < kShards; ++s) {
    IndexShard& shard = table_.store->shard(s);
    const MutexLock lock(shard.mutex);
    const std::vector<int64_t> keys = shard.save->keys();
    changed.insert(changed.end(), keys.begin(), keys.end());
    AdmissionFilter* const filter = table_.filters.shard(s);
    if (filter != nullptr && eviction_.min_version) filter->forget_before(*eviction_.min_version);
  }
  std::sort(changed.begin(), changed.end());
  std::erase_if(evicted_,
                [&changed](int64_t key) { return std::binary_search(changed.begin(), changed.end(), key); });
  std::erase_if(changed, [&has_row](int64_t key) { return !has_row(key); });
  RowVisitor visits(table_);
  visits.visit(changed, [this](size_t, const RowHeader& header, const float* row) {
    if (eviction_.evicts(header, row, table_.layout.dim())) evicted_.push_back(header.key);
  });
  const uint64_t evicted = evicted_.empty() ? 0 : drop_rows(table_, evicted_);
  evicted_ = {};
  return evicted;
}

uint64_t TableSave::evict_alone() {
  settle(table_.mover.get());
  const Standstill standstill(table_);
  return eviction_.any() ? evict() : 0;
}

void TableSave::begin(bool waiting_keys) {
  settle(table_.mover.get());
  RowStore& store = *table_.store;
  const Standstill standstill(table_);
  if (eviction_.any()) evict();
  saved_.state = state_of(table_);
  for (size_t t = 0; t < store.tiers().size(); ++t) saved_.rows_left += store.rows(t);
  removed_keys_ = table_.removed_keys.list_for_save(HasRow(store));
  if (waiting_keys) waiting_ = WaitingKeys(table_);
  saved_.number = table_.spans.begin_next();
  spans_ = table_.spans;
  start_shards(ShardSave::Keeps::kImages);
}

SavedTable TableSave::write(OnDamage on_damage) {
  if (file_->is_first() && !file_->incremental()) file_->add_initial_rows(table_.initial.values());
  ChangingRows rows(table_, operation_);
  for (int s = 0; s < kShards; ++s) {
    IndexShard& shard = table_.store->shard(s);
    rows.visit(
        shard, [this] { return file_->make_room_for_rows(); },
        [this](const RowHeader& header) { return should_save(header); },
        [this](const RowHeader& header, const float* row) { file_->add_row(header, row); },
        [this, &shard](uint64_t written_below) {
          {
            const MutexLock lock(shard.mutex);
            shard.save->set_written_below(written_below);
          }
          if (table_.image_memory.are_many()) write_images();
        });
    end_shard(s);
  }
  if (on_damage == OnDamage::kRaise && !rows.damaged().empty()) {
    throw DamagedRowsError(std::move(rows.damaged()), rows.first_damage());
  }
  saved_.skipped = std::move(rows.damaged());
  std::sort(saved_.skipped.begin(), saved_.skipped.end());
  if (file_->incremental()) {
    for (const int64_t key : removed_keys_) file_->add_removed_key(key);
  }
  waiting_.write(*file_);
  table_.store->tiers().compact();
  return std::move(saved_);
}

void TableSave::write_images() {
  for (int s = 0; s < kShards; ++s) {
    ShardSave* const save = shards_[static_cast<size_t>(s)].get();
    if (save == nullptr) continue;
    ShardSave::Images images;
    {
      const MutexLock lock(table_.store->shard(s).mutex);
      images = save->take_images();
    }
    const size_t row_floats = table_.layout.row_floats();
    for (size_t i = 0; i < images.headers.size(); ++i) {
      if (should_save(images.headers[i])) {
        file_->add_row(images.headers[i], images.floats.data() + i * row_floats);
      }
    }
  }
}

}  // namespace embstore
