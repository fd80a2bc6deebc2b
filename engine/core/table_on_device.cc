// Batches of ids in a GPU's memory, for tables with a tier there, and prefetching.
#include <algorithm>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "access/phase.h"
#include "errors/error.h"
#include "lookup/each_key_once.h"
#include "lookup/in_pieces.h"
#include "lookup/look_up_batches.h"
#include "row/finite_values.h"
#include "row/keys_by_partition.h"
#include "table.h"
#include "tiers/hbm/hbm_tier.h"
#include "update/batch_shares.h"
#include "update/device_changes.h"
#include "update/gathered_update.h"
#include "update/update_together.h"

namespace embstore {
namespace {

// The fewest missing ids of a step that a thread gets: for fewer it isn't worth waking a thread.
constexpr size_t kMinMissing = 1024;

// The scope in which several tables stay open. Throws Error(kInvalidArgument) for a table without a device.
class OperationsOn {
 public:
  void add(std::span<const Table* const> tables) {
    for (const Table* table : tables) {
      operations_.emplace_back(table->parts(), Operation::Uses::kNoRows);
      static_cast<void>(table->device());
    }
  }

 private:
  std::deque<Operation> operations_;
};

std::vector<int64_t> copy_ids(gpu::Device& device, const IdsOnDevice& ids) {
  std::vector<int64_t> on_host(ids.count);
  if (ids.count != 0) {
    device.copy_to_host(on_host.data(), ids.ids, ids.count * sizeof(int64_t), ids.stream);
  }
  return on_host;
}

// Returns the error that is being handled, which a batch of these tables threw, with the first table's name
// in front, unless it begins with the name of one of the tables or of their variable.
std::exception_ptr error_with_name(std::span<const Table* const> tables) {
  const auto is_named = [tables](std::string_view message) {
    const std::string_view name = message.substr(0, message.find(':'));  // "items" for items.part0 of 2
    return std::any_of(tables.begin(), tables.end(),
                       [name](const Table* table) { return table->name().starts_with(name); });
  };
  const std::string name = tables.front()->name() + ": ";
  try {
    throw;
  } catch (const DamagedRowsError& error) {
    if (is_named(error.first_reason())) return std::current_exception();
    return std::make_exception_ptr(DamagedRowsError(error.keys(), name + error.first_reason()));
  } catch (const Error& error) {
    if (is_named(error.what())) return std::current_exception();
    return std::make_exception_ptr(Error(error.kind(), name + error.what()));
  } catch (...) {
    return std::current_exception();
  }
}

// Makes the calls of all batches, and at the end throws the first error of any, which names a table.
class Attempts {
 public:
  template <class Batch, class Call>
  void make(const Batch& batch, const Call& call) {
    try {
      call();
    } catch (...) {
      if (first_error_ == nullptr) first_error_ = error_with_name(batch.partitions);
    }
  }
  void end() const {
    if (first_error_ != nullptr) std::rethrow_exception(first_error_);
  }

