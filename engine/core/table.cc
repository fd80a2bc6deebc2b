#include "table.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <utility>

#include "access/phase.h"
#include "errors/error.h"
#include "keep/kept_rows.h"
#include "keep/save.h"
#include "keep/table_moment.h"
#include "lookup/each_key_once.h"
#include "lookup/in_pieces.h"
#include "lookup/look_up.h"
#include "lookup/look_up_batches.h"
#include "parts/key_facts.h"
#include "row/finite_values.h"
#include "tiers/hbm/hbm_tier.h"
#include "update/assign_rows.h"
#include "update/batch_shares.h"
#include "update/gathered_update.h"
#include "update/resident_update.h"
#include "update/update_together.h"

namespace embstore {

Table::Table(const TableSpec& spec)
    : parts_(spec),
      is_watched_(
          std::ranges::any_of(spec.tiers, [](const TierSpec& tier) { return tier.watcher != nullptr; })) {}

Table::~Table() {
  try {
    close();
  } catch (const std::exception& error) {
    // A caller that wants to handle the error calls close() first. Everything that could be written is
    // written.
    std::fprintf(stderr, "embstore: %s was given up: %s\n", parts_.name.c_str(), error.what());
  }
}

void Table::end_operations() {
  parts_.closed.store(true);
  parts_.epochs.wait_until_idle();
  if (parts_.steps) parts_.steps->finish();
  if (parts_.mover) parts_.mover->stop();
}

void Table::close() {
  MutexLock lock(close_mutex_);
  end_operations();
  if (!parts_.store) return;
  // Without take_over_kept_rows(), what an earlier process left stays as it is. Older checkpoints stay:
  // another partition may fail to make its own, or may never have begun.
  if (keeps_rows() && !rows_are_kept_ && keep_as_) embstore::keep_rows(parts_, *keep_as_);
  parts_.store->tiers().close();  // before the mover is destroyed, which a tier's own thread may be calling
  parts_.mover.reset();
  parts_.reads.take();  // these batches belong to the store
  parts_.device_look_up.reset();
  parts_.device_apply.reset();
  parts_.device_prefetch.reset();
  parts_.store.reset();
  raise_kept_error();  // the last call that can report it
}

void Table::keep_no_rows(const log::CheckpointId& id) {
  const Operation operation(parts_, Operation::Uses::kNoRows);
  make_kept_checkpoint(parts_, id);
}

void Table::keep_rows() {
  MutexLock lock(close_mutex_);
  end_operations();
  if (!parts_.store || rows_are_kept_) return;
  embstore::keep_rows(parts_, keep_as_.value());
  rows_are_kept_ = true;
}

void Table::drop_older_rows() {
  MutexLock lock(close_mutex_);
  if (parts_.store && rows_are_kept_) embstore::drop_older_rows(parts_);
}

std::vector<log::CheckpointId> Table::kept_rows() const {
  Operation operation(parts_, Operation::Uses::kNoRows);
  return embstore::kept_rows(parts_);
}

void Table::take_over_kept_rows(const log::CheckpointId* id, const log::CheckpointId& keep_as) {
  embstore::take_over_kept_rows(parts_, id);
  const MutexLock lock(close_mutex_);
  keep_as_ = keep_as;
}

// --- Reading

void Table::raise_kept_error() const {
  if (parts_.steps) parts_.steps->raise_kept_error();
}

void Table::lookup(std::span<const int64_t> ids, float* out, LookUpPurpose purpose,
                   std::span<const uint32_t> occurrences) const {
  Operation operation(parts_);
  raise_kept_error();
  const bool is_training = purpose == LookUpPurpose::kTraining;
  if (is_training && parts_.steps) parts_.mover->turns().note_looked_up();
  const bool is_counted = purpose == LookUpPurpose::kServing && parts_.mover;
  const uint64_t first_stamp = is_counted ? parts_.clock.begin_batch(ids.size()) : 0;
  LookUpBatches batches;
  const auto read = [&](std::span<const int64_t> keys, std::span<const uint32_t> occur,
                        std::span<const uint32_t> last_positions, uint64_t stamp, const RowsOut& rows) {
    batches.add(is_counted ? look_up_to_serve(keys, last_positions, occur, stamp, rows)
                           : look_up_to_train(keys, occur, is_training, rows));
  };
  const auto width = static_cast<size_t>(dim());
  const auto read_piece = [&](size_t first, size_t count) {
    read(ids.subspan(first, count), occurrences.empty() ? occurrences : occurrences.subspan(first, count), {},
         first_stamp + first, out + first * width);
  };
  if (parts_.steps && occurrences.empty()) {
    // Rows in a GPU's memory cross its bus, so each is read once.
    read_each_key_once({ids, {}}, width, out,
                       [&](std::span<const int64_t> keys, std::span<const uint32_t> occur,
                           std::span<const uint32_t> last_positions,
                           const RowsOut& rows) { read(keys, occur, last_positions, first_stamp, rows); });
  } else if (may_share()) {
    read_in_pieces(ids.size(), kMinIdsAThread, read_piece);
  } else {
    read_piece(0, ids.size());
  }
  std::vector<BatchPtr> read_batches = batches.take();
  if (!is_counted) return parts_.reads.keep(std::move(read_batches));
  for (BatchPtr& batch : read_batches) parts_.mover->count_served(std::move(batch));
}

bool Table::may_share() const { return !parts_.steps && !is_watched(); }

BatchPtr Table::look_up_to_train(std::span<const int64_t> ids, std::span<const uint32_t> occurrences,
                                 bool update_follows, const RowsOut& out) const {
  const LookUp look_up(*parts_.store, parts_.filters, parts_.initial);
  std::vector<RowRef> refs(occurrences.size());  // of each id, to count its row as often as the id occurs
  BatchPtr batch = parts_.mover ? parts_.store->start_batch() : nullptr;
  const uint64_t hits =
      look_up.read_first_tier(ids, out, batch.get(), occurrences.empty() ? nullptr : refs.data());
  if (occurrences.empty()) {
    count(look_up_counts(ids.size(), hits, batch.get()));
  } else {
    count(look_up_counts(refs, occurrences));
  }
  if (batch == nullptr || batch->empty()) return nullptr;
  // The update needs no copy of rows in memory: it reads them where they are.
  const bool are_useful = update_follows && batch->rows_outside_memory(parts_.store->tiers()) != 0;
  if (!are_useful || !parts_.reads.updates_follow()) {
    look_up.read_lower(out, *batch, RowPart::kWeights);
    return nullptr;
  }
  look_up.read_lower(out, *batch, RowPart::kAll);
  return batch;
}

BatchPtr Table::look_up_to_serve(std::span<const int64_t> ids, std::span<const uint32_t> last_positions,
                                 std::span<const uint32_t> occurrences, uint64_t first_stamp,
                                 const RowsOut& out) const {
  const LookUp look_up(*parts_.store, parts_.filters, parts_.initial);
  BatchPtr batch = parts_.store->start_batch();
  batch->first_stamp = first_stamp;
  batch->ids.assign(ids.begin(), ids.end());
  batch->last_positions.assign(last_positions.begin(), last_positions.end());
  batch->occurrences.assign(occurrences.begin(), occurrences.end());
  batch->refs.resize(ids.size());
  const uint64_t hits = look_up.read_first_tier(ids, out, batch.get(), batch->refs.data());
  count(occurrences.empty() ? look_up_counts(ids.size(), hits, batch.get())
                            : look_up_counts(batch->refs, occurrences));
  if (!batch->empty()) look_up.read_lower(out, *batch, parts_.mover->part_to_serve());
  return batch;
}

Table::LookUpCounts Table::look_up_counts(std::span<const RowRef> refs,
                                          std::span<const uint32_t> occurrences) const {
  const TierStack& tiers = parts_.store->tiers();
  LookUpCounts counts{};
  for (size_t i = 0; i < refs.size(); ++i) {
    counts.ids += occurrences[i];
    if (!refs[i]) continue;
    counts.with_row += occurrences[i];
    if (tiers.level_of(refs[i].tier()) == 0) counts.hits += occurrences[i];
  }
  return counts;
}

Table::LookUpCounts Table::look_up_counts(uint64_t ids, uint64_t first_tier_hits,
                                          const BatchInFlight* lower) const {
  LookUpCounts counts{.ids = ids, .hits = first_tier_hits, .with_row = first_tier_hits};
  if (lower == nullptr) return counts;
  const TierStack& tiers = parts_.store->tiers();
  for (size_t t = 1; t < tiers.size(); ++t) {
    const size_t rows = lower->rows_of(t).places().size();
    counts.with_row += rows;
    if (tiers.level_of(t) == 0) counts.hits += rows;
  }
  return counts;
}

void Table::count(const LookUpCounts& counts) const {
  hits_.fetch_add(counts.hits, std::memory_order_relaxed);
  misses_.fetch_add(counts.ids - counts.hits, std::memory_order_relaxed);
  without_row_.fetch_add(counts.ids - counts.with_row, std::memory_order_relaxed);
}

void Table::lookup_tier(std::span<const int64_t> ids, int32_t* tiers) const {
  Operation operation(parts_, Operation::Uses::kNoRows);
  IndexReader reader(parts_.store->index());
  for (size_t i = 0; i < ids.size(); ++i) {
    const RowRef at = reader.place_of(ids[i]);
    tiers[i] = at ? static_cast<int32_t>(parts_.store->tiers().level_of(at.tier())) : -1;
  }
}

void Table::frequencies(std::span<const int64_t> ids, int64_t* frequencies) const {
  const Operation operation(parts_);
  for (const KeyFacts& facts : facts_of(parts_, ids)) *frequencies++ = static_cast<int64_t>(facts.frequency);
}

void Table::versions(std::span<const int64_t> ids, int64_t* versions) const {
  const Operation operation(parts_);
  for (const KeyFacts& facts : facts_of(parts_, ids)) *versions++ = facts.version;
}

uint64_t Table::row_count() const {
  Operation operation(parts_, Operation::Uses::kNoRows);
  return parts_.store->row_count();
}

TableStats Table::stats() const {
  Operation operation(parts_);
  const RowStore& store = *parts_.store;
  const Mover* const mover = parts_.mover.get();
  TableStats stats{
      .hits = hits_.load(std::memory_order_relaxed),
      .misses = misses_.load(std::memory_order_relaxed),
      .without_row = without_row_.load(std::memory_order_relaxed),
      .promotions = mover ? mover->promoted_rows() : 0,
      .demotions = mover ? mover->demoted_rows() : 0,
      .forgotten_accesses = mover ? mover->forgotten_accesses() : 0,
      .waiting_keys = 0,
      .filter_bytes = 0,
      .index_bytes = store.index_bytes(),
      .background_error = mover ? mover->background_error() : "",
      .tiers = {},
  };
  const TierStack& tiers = store.tiers();
  for (size_t level = 0; level < tiers.levels(); ++level) {
    const size_t t = tiers.tier_of_level(level);
    const Tier& tier = tiers.tier(t);
    stats.tiers.push_back({tier.stats(), 0, tiers.capacity_rows(t), tier.meter().counts()});
  }
  for (size_t t = 0; t < tiers.size(); ++t) stats.tiers[tiers.level_of(t)].rows += store.rows(t);
  for (int s = 0; s < kShards; ++s) {
    MutexLock lock(store.shard(s).mutex);
    if (const AdmissionFilter* const filter = parts_.filters.shard(s)) {
      stats.waiting_keys += filter->waiting_keys();
      stats.filter_bytes += filter->size_bytes();
    }
  }
  return stats;
}

void Table::watch(const void* owner,
                  const std::function<std::shared_ptr<PhaseWatcher>(size_t level)>& watcher_of) {
  Operation operation(parts_, Operation::Uses::kNoRows);
  const TierStack& tiers = parts_.store->tiers();
  const MutexLock lock(watch_mutex_);
  is_watched_ = true;
  for (size_t level = 0; level < tiers.levels(); ++level) {
    tiers.tier(tiers.tier_of_level(level)).meter().watch(owner, watcher_of(level));
  }
}

void Table::unwatch(const void* owner) {
  Operation operation(parts_, Operation::Uses::kNoRows);
  const TierStack& tiers = parts_.store->tiers();
  const MutexLock lock(watch_mutex_);
  bool any = false;
  for (size_t t = 0; t < tiers.size(); ++t) {
    TierMeter& meter = tiers.tier(t).meter();
    meter.unwatch(owner);
    any = any || meter.wanted_notes() != TierMeter::Notes::kCounts;
  }
  is_watched_ = any;
}

void Table::drain() const {
  Operation operation(parts_);
  raise_kept_error();
  if (!parts_.mover) return;
  {
    const ApplyGate::Shared gate(parts_.gate);
    parts_.mover->settle();
    if (!parts_.store->has_excess()) return parts_.store->tiers().drain();
  }
  // Updates that are under way have pinned rows beyond the capacity, so waits for them.
  const ApplyGate::Alone gate(parts_.gate);
  parts_.mover->settle();
  parts_.store->tiers().drain();
}

// --- Updating

class Table::PreparedApply::Scope {
 public:
  Scope(Table& table, const GradientBatch::Gradients& gradients)
      : Scope(table, gradients, *table.parts_.optimizer, table.parts_.filters) {}
  // `rule` and `filters` replace the table's own.
  Scope(Table& table, const GradientBatch::Gradients& gradients, const Optimizer& rule,
        const ShardFilters& filters)
      : operation_(table.parts_),
        table_(table),
        parts_(table.parts_),
        rule_(rule),
        filters_(filters),
        ids_(gradients.ids.size()),
        shares_(gradients, table.may_share() ? BatchShares::worthwhile(ids_, kMinIdsAThread) : 1),
        reads_(table.parts_.reads) {}
  ~Scope() { end(); }

