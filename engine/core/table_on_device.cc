// Of a table with a tier in a GPU's memory: batches of ids there, and rows that are asked for ahead.
#include <algorithm>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "access/phase.h"
#include "errors/error.h"
#include "row/keys_by_partition.h"
#include "row/unique_ids.h"
#include "table.h"
#include "tiers/hbm/hbm_tier.h"
#include "update/device_changes.h"
#include "update/gathered_update.h"

namespace embstore {
namespace {

BatchPart part_of(size_t number, size_t partitions) {
  return {static_cast<uint32_t>(number), static_cast<uint32_t>(partitions)};
}

// The scope in which the tables of some batches, and their devices, stay.
class OperationsOn {
 public:
  template <class Batch>
  explicit OperationsOn(std::span<const Batch> batches) {
    for (const Batch& batch : batches) {
      for (const Table* table : batch.partitions) {
        operations_.emplace_back(table->parts(), Operation::Uses::kNoRows);
        static_cast<void>(table->device());
      }
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

// Calls visit(table, its ids, where they are in the batch) for each partition, in their order.
template <class AnyTable, class Visit>
void visit_partitions(std::span<AnyTable* const> partitions, std::span<const int64_t> ids, Visit visit) {
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

// Copies the rows of `from` in these positions to `to`, one after the other.
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

// Leaves out the ids, and their rows of `dim` gradients, where `kept` has 0.
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

// --- Look-ups

void Table::lookup_on_device(const IdsOnDevice& ids, gpu::DeviceAddress out, bool train) const {
  const Table* const only = this;
  const LookUpOnDevice batch{{&only, 1}, ids, out};
  lookup_on_device({&batch, 1}, train);
}

void Table::lookup_on_device(std::span<const LookUpOnDevice> batches, bool train) {
  const OperationsOn operations(batches);
  for (const LookUpOnDevice& batch : batches) {
    for (const Table* table : batch.partitions) table->raise_kept_error();
  }
  std::vector<const LookUpOnDevice*> of_device;
  std::vector<DeviceLookUp::Batch> put;
  for (const LookUpOnDevice& batch : batches) {
    std::optional<DeviceLookUp::Batch> one = batch_of_look_up(batch, train);
    if (!one) {
      look_up_by_host(batch, train);
      continue;
    }
    of_device.push_back(&batch);
    put.push_back(std::move(*one));
  }
  if (put.empty() || DeviceLookUp::try_put(put)) return;
  // One of them keeps the others from it, if there are several.
  for (size_t i = 0; i < put.size(); ++i) {
    if (put.size() == 1 || !DeviceLookUp::try_put({&put[i], 1})) look_up_by_host(*of_device[i], train);
  }
}

void Table::look_up_by_host(const LookUpOnDevice& batch, bool train) {
  const std::span<const Table* const> partitions = batch.partitions;
  const IdsOnDevice& ids = batch.ids;
  gpu::Device& device = partitions.front()->device();
  const auto dim = static_cast<size_t>(partitions.front()->dim());
  const std::vector<int64_t> on_host = copy_ids(device, ids);
  std::vector<float> rows(on_host.size() * dim);
  if (partitions.size() == 1) {
    partitions.front()->lookup(on_host, rows.data(), train);
  } else {
    std::vector<float> own_rows;
    visit_partitions(partitions, std::span<const int64_t>(on_host),
                     [&](const Table& table, std::span<const int64_t> own, auto positions) {
                       own_rows.resize(own.size() * dim);
                       table.lookup(own, own_rows.data(), train);
                       put_rows(own_rows.data(), positions, dim, rows.data());
                     });
  }
  if (ids.count == 0) return;
  device.copy_to_device(batch.out, rows.data(), rows.size() * sizeof(float), ids.stream);
  device.synchronise(ids.stream);  // no step that synchronise() could wait for
}

std::optional<DeviceLookUp::Batch> Table::batch_of_look_up(const LookUpOnDevice& batch, bool train) {
  if (batch.ids.count == 0) return std::nullopt;
  DeviceLookUp::Batch on_device{batch.ids, batch.out, {}};
  for (size_t p = 0; p < batch.partitions.size(); ++p) {
    const BatchPart part = part_of(p, batch.partitions.size());
    auto share = batch.partitions[p]->share_of_look_up(part, batch.ids.count, train);
    if (!share) return std::nullopt;
    on_device.shares.push_back(std::move(*share));
  }
  return on_device;
}

// Nothing where a look-up had better not promise to wait for nothing.
std::optional<DeviceLookUp::Share> Table::share_of_look_up(const BatchPart& part, uint32_t ids,
                                                           bool train) const {
  if (train) {
    parts_.mover->turns().looked_up();
  } else if (!parts_.mover->has_room_in_log()) {
    return std::nullopt;
  }
  std::optional<uint64_t> first_stamp;
  if (!train) first_stamp = parts_.clock.begin_batch(ids);
  return DeviceLookUp::Share{.table = parts_.device_look_up.get(),
                             .part = part,
                             .first_stamp = first_stamp,
                             .read = [this, first_stamp](const DeviceLookUp::Missing& missing, float* rows) {
                               read_missing(missing, first_stamp, rows);
                             }};
}

// Called by a stream.
void Table::read_missing(const DeviceLookUp::Missing& missing, std::optional<uint64_t> first_stamp,
                         float* rows) const {
  const Epochs::Guard guard = parts_.epochs.enter();
  hits_.fetch_add(missing.hits, std::memory_order_relaxed);
  Phase(parts_.store->tiers().hbm()->meter())
      .count(Access::kLoad, missing.hits, static_cast<size_t>(parts_.layout.dim()) * sizeof(float));
  if (missing.ids.empty()) return;
  if (!first_stamp) return read_missing_to_train(missing.ids, rows);
  parts_.mover->log_served(look_up_to_serve(missing.ids, missing.positions, *first_stamp, rows));
}

// Each key is read once, however often it is missing.
void Table::read_missing_to_train(std::span<const int64_t> missing, float* rows) const {
  const auto dim = static_cast<size_t>(parts_.layout.dim());
  const UniqueIds unique(missing);
  if (unique.keys.size() == missing.size()) return look_up_to_train(missing, rows, {});
  std::vector<float> found(unique.keys.size() * dim);
  std::exception_ptr damaged;
  try {
    look_up_to_train(unique.keys, found.data(), unique.occurrences);
  } catch (const DamagedRowsError&) {
    damaged = std::current_exception();
  }
  unique.spread(found.data(), dim, rows);
  if (damaged != nullptr) std::rethrow_exception(damaged);
}

// --- Updates

void Table::apply_on_device(const IdsOnDevice& ids, gpu::DeviceAddress gradients,
                            std::optional<int64_t> global_step, const BatchConditions& conditions) {
  Table* const only = this;
  const ApplyOnDevice batch{{&only, 1}, ids, gradients, conditions};
  apply_on_device({&batch, 1}, global_step);
}

void Table::apply_on_device(std::span<const ApplyOnDevice> batches, std::optional<int64_t> global_step) {
  const OperationsOn operations(batches);
  for (const ApplyOnDevice& batch : batches) {
    for (const Table* table : batch.partitions) table->raise_kept_error();
  }
  std::exception_ptr first_error;
  const auto attempt = [&first_error](const auto& call) {
    try {
      call();
    } catch (...) {
      if (first_error == nullptr) first_error = std::current_exception();
    }
  };
  std::vector<const ApplyOnDevice*> of_device;
  std::vector<DeviceApply::Batch> put;
  for (const ApplyOnDevice& batch : batches) {
    attempt([&] {
      std::optional<DeviceApply::Batch> one = batch_of_apply(batch, global_step);
      if (!one) return apply_by_host(batch, global_step);
      put.push_back(std::move(*one));
      of_device.push_back(&batch);
    });
  }
  if (!put.empty() && !DeviceApply::try_put(put)) {
    // One of them keeps the others from it, if there are several.
    for (size_t i = 0; i < put.size(); ++i) {
      attempt([&] {
        if (put.size() != 1 && DeviceApply::try_put({&put[i], 1})) return;
        put[i].shares.clear();  // and what they claimed
        apply_by_host(*of_device[i], global_step);
      });
    }
  }
  if (first_error != nullptr) std::rethrow_exception(first_error);
}

void Table::apply_by_host(const ApplyOnDevice& batch, std::optional<int64_t> global_step) {
  const std::span<Table* const> partitions = batch.partitions;
  const IdsOnDevice& ids = batch.ids;
  const BatchConditions& conditions = batch.conditions;
  gpu::Device& device = partitions.front()->device();
  const auto dim = static_cast<size_t>(partitions.front()->dim());
  if (conditions.refused) {
    int64_t refused = 0;
    device.copy_to_host(&refused, conditions.refused, sizeof(refused), ids.stream);
    conditions.check(refused);
  }
  std::vector<int64_t> on_host = copy_ids(device, ids);
  std::vector<float> rows(on_host.size() * dim);
  if (!rows.empty())
    device.copy_to_host(rows.data(), batch.gradients, rows.size() * sizeof(float), ids.stream);
  if (conditions.kept && ids.count != 0) {
    std::vector<int64_t> kept(ids.count);
    device.copy_to_host(kept.data(), conditions.kept, ids.count * sizeof(int64_t), ids.stream);
    keep_some(kept, dim, on_host, rows);
  }
  if (partitions.size() == 1) {
    return partitions.front()->apply_gradients(on_host, rows.data(), global_step);
  }
  std::deque<Operation> uses;  // of all tables, before the first gate is entered
  for (const Table* table : partitions) uses.emplace_back(table->parts_);
  std::deque<std::vector<float>> own_rows;  // which outlive the updates
  std::vector<std::unique_ptr<PreparedApply>> prepared;
  visit_partitions(partitions, std::span<const int64_t>(on_host),
                   [&](Table& table, std::span<const int64_t> own, auto positions) {
                     own_rows.emplace_back(own.size() * dim);
                     take_rows(rows.data(), positions, dim, own_rows.back().data());
                     prepared.push_back(table.prepare_apply(own, own_rows.back().data()));
                   });
  for (const auto& one : prepared) one->commit(global_step);
}

std::optional<DeviceApply::Batch> Table::batch_of_apply(const ApplyOnDevice& batch,
                                                        std::optional<int64_t> global_step) {
  if (batch.ids.count == 0) return std::nullopt;
  DeviceApply::Batch on_device{batch.ids, batch.gradients, batch.conditions, {}};
  for (size_t p = 0; p < batch.partitions.size(); ++p) {
    const BatchPart part = part_of(p, batch.partitions.size());
    auto share = batch.partitions[p]->share_of_apply(part, batch.ids.count, global_step);
    if (!share) return std::nullopt;
    on_device.shares.push_back(std::move(*share));
  }
  return on_device;
}

// Any of the batch's ids may be missing, and only the host can make room.
std::optional<StepClaims> Table::claim_for_step(uint32_t ids) {
  InclusiveCache* const cache = parts_.store->cache();
  PoolClaim places(cache);
  if (cache != nullptr && !places.try_add(ids)) {
    const Operation operation(parts_);  // steps in flight give back what they don't need
    parts_.mover->make_room_in_pool(ids);
    if (!places.try_add(ids)) return std::nullopt;
  }
  SlotAllocator& slots = parts_.store->tiers().first().slots();
  if (slots.try_claim(ids)) return StepClaims{SlotClaim(slots, ids), std::move(places)};
  const Operation operation(parts_);
  return StepClaims{parts_.mover->claim(ids), std::move(places)};
}

// By a step, in a function that a stream calls: of the rows that it misses, and of what the host keeps of others. Steps that change
// rows come one after the other, so nobody else brings rows.
class Table::StepUpdate final : public DeviceApply::PreparedRows {
 public:
  StepUpdate(Table& table, const UpdateTime& time, const DeviceApply::Missing& missing,
             const DeviceApply::Present& present, StepClaims& claims)
      : parts_(table.parts_),
        time_(time),
        guard_(parts_.epochs.enter()),
        present_rows_(present.count),
        changes_(*parts_.store, present.marked),
        claims_(claims) {
    if (missing.ids.empty()) return;
    gate_.emplace(parts_.gate);
    batch_ = GradientBatch::take_spare();
    batch_->group(missing.ids, missing.gradients, table.dim(), missing.occurrences);
    batch_->set_last_positions(missing.last_positions);
    update_.emplace(parts_.for_updates(), *batch_, *parts_.mover, parts_.reads, &claims);
    uint64_t new_rows = 0;
    if (!update_->prepare(new_rows)) throw table.store_full(new_rows);
  }
  ~StepUpdate() override { end(); }

  void commit() noexcept override {
    if (update_) {
      update_->commit(time_);
      end();
      parts_.mover->rows_came();
    }
    changes_.commit(claims_.places);
    Phase(parts_.store->tiers().hbm()->meter())
        .count(Access::kUpdate, present_rows_, parts_.layout.row_bytes());
  }

 private:
  void end() {
    update_.reset();
    gate_.reset();
    if (batch_ != nullptr) GradientBatch::recycle(std::move(batch_));
  }

  TableParts& parts_;
  const UpdateTime time_;
  const Epochs::Guard guard_;
  const uint64_t present_rows_;
  DeviceChanges changes_;
  StepClaims& claims_;
  std::optional<ApplyGate::Shared> gate_;
  std::unique_ptr<GradientBatch> batch_;
  std::optional<GatheredUpdate> update_;
};

std::optional<DeviceApply::Share> Table::share_of_apply(const BatchPart& part, uint32_t ids,
                                                        std::optional<int64_t> global_step) {
  const auto begin = [this, ids, global_step]() -> DeviceApply::Update {
    const ApplyGate::Shared gate(parts_.gate);  // nobody is alone: that would be a use of rows
    const UpdateTime time{begin_apply(global_step), parts_.clock.begin_batch(ids), parts_.spans.current()};
    return {.step = parts_.optimizer->step(time.context),
            .counted = {time.context.global_step, time.first_stamp, time.save_span},
            .prepare_rows = [this, time](const DeviceApply::Missing& missing,
                                         const DeviceApply::Present& present, StepClaims& claims) {
              return std::make_unique<StepUpdate>(*this, time, missing, present, claims);
            }};
  };
  std::optional<StepClaims> claims = claim_for_step(ids);
  if (!claims) return std::nullopt;
  return DeviceApply::Share{
      .table = parts_.device_apply.get(), .part = part, .claims = std::move(*claims), .begin = begin};
}

// --- Ahead

uint64_t Table::next_turn() {
  const Operation operation(parts_, Operation::Uses::kNoRows);
  device();
  return parts_.mover->turns().next();
}

void Table::prefetch(std::span<const int64_t> ids, uint64_t turn) {
  const Operation operation(parts_, Operation::Uses::kNoRows);
  device();
  if (!ids.empty()) parts_.mover->want(turn, {ids.begin(), ids.end()});
}

void Table::prefetch_on_device(const IdsOnDevice& ids, uint64_t turn, const BatchPart& part) {
  const Operation operation(parts_, Operation::Uses::kNoRows);  // the device stays
  gpu::Device& device = this->device();
  if (ids.count == 0) return;
  const auto take = [this, turn, part](std::span<const int64_t> keys) {
    std::vector<int64_t> own;
    own.reserve(keys.size() / part.count + 1);
    std::copy_if(keys.begin(), keys.end(), std::back_inserter(own),
                 [&part](int64_t key) { return part.has(key); });
    parts_.mover->want(turn, std::move(own));
  };
  if (parts_.device_wishes->try_put(ids, take)) return;
  take(copy_ids(device, ids));
}

void Table::forget_prefetched() {
  const Operation operation(parts_, Operation::Uses::kNoRows);
  device();
  parts_.mover->turns().skip_all();
}

}  // namespace embstore