 private:
  std::exception_ptr first_error_;
};

// Adds a share of each table to the batch of a step. Returns nothing if one of the tables has no share.
template <class OfStep, class Batch, class ShareOf>
std::optional<OfStep> with_shares(OfStep of_step, const Batch& batch, const ShareOf& share_of) {
  if (batch.ids.count == 0) return std::nullopt;
  for (auto* const table : batch.partitions) {
    auto share = share_of(*table);
    if (!share) return std::nullopt;
    of_step.shares.push_back(std::move(*share));
  }
  return of_step;
}

// Puts batches on their stream as one step of `Kind`, except batches that the host does: those for which
// as_step(batch) returns nothing, and those whose tables refuse the step. A batch that fails stops no other.
template <class Kind, class Batch, class AsStep, class ByHost>
void put_together(std::span<const Batch> batches, const AsStep& as_step, const ByHost& by_host) {
  Attempts attempts;
  std::vector<const Batch*> of_device;
  std::vector<typename Kind::Batch> put;
  for (const Batch& batch : batches) {
    attempts.make(batch, [&] {
      std::optional<typename Kind::Batch> one = as_step(batch);
      if (!one) return by_host(batch);
      put.push_back(std::move(*one));
      of_device.push_back(&batch);
    });
  }
  bool is_put = put.empty();
  bool is_full = false;
  try {
    is_put = is_put || Kind::try_put(put);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kStoreFull) throw;
    is_full = true;
  }
  // Among several batches, one keeps all from the step; or the device has too little memory, and the error
  // has to say for which batch. So each batch is tried alone.
  for (size_t i = 0; i < put.size() && !is_put; ++i) {
    attempts.make(*of_device[i], [&] {
      if ((is_full || put.size() != 1) && Kind::try_put({&put[i], 1})) return;
      put[i].shares.clear();  // which also releases what they claimed
      by_host(*of_device[i]);
    });
  }
  attempts.end();
}

// Calls visit(table, its ids, their positions in the batch) for each partition, in order.
template <class AnyTable, class Visit>
void visit_partitions(std::span<AnyTable* const> partitions, std::span<const int64_t> ids,
                      const Visit& visit) {
  const KeysByPartition parts(ids, partitions.size());
  for (size_t p = 0; p < partitions.size(); ++p) {
    const std::span<const int64_t> positions(parts.positions.data() + parts.begins[p],
                                             parts.begins[p + 1] - parts.begins[p]);
    std::vector<int64_t> own;
    own.reserve(positions.size());
    for (const int64_t position : positions) own.push_back(ids[static_cast<size_t>(position)]);
    visit(*partitions[p], std::span<const int64_t>(own), positions);
  }
}

// Copies the rows at these positions of `from` to `to`, one after the other.
void take_rows(const float* from, std::span<const int64_t> positions, size_t dim, float* to) {
  for (const int64_t position : positions) {
    std::copy_n(from + static_cast<size_t>(position) * dim, dim, to);
    to += dim;
  }
}
void put_rows(const float* from, std::span<const int64_t> positions, size_t dim, float* to) {
  for (const int64_t position : positions) {
    std::copy_n(from, dim, to + static_cast<size_t>(position) * dim);
    from += dim;
  }
}

// Returns the gradients of each id, `dim` floats.
std::vector<float> copy_gradients(gpu::Device& device, const IdsOnDevice& ids,
                                  const gpu::GradientRows& gradients, size_t dim) {
  if (ids.count == 0) return {};
  std::vector<float> rows(gradients.count * dim);
  device.copy_to_host(rows.data(), gradients.floats, rows.size() * sizeof(float), ids.stream);
  if (!gradients.bags) return rows;
  const std::vector<int64_t> bags = copy_ids(device, {gradients.bags, ids.count, ids.stream});
  std::vector<float> of_ids(bags.size() * dim);
  take_rows(rows.data(), bags, dim, of_ids.data());
  return of_ids;
}

// Throws if a gradient (`dim` per id) is NaN or infinite. `kept`: 0 leaves the id out; empty: all are kept.
void check_finite(std::span<const float> gradients, size_t dim, std::span<const int64_t> kept) {
  for (size_t at = 0; at * dim < gradients.size(); ++at) {
    if (!kept.empty() && kept[at] == 0) continue;
    if (first_not_finite(gradients.subspan(at * dim, dim))) BatchConditions::refuse_not_finite(at);
  }
}

// Removes the ids, and their rows of `dim` gradients, for which `kept` has 0.
void keep_some(std::span<const int64_t> kept, size_t dim, std::vector<int64_t>& ids,
               std::vector<float>& gradients) {
  size_t to = 0;
  for (size_t from = 0; from < ids.size(); ++from) {
    if (kept[from] == 0) continue;
    ids[to] = ids[from];
    std::copy_n(gradients.begin() + static_cast<ptrdiff_t>(from * dim), dim,
                gradients.begin() + static_cast<ptrdiff_t>(to * dim));
    ++to;
  }
  ids.resize(to);
  gradients.resize(to * dim);
}

}  // namespace