  bool is_finite() const { return shares_.is_finite(); }

  void prepare() NO_THREAD_SAFETY_ANALYSIS {
    uint64_t new_rows = 0;
    parts_.image_memory.wait_for_room();
    parts_.gate.enter();
    gate_ = Gate::kShared;
    update_ = make_update(/*is_exact=*/shares_.count() != 1 && parts_.store->room() < shares_.key_count());
    if (update_->prepare(new_rows)) return;
    end();
    // Nearly full. The room that the batch needs can only be computed exactly while no other batch brings
    // rows.
    parts_.gate.enter_alone();
    gate_ = Gate::kAlone;
    InclusiveCache* const cache = parts_.store->cache();
    if (cache != nullptr) {
      const size_t rows = shares_.key_count();
      cache->set_aside(rows);
      parts_.mover->settle();  // moves take up places of a pool for a while
      parts_.mover->make_room_in_pool(rows);
    }
    update_ = make_update(/*is_exact=*/true);
    if (update_->prepare(new_rows)) return;
    if (cache != nullptr) {
      throw Error(ErrorKind::kStoreFull,
                  parts_.name +
                      ": the batch changes rows that its pool has no room for beside what its "
                      "checkpoints keep: " +
                      cache->pool().described_room() +
                      "; persist, which lets older rows go, or raise storage_size");
    }
    throw table_.store_full_error(new_rows);
  }