gpu::Device& Table::device() const {
  const Operation operation(parts_, Operation::Uses::kNoRows);
  if (parts_.store->tiers().hbm() == nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                parts_.name + ": has no tier in a GPU's memory, so it takes ids in the host's memory alone");
  }
  return parts_.store->tiers().hbm()->device();
}

void Table::synchronise() const {
  const Operation operation(parts_);
  raise_kept_error();
}

void Table::raise_kept_errors(std::span<const Table* const> tables) {
  for (const Table* table : tables) table->raise_kept_error();
}

// --- Look-ups

void Table::lookup_on_device(const IdsOnDevice& ids, gpu::DeviceAddress out, LookUpPurpose purpose) const {
  const Table* const only = this;
  const LookUpOnDevice batch{{&only, 1}, ids, out};
  lookup_on_device({&batch, 1}, purpose);
}

void Table::lookup_on_device(std::span<const LookUpOnDevice> batches, LookUpPurpose purpose) {
  OperationsOn operations;
  for (const auto& batch : batches) operations.add(batch.partitions);
  put_together<DeviceLookUp>(
      batches, [purpose](const LookUpOnDevice& batch) { return as_step(batch, purpose); },
      [purpose](const LookUpOnDevice& batch) { look_up_by_host(batch, purpose); });
}

void Table::look_up_by_host(const LookUpOnDevice& batch, LookUpPurpose purpose) {
  const std::span<const Table* const> partitions = batch.partitions;
  const IdsOnDevice& ids = batch.ids;
  gpu::Device& device = partitions.front()->device();
  const auto dim = static_cast<size_t>(partitions.front()->dim());
  const std::vector<int64_t> on_host = copy_ids(device, ids);
  std::vector<float> rows(on_host.size() * dim);
  if (partitions.size() == 1) {
    partitions.front()->lookup(on_host, rows.data(), purpose);
  } else {
    std::vector<float> own_rows;
    visit_partitions(partitions, std::span<const int64_t>(on_host),
                     [&](const Table& table, std::span<const int64_t> own, auto positions) {
                       own_rows.resize(own.size() * dim);
                       table.lookup(own, own_rows.data(), purpose);
                       put_rows(own_rows.data(), positions, dim, rows.data());
                     });
  }
  if (ids.count == 0) return;
  device.copy_to_device(batch.out, rows.data(), rows.size() * sizeof(float), ids.stream);
  device.synchronise(ids.stream);  // it is no step, so synchronise() couldn't wait for it
}

std::optional<DeviceLookUp::Batch> Table::as_step(const LookUpOnDevice& batch, LookUpPurpose purpose) {
  raise_kept_errors(batch.partitions);
  return with_shares(DeviceLookUp::Batch{batch.ids, batch.out, {}}, batch,
                     [&](const Table& table) { return table.share_of_look_up(batch.ids.count, purpose); });
}

// Returns nothing if served accesses can't be counted soon enough.
std::optional<DeviceLookUp::Share> Table::share_of_look_up(uint32_t ids, LookUpPurpose purpose) const {
  std::optional<uint64_t> first_stamp;
  switch (purpose) {
    case LookUpPurpose::kServing:
      if (!make_room_in_log()) return std::nullopt;
      first_stamp = parts_.clock.begin_batch(ids);
      break;
    case LookUpPurpose::kTraining: parts_.mover->turns().note_looked_up(); break;
    case LookUpPurpose::kEvaluation: break;
  }
  return DeviceLookUp::Share{
      .table = parts_.device_look_up.get(),
      .first_stamp = first_stamp,
      .read = [this, purpose, first_stamp](const DeviceLookUp::Missing& missing, const RowsOut& rows) {
        read_missing(missing, purpose, first_stamp, rows);
      }};
}

bool Table::make_room_in_log() const {
  if (parts_.mover->has_room_in_log()) return true;
  {
    const Operation operation(parts_, Operation::Uses::kNoRows);
    if (parts_.mover->make_room_in_log_beside_steps()) return true;
  }
  const Operation operation(parts_);
  return parts_.mover->make_room_in_log();
}