  void commit(std::optional<int64_t> global_step) { commit(table_.begin_apply(global_step)); }
  void commit(const ApplyContext& context) NO_THREAD_SAFETY_ANALYSIS {
    update_->commit({context, parts_.clock.begin_batch(ids_), parts_.spans.current()});
    end();
    if (parts_.mover) parts_.mover->note_rows_changed();
  }

 private:
  enum class Gate { kOutside, kShared, kAlone };

  // `is_exact`: the update asks for no more room than its new rows take.
  std::unique_ptr<BatchUpdate> make_update(bool is_exact) {
    const auto make = [this, is_exact](const GradientBatch& share) -> std::unique_ptr<BatchUpdate> {
      const UpdateParts parts{*parts_.store, filters_, parts_.initial, rule_, parts_.slot_values.data()};
      if (!parts_.mover) return std::make_unique<ResidentUpdate>(parts, share, is_exact);
      return std::make_unique<GatheredUpdate>(parts, share, *parts_.mover, reads_);
    };
    if (shares_.count() == 1) return make(shares_.share(0));
    return std::make_unique<UpdateTogether>(shares_, make);
  }
  void end() NO_THREAD_SAFETY_ANALYSIS {
    update_.reset();
    if (gate_ == Gate::kShared) parts_.gate.leave();
    if (gate_ == Gate::kAlone) {
      if (InclusiveCache* const cache = parts_.store->cache()) cache->set_aside(0);
      parts_.gate.leave_alone();
    }
    gate_ = Gate::kOutside;
  }