// Called by a stream.
void Table::read_missing(const DeviceLookUp::Missing& missing, LookUpPurpose purpose,
                         std::optional<uint64_t> first_stamp, const RowsOut& rows) const {
  const Epochs::Guard guard = parts_.epochs.enter();
  hits_.fetch_add(missing.hits, std::memory_order_relaxed);
  Phase(parts_.store->tiers().hbm()->meter())
      .count(Access::kLoad, missing.hits, static_cast<size_t>(parts_.layout.dim()) * sizeof(float));
  if (missing.ids.empty()) return;
  LookUpBatches batches;
  const auto read = [&](std::span<const int64_t> keys, std::span<const uint32_t> occurrences,
                        std::span<const uint32_t> last_positions, const RowsOut& found) {
    const DeviceSteps::Function function({});  // every thread that shares the work needs one
    BatchPtr batch = first_stamp
                         ? look_up_to_serve(keys, last_positions, occurrences, *first_stamp, found)
                         : look_up_to_train(keys, occurrences, purpose == LookUpPurpose::kTraining, found);
    if (first_stamp) batch->order_by_shards();  // here, by several threads; counting would do it by one
    batches.add(std::move(batch));
  };
  const auto width = static_cast<size_t>(dim());
  const IdsOfBatch ids{missing.ids, missing.positions};
  read_in_pieces(missing.ids.size(), kMinMissing, [&](size_t first, size_t count) {
    const RowsOut out(rows.rows + first * width, {}, rows.left_at + first);
    std::fill_n(out.left_at, count, gpu::DeviceAddress{});
    read_each_key_once(ids.part(first, count), width, out, read);
  });
  std::vector<BatchPtr> read_batches = batches.take();
  if (!first_stamp) return parts_.reads.keep(std::move(read_batches));
  for (BatchPtr& batch : read_batches) parts_.mover->log_served(std::move(batch));
}

// --- Updates

void Table::apply_on_device(const IdsOnDevice& ids, gpu::DeviceAddress gradients,
                            std::optional<int64_t> global_step, const BatchConditions& conditions) {
  Table* const only = this;
  const ApplyOnDevice batch{{&only, 1}, ids, {gradients, ids.count}, conditions};
  apply_on_device({&batch, 1}, global_step);
}

void Table::apply_on_device(std::span<const ApplyOnDevice> batches, std::optional<int64_t> global_step) {
  OperationsOn operations;
  for (const auto& batch : batches) operations.add(batch.partitions);
  put_together<DeviceApply>(
      batches, [global_step](const ApplyOnDevice& batch) { return as_step(batch, global_step); },
      [global_step](const ApplyOnDevice& batch) { apply_by_host(batch, global_step); });
}

void Table::apply_by_host(const ApplyOnDevice& batch, std::optional<int64_t> global_step) {
  const std::span<Table* const> partitions = batch.partitions;
  const IdsOnDevice& ids = batch.ids;
  const BatchConditions& conditions = batch.conditions;
  gpu::Device& device = partitions.front()->device();
  const auto dim = static_cast<size_t>(partitions.front()->dim());
  const auto leave_out = [partitions] {
    for (Table* table : partitions) table->leave_out_apply();
  };
  std::vector<int64_t> on_host;
  std::vector<float> rows;
  try {
    if (conditions.refused) {
      int64_t refused = 0;
      device.copy_to_host(&refused, conditions.refused, sizeof(refused), ids.stream);
      conditions.check(refused);
    }
    if (conditions.left_out) {
      int64_t left_out = 0;
      device.copy_to_host(&left_out, conditions.left_out, sizeof(left_out), ids.stream);
      if (left_out != 0) return leave_out();
    }
    on_host = copy_ids(device, ids);
    rows = copy_gradients(device, ids, batch.gradients, dim);
    std::vector<int64_t> kept;
    if (conditions.kept && ids.count != 0) {
      kept.resize(ids.count);
      device.copy_to_host(kept.data(), conditions.kept, ids.count * sizeof(int64_t), ids.stream);
    }
    check_finite(rows, dim, kept);
    if (!kept.empty()) keep_some(kept, dim, on_host, rows);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInvalidArgument) leave_out();  // the apply is counted, as in a step
    throw;
  }
  if (partitions.size() == 1) {
    return partitions.front()->apply_gradients(on_host, rows.data(), global_step);
  }
  std::deque<Operation> uses;  // before the first gate is entered: a use comes before gates
  for (const Table* table : partitions) uses.emplace_back(table->parts_);
  std::deque<std::vector<float>> own_rows;  // must outlive the updates
  std::vector<std::unique_ptr<PreparedApply>> prepared;
  visit_partitions(partitions, std::span<const int64_t>(on_host),
                   [&](Table& table, std::span<const int64_t> own, auto positions) {
                     own_rows.emplace_back(own.size() * dim);
                     take_rows(rows.data(), positions, dim, own_rows.back().data());
                     prepared.push_back(table.prepare_apply(own, own_rows.back().data()));
                   });
  for (const auto& one : prepared) one->commit(global_step);
}

std::optional<DeviceApply::Batch> Table::as_step(const ApplyOnDevice& batch,
                                                 std::optional<int64_t> global_step) {
  raise_kept_errors(batch.partitions);
  return with_shares(
      DeviceApply::Batch{batch.ids, batch.gradients, batch.conditions, {}}, batch,
      [&](Table& table) { return std::optional(table.share_of_apply(batch.ids.count, global_step)); });
}

// Makes room for all ids of the batch, since any may be missing, and only the host can. The step itself
// claims the places of a pool.
StepClaims Table::make_room_for_step(uint32_t ids) {
  InclusiveCache* const cache = parts_.store->cache();
  if (cache != nullptr && cache->missing_places(ids) != 0) {
    const Operation operation(parts_);  // steps in flight give back spare places first
    parts_.mover->make_room_in_pool(ids);
  }
  SlotAllocator& slots = parts_.store->tiers().first().slots();
  if (slots.try_claim(ids)) return StepClaims{SlotClaim(slots, ids), PoolClaim(cache)};
  const Operation operation(parts_);
  return StepClaims{parts_.mover->claim(ids), PoolClaim(cache)};
}

namespace {

// Updates a share of the rows that a step misses. Runs in any thread: all of them are in the step's function.
class UpdateOfShare final : public BatchUpdate {
 public:
  UpdateOfShare(TableParts& table, const GradientBatch& share, UpdateReads& reads, StepClaims claims)
      : claims_(std::move(claims)),
        update_(std::in_place, table.for_updates(), share, *table.mover, reads, &claims_) {}

  bool prepare(uint64_t& new_rows) override {
    const DeviceSteps::Function function({});
    return update_->prepare(new_rows);
  }
  void commit(const UpdateTime& time) noexcept override {
    const DeviceSteps::Function function({});
    update_->commit(time);
    update_.reset();
  }

 private:
  StepClaims claims_;
  std::optional<GatheredUpdate> update_;
};

}  // namespace

// The update of one step, in a function that a stream calls: of the rows that the step misses, and of what
// the host keeps of the rows that it finds. Steps that change rows run one after the other, so no other
// thread brings rows.
class Table::StepUpdate final : public DeviceApply::PreparedRows {
 public:
  // `time` is complete when commit() is called.
  StepUpdate(Table& table, std::shared_ptr<const UpdateTime> time, const DeviceApply::Missing& missing,
             const DeviceApply::Present& present, StepClaims& claims)
      : parts_(table.parts_),
        time_(std::move(time)),
        guard_(parts_.epochs.enter()),
        present_rows_(present.count),
        changes_(*parts_.store, present.marked),
        claims_(claims) {
    if (missing.ids.empty()) return;
    reads_.emplace(parts_.reads);
    shares_.emplace(GradientBatch::Gradients{missing.ids, missing.gradients, parts_.layout.dim(),
                                             missing.occurrences, missing.last_positions},
                    BatchShares::worthwhile(missing.ids.size(), kMinMissing));
    // Doesn't enter the gate: an operation that holds it alone is also a use of rows, and no use is under way
    // beside a step. (And the emulated device calls this while its caller holds locks.)
    update_.emplace(*shares_, [this](const GradientBatch& share) {
      const MutexLock lock(claims_mutex_);
      return std::make_unique<UpdateOfShare>(parts_, share, *reads_, claims_.split(share.keys().size()));
    });
    uint64_t new_rows = 0;
    if (!update_->prepare(new_rows)) throw table.store_full_error(new_rows);
  }