  Operation operation_;
  Table& table_;
  TableParts& parts_;
  const Optimizer& rule_;
  const ShardFilters& filters_;
  const size_t ids_;
  BatchShares shares_;
  UpdateReads reads_;
  Gate gate_ = Gate::kOutside;
  std::unique_ptr<BatchUpdate> update_;
};

Table::PreparedApply::PreparedApply(Table& table, std::span<const int64_t> ids, const float* gradients,
                                    std::span<const uint32_t> occurrences)
    : scope_(std::make_unique<Scope>(table,
                                     GradientBatch::Gradients{ids, gradients, table.dim(), occurrences})) {
  scope_->prepare();
}

Table::PreparedApply::~PreparedApply() = default;

void Table::PreparedApply::commit(std::optional<int64_t> global_step) { scope_->commit(global_step); }

std::unique_ptr<Table::PreparedApply> Table::prepare_apply(std::span<const int64_t> ids,
                                                           const float* gradients,
                                                           std::span<const uint32_t> occurrences) {
  raise_kept_error();
  return std::unique_ptr<PreparedApply>(new PreparedApply(*this, ids, gradients, occurrences));
}

void Table::apply_gradients(std::span<const int64_t> ids, const float* gradients,
                            std::optional<int64_t> global_step, std::span<const uint32_t> occurrences) {
  raise_kept_error();
  PreparedApply::Scope scope(*this, {ids, gradients, dim(), occurrences});
  scope.prepare();
  scope.commit(global_step);
}

std::optional<size_t> Table::apply_if_finite(std::span<const int64_t> ids, const float* gradients,
                                             std::optional<int64_t> global_step,
                                             const std::optional<Bags>& bags) {
  raise_kept_error();
  const PageVector<uint32_t> bag_numbers = bags ? bags->numbers(ids) : PageVector<uint32_t>();
  const GradientBatch::Gradients batch{.ids = ids, .rows = gradients, .dim = dim(), .bags = bag_numbers};
  PreparedApply::Scope scope(*this, batch);
  if (!scope.is_finite()) {
    const auto floats = static_cast<size_t>(dim());
    for (uint32_t i = 0; i < ids.size(); ++i) {
      if (batch.leaves_out(i)) continue;
      if (const auto first = first_not_finite({batch.row(i), floats})) return i * floats + *first;
    }
    throw Error(ErrorKind::kInvalidArgument,
                parts_.name +
                    ": grads changed while they were read; give an array that no thread writes to meanwhile");
  }
  scope.prepare();
  scope.commit(global_step);
  return std::nullopt;
}

void Table::put(std::span<const int64_t> keys, const float* values, bool with_slots,
                std::span<const uint32_t> frequencies, int64_t version) {
  raise_kept_error();
  const AssignRows assign(*parts_.optimizer, with_slots);
  const ShardFilters admit_all{NoFilter{}};
  PreparedApply::Scope scope(*this, {keys, values, assign.value_floats(parts_.layout), frequencies}, assign,
                             admit_all);
  scope.prepare();
  scope.commit(ApplyContext{version, assign.initial_state()});
  if (!parts_.filters.any()) return;
  for (const int64_t key : keys) {  // which may have waited for a row
    const KeyHash hash = hash_key(key);
    const MutexLock lock(parts_.store->shard_of_key(key).mutex);
    AdmissionFilter& filter = *parts_.filters.filter_of(key);
    if (filter.count(key, hash) != 0) filter.remove(key, hash);
  }
}

ApplyContext Table::begin_apply(std::optional<int64_t> global_step) {
  ApplyContext context = count_apply(global_step);
  begin_update(context);
  return context;
}

ApplyContext Table::count_apply(std::optional<int64_t> global_step) {
  if (parts_.steps) parts_.mover->turns().note_apply_began();
  MutexLock lock(parts_.state_mutex);
  const int64_t count = parts_.apply_count++;
  return {global_step.value_or(count), parts_.optimizer_state};
}

void Table::begin_update(ApplyContext& context) {
  MutexLock lock(parts_.state_mutex);
  const double learning_rate = context.state.learning_rate;
  context.state = parts_.optimizer_state;
  context.state.learning_rate = learning_rate;
  parts_.optimizer->advance(parts_.optimizer_state);
}

void Table::leave_out_apply() {
  const Operation operation(parts_);
  raise_kept_error();
  count_apply(std::nullopt);
}

Error Table::store_full_error(uint64_t new_rows) const {
  return Error(ErrorKind::kStoreFull, parts_.name + ": the batch brings " + std::to_string(new_rows) +
                                          " new rows, but its tiers have room for " +
                                          std::to_string(parts_.store->room()) + " more of their " +
                                          std::to_string(parts_.store->tiers().total_capacity_rows()) +
                                          "; raise storage_size");
}

int64_t Table::apply_count() {
  MutexLock lock(parts_.state_mutex);
  return parts_.apply_count;
}

void Table::advance_apply_count(int64_t at_least) {
  MutexLock lock(parts_.state_mutex);
  parts_.apply_count = std::max(parts_.apply_count, at_least);
}

double Table::learning_rate() const {
  const Operation operation(parts_, Operation::Uses::kNoRows);
  MutexLock lock(parts_.state_mutex);
  return parts_.optimizer_state.learning_rate;
}

void Table::set_learning_rate(double learning_rate) {
  const Operation operation(parts_, Operation::Uses::kNoRows);
  MutexLock lock(parts_.state_mutex);
  parts_.optimizer_state.learning_rate = learning_rate;
}

// --- Keeping

log::Checkpoints& Table::checkpoints() const {
  log::Checkpoints* const checkpoints = parts_.store->tiers().checkpoints();
  if (checkpoints == nullptr || parts_.store->tiers().keeps_rows()) {
    throw Error(ErrorKind::kInvalidArgument,
                parts_.name + ": keeps no checkpoints of its own; make it with durability=\"checkpoint\"");
  }
  return *checkpoints;
}

BegunCheckpoint Table::begin_persist(checkpoint::Writer& file, bool waiting_keys) {
  Operation operation(parts_);
  raise_kept_error();
  checkpoints();
  return begin_checkpoint(parts_, file, waiting_keys);
}

void Table::finish_persist(uint64_t number, const log::CheckpointId& id) {
  Operation operation(parts_, Operation::Uses::kNoRows);  // table.write_back_use is a use of rows already
  checkpoints();
  commit_checkpoint(parts_, operation, number, id);
}

void Table::drop_persisted(uint64_t number) {
  Operation operation(parts_);
  checkpoints();
  drop_checkpoint(parts_, number);
}

std::vector<log::KeptCheckpoint> Table::persisted() const {
  Operation operation(parts_, Operation::Uses::kNoRows);
  return checkpoints().kept();
}

void Table::restore_persisted(uint64_t number, checkpoint::Partition partition,
                              const checkpoint::Chain& chain, const TableState& state, bool waiting_keys) {
  Operation operation(parts_);
  checkpoints();
  restore_checkpoint(parts_, number, partition, chain, state, waiting_keys);
}

bool Table::should_persist() const {
  Operation operation(parts_, Operation::Uses::kNoRows);
  if (checkpoints().has_pending()) return false;
  const TierStack& tiers = parts_.store->tiers();
  uint64_t rows = 0;
  uint64_t capacity_rows = 0;
  for (uint32_t t = 0; t < tiers.durable_tier(0); ++t) {
    rows += parts_.store->rows(t);
    capacity_rows += tiers.capacity_rows(t);
  }
  return rows >= capacity_rows;
}

bool Table::is_pool_short() const {
  Operation operation(parts_, Operation::Uses::kNoRows);
  return !checkpoints().has_pending() && parts_.store->tiers().is_pool_short();
}

bool Table::awaits_restore() const {
  Operation operation(parts_, Operation::Uses::kNoRows);
  return checkpoints().awaits_restore();
}

void Table::await_restore() {
  Operation operation(parts_);
  checkpoints();
  embstore::await_restore(parts_);
}

void Table::discard_persisted() {
  Operation operation(parts_);
  if (!checkpoints().awaits_restore()) {
    throw Error(ErrorKind::kInvalidArgument,
                parts_.name + ": holds nothing of an earlier run that could be discarded");
  }
  Standstill standstill(parts_);
  give_up_checkpoints(parts_);
}

std::vector<int64_t> Table::keys_in(KeyRange range) const {
  std::vector<int64_t> keys;
  {
    Operation operation(parts_);
    Standstill standstill(parts_);
    keys = keys_with_row(parts_, range);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

ExportedRows Table::export_rows(OnDamage on_damage) const {
  Operation operation(parts_);
  Standstill standstill(parts_);
  std::vector<int64_t> keys = keys_with_row(parts_, {});
  std::sort(keys.begin(), keys.end());
  return embstore::export_rows(parts_, keys, on_damage);
}

ExportedRows Table::export_rows(std::span<const int64_t> keys, OnDamage on_damage) const {
  Operation operation(parts_);
  Standstill standstill(parts_);
  HasRow has_row(*parts_.store);
  std::vector<int64_t> held;
  std::copy_if(keys.begin(), keys.end(), std::back_inserter(held), std::ref(has_row));
  return embstore::export_rows(parts_, held, on_damage);
}

std::vector<int64_t> Table::find_damaged() const {
  Operation operation(parts_);
  Standstill standstill(parts_);
  return embstore::find_damaged_rows(parts_);
}

uint64_t Table::drop(std::span<const int64_t> keys) {
  const SaveTurn turn(parts_);
  Operation operation(parts_);
  Standstill standstill(parts_);
  const uint64_t dropped = embstore::drop_rows(parts_, keys);
  parts_.store->tiers().compact();
  return dropped;
}

std::unique_ptr<TableSave> Table::prepare_save(checkpoint::Writer& file, const EvictionRule& eviction) {
  raise_kept_error();
  return std::make_unique<TableSave>(parts_, &file, eviction);
}

uint64_t Table::evict(const EvictionRule& eviction) {
  raise_kept_error();
  return TableSave(parts_, nullptr, eviction).evict_alone();
}

SavedTable Table::save(checkpoint::Writer& file, const EvictionRule& eviction, bool waiting_keys,
                       OnDamage on_damage) {
  const std::unique_ptr<TableSave> save = prepare_save(file, eviction);
  save->begin(waiting_keys);
  return save->write(on_damage);
}

void Table::restore(checkpoint::Partition partition, const checkpoint::Chain& chain, const TableState& state,
                    bool waiting_keys) {
  checkpoint::restore_table(parts_, partition, chain, state, waiting_keys);
}

void Table::save_succeeded(uint64_t number) {
  Operation operation(parts_);
  const ApplyGate::Alone gate(parts_.gate);
  if (parts_.spans.save_succeeded(number)) parts_.removed_keys.save_succeeded();
}

}  // namespace embstore