  void commit() noexcept override {
    if (update_) {
      update_->commit(*time_);
      update_.reset();
      parts_.mover->note_rows_changed_without_wait();
    }
    changes_.commit(claims_.places);
    Phase(parts_.store->tiers().hbm()->meter())
        .count(Access::kUpdate, present_rows_, parts_.layout.row_bytes());
  }

 private:
  TableParts& parts_;
  const std::shared_ptr<const UpdateTime> time_;
  const Epochs::Guard guard_;
  const uint64_t present_rows_;
  DeviceChanges changes_;
  Mutex claims_mutex_;
  StepClaims& claims_;
  std::optional<BatchShares> shares_;
  std::optional<UpdateReads> reads_;
  std::optional<UpdateTogether> update_;
};

DeviceApply::Share Table::share_of_apply(uint32_t ids, std::optional<int64_t> global_step) {
  const auto begin = [this, ids, global_step]() -> DeviceApply::Update {
    const ApplyGate::Shared gate(parts_.gate);  // no operation holds it alone: that would be a use of rows
    const auto time = std::make_shared<UpdateTime>(
        UpdateTime{count_apply(global_step), parts_.clock.begin_batch(ids), parts_.spans.current()});
    return {.kind = parts_.optimizer->step(time->context),
            .counted = {time->context.global_step, time->first_stamp, time->save_span},
            .prepare_rows =
                [this, time](const DeviceApply::Missing& missing, const DeviceApply::Present& present,
                             StepClaims& claims) {
                  return std::make_unique<StepUpdate>(*this, time, missing, present, claims);
                },
            .begin =
                [this, time] {
                  begin_update(time->context);
                  return parts_.optimizer->step(time->context);
                }};
  };
  return {.table = parts_.device_apply.get(), .claims = make_room_for_step(ids), .begin = begin};
}

// --- Prefetching

uint64_t Table::next_turn() {
  const Operation operation(parts_, Operation::Uses::kNoRows);
  device();
  return parts_.mover->turns().next();
}

void Table::prefetch(std::span<const int64_t> ids, uint64_t turn) {
  const Operation operation(parts_, Operation::Uses::kNoRows);
  device();
  if (!ids.empty()) parts_.mover->prefetch(turn, {ids.begin(), ids.end()});
}

void Table::prefetch_on_device(const IdsOnDevice& ids, uint64_t turn) {
  Table* const only = this;
  prefetch_on_device({&only, 1}, ids, {&turn, 1});
}

void Table::prefetch_on_device(std::span<Table* const> partitions, const IdsOnDevice& ids,
                               std::span<const uint64_t> turns) {
  OperationsOn operations;
  operations.add(partitions);
  if (ids.count == 0) return;
  const auto take = [tables = std::vector<Table*>(partitions.begin(), partitions.end()),
                     table_turns =
                         std::vector<uint64_t>(turns.begin(), turns.end())](std::span<const int64_t> keys) {
    size_t number = 0;
    visit_partitions(std::span<Table* const>(tables), keys,
                     [&](const Table& table, std::span<const int64_t> own, auto) {
                       const uint64_t turn = table_turns[number++];
                       if (!own.empty()) table.parts_.mover->prefetch(turn, {own.begin(), own.end()});
                     });
  };
  DevicePrefetch::Batch batch{ids, {}, take};
  for (const Table* table : partitions) batch.shares.push_back({table->parts_.device_prefetch.get()});
  if (DevicePrefetch::try_put(batch)) return;
  take(copy_ids(partitions.front()->device(), ids));
}

void Table::forget_prefetched() {
  const Operation operation(parts_, Operation::Uses::kNoRows);
  device();
  parts_.mover->turns().skip_all();
}

}  // namespace embstore
