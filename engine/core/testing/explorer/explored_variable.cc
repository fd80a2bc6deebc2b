#include "testing/explorer/explored_variable.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "gpu/buffers.h"
#include "keep/checkpoint/reader.h"
#include "row/key_partition.h"
#include "testing/check.h"
#include "testing/explorer/scheduler.h"
#include "tiers/hbm/hbm_tier.h"

namespace embstore::explorer {
namespace {

using gpu::emulated::Draws;

constexpr size_t kRowBytes = 4 * sizeof(float);

// A row's value is its key's initial value plus the number of its updates, so each float says which row it
// belongs to, and at which moment.
constexpr int64_t kMaxUpdates = 1000;
float initial_value(int64_t key) { return static_cast<float>((key + 1) * kMaxUpdates); }

// Draws whether batches cross the bus in one piece or in several.
TierSpec hbm(Draws& draws, uint64_t rows) {
  constexpr size_t kPieceBytes[] = {1, 200, HbmTier::kPieceBytes};
  TierSpec tier{"HBM", std::nullopt, rows * kRowBytes};
  tier.gpu.name = "emulated";
  tier.piece_bytes = kPieceBytes[draws.below(3)];
  return tier;
}

// The pool has room for all that a schedule's checkpoints keep.
TierSpec pool() {
  constexpr uint64_t kPlaces = PoolTier::kHeadroomSlots + 1024;
  return {"PMEM_POOL", std::nullopt, kPlaces * 256};
}

TierSpec files() {
  TierSpec files{"SSDHASH", std::nullopt, std::nullopt};
  files.ssd_hash.file_bytes = 32 << 10;
  files.ssd_hash.buffer_bytes = 128 << 10;
  return files;
}

// Draws the tiers of all partitions; each partition has its own files.
std::vector<TierSpec> some_tiers(Draws& draws) {
  const uint64_t rows = 1 + draws.below(kKeys - 2);
  const uint64_t rows_of_dram = 1 + draws.below(3);
  const TierSpec dram{"DRAM", std::nullopt, rows_of_dram * kRowBytes};
  switch (draws.below(8)) {
    case 0:
    case 1: return {hbm(draws, kKeys + 1)};
    case 2: return {hbm(draws, rows), dram, files()};
    case 3:
    case 4: return {hbm(draws, rows), dram, pool()};
    default: return {hbm(draws, rows), {"DRAM", std::nullopt, 64 * kRowBytes}};
  }
}

TableSpec spec_of(Draws& draws) {
  std::vector<float> defaults;
  for (int64_t key = 0; key < kKeys; ++key) defaults.insert(defaults.end(), kDim, initial_value(key));
  return {.name = "explored",
          .dim = kDim,
          .default_values = std::move(defaults),
          .optimizer = "SGD",
          .optimizer_params = {{"learning_rate", -1.0}},
          .tiers = some_tiers(draws),
          .cache_strategy = draws.one_in(2) ? CacheStrategy::kLfu : CacheStrategy::kLru};
}

// Checks that the host's ranks, which may lag, are never too high.
void check_ranks(const Table& table) {
  const HbmTier& hbm = *table.parts().store->tiers().hbm();
  RowBatch row(table.parts().layout);
  for (Slot slot = 0; slot < hbm.first_never_taken(); ++slot) {
    if (!hbm.ranks().is_filled(slot)) continue;
    const Place place{hbm.key(slot), slot};
    hbm.read({&place, 1}, row);
    const RowHeader& header = row.header(0);
    const Rank known = hbm.ranks().rank(slot, CacheStrategy::kLfu);
    check(known.count <= header.frequency + header.served && known.stamp <= header.stamp,
          "a row is known to rank higher than it does");
  }
}

}  // namespace

ExploredVariable::ExploredVariable(Draws& draws, ExploredDevice& of, const std::string& path) : device(of) {
  const size_t count = draws.one_in(3) ? 2 : 1;
  const TableSpec spec = spec_of(draws);
  table = std::make_unique<Variable>(count, [&](size_t number) {
    TableSpec& own = specs.emplace_back(spec);
    own.partition_count = count;
    TierSpec& last = own.tiers.back();
    if (last.kind == "SSDHASH" || last.kind == "PMEM_POOL") last.path = path + "." + std::to_string(number);
    return std::make_unique<Table>(own);
  });
}

std::vector<int64_t> ExploredVariable::some_ids(Draws& draws) {
  std::vector<int64_t> ids(1 + draws.below(kMaxIds));
  for (int64_t& id : ids) id = static_cast<int64_t>(draws.below(kKeys));
  return ids;
}

void ExploredVariable::note_asked(const std::vector<int64_t>& ids, const Variable::Turns& turns) {
  for (size_t p = 0; p < turns.size(); ++p) {
    std::vector<int64_t> own;
    for (const int64_t id : ids) {
      if (partition_of(id, turns.size()) == p) own.push_back(id);
    }
    if (!own.empty()) asked_for[{table->partition(p).parts().mover.get(), turns[p]}] = own;
  }
}

void ExploredVariable::train_first(Draws& draws) {
  const std::vector<float> gradients(kMaxIds * kDim, 1.0f);
  for (uint64_t left = draws.below(4); left != 0; --left) {
    const std::vector<int64_t> ids = some_ids(draws);
    const size_t number = begin_apply(ids, next_step);
    table->apply_gradients(ids, gradients.data(), next_step++);
    history.end(number);
  }
  if (draws.one_in(2)) table->drain();
}

size_t ExploredVariable::begin_apply(const std::vector<int64_t>& ids, int64_t step) {
  Operation apply{.kind = Operation::Kind::kApply, .name = "apply"};
  for (const int64_t id : ids) {
    ++apply.rows[id].count;
    apply.rows[id].version = step;
  }
  return history.begin(std::move(apply));
}

std::vector<size_t> ExploredVariable::begin_reads(const std::vector<int64_t>& ids, const std::string& name) {
  std::array<size_t, kKeys> occurrences{};
  size_t most = 0;
  for (const int64_t id : ids) most = std::max(most, ++occurrences[static_cast<size_t>(id)]);
  std::vector<size_t> numbers(most);
  for (size_t& number : numbers) number = history.begin({.kind = Operation::Kind::kRead, .name = name});
  return numbers;
}
void ExploredVariable::saw_reads(const std::vector<size_t>& numbers, const std::vector<int64_t>& ids,
                                 const float* rows) {
  std::array<size_t, kKeys> occurrences{};
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t number = numbers[occurrences[static_cast<size_t>(ids[i])]++];
    history.at(number).rows[ids[i]].count = updates_of(ids[i], rows + i * kDim);
  }
}
void ExploredVariable::end_reads(const std::vector<size_t>& numbers, const std::vector<int64_t>& ids,
                                 const float* rows) {
  saw_reads(numbers, ids, rows);
  for (const size_t number : numbers) history.end(number);
}

int64_t ExploredVariable::updates_of(int64_t key, const float* row) const {
  const float updates = row[0] - initial_value(key);
  Scheduler::instance().note(
      static_cast<uint64_t>(static_cast<int64_t>(std::isfinite(updates) ? updates : -1)));
  bool is_whole =
      std::isfinite(updates) && updates >= 0 && updates < kMaxUpdates && updates == std::floor(updates);
  for (int d = 1; d < kDim; ++d) is_whole = is_whole && row[d] == row[0];
  if (!is_whole) {
    std::string text = "the row of key " + std::to_string(key) + " is none that it had:";
    for (int d = 0; d < kDim; ++d) text += " " + std::to_string(row[d]);
    fail(text + "\n" + history.described(key));
  }
  return static_cast<int64_t>(updates);
}

void ExploredVariable::saw_rows(size_t number, const ExportedRows& rows) {
  for (size_t i = 0; i < rows.keys.size(); ++i)
    saw_row(number, rows.keys[i], rows.frequencies[i], rows.versions[i], rows.values.data() + i * kDim);
}
void ExploredVariable::saw_rows(size_t number, const std::string& path) {
  checkpoint::Reader reader(path);
  while (const std::optional<checkpoint::Reader::Block> block = reader.next()) {
    if (block->kind != checkpoint::kRows) continue;
    for (size_t at = 0; at < block->payload.size(); at += reader.header().record_bytes) {
      checkpoint::RowRecord row;
      std::memcpy(&row, block->payload.data() + at, sizeof(row));
      float floats[kDim];
      std::memcpy(floats, block->payload.data() + at + sizeof(row), sizeof(floats));
      saw_row(number, row.key, static_cast<int64_t>(row.frequency), row.version, floats);
    }
  }
}
void ExploredVariable::saw_row(size_t number, int64_t key, int64_t frequency, int64_t version,
                               const float* floats) {
  const std::string& name = history.at(number).name;
  check(key >= 0 && key < kKeys, name + " has a key that nobody trained");
  const int64_t updates = updates_of(key, floats);
  if (frequency != updates) fail(name + " has key " + std::to_string(key) + " with another frequency");
  check(history.at(number).rows.try_emplace(key, RowState{updates, version}).second,
        name + " has a row twice");
}

void ExploredVariable::look_at_the_end(gpu::Stream stream) {
  Scheduler::instance().now_at("the end");
  table->drain();
  const std::vector<int64_t> keys = all_keys();
  std::vector<float> rows(keys.size() * kDim);
  const std::vector<int32_t> levels = table->tiers_of(keys);
  const std::vector<int64_t> frequencies = table->frequencies(keys);
  const std::vector<int64_t> versions = table->versions(keys);
  const size_t end = history.begin({.kind = Operation::Kind::kReadAll, .name = "the end"});
  const TableStats stats = table->stats();
  check(stats.background_error.empty(), "a move failed: " + stats.background_error);
  check(stats.hits + stats.misses == looked_up, "look-ups are counted otherwise");
  for (const TableStats::Level& level : stats.tiers) {
    check(level.rows <= level.capacity_rows, "a tier has more rows than its capacity");
  }
  // First on the device, whose mirror wasn't brought up to date before.
  gpu::DeviceArray<int64_t> ids(device, keys.size());
  gpu::DeviceArray<float> out(device, rows.size());
  ids.copy_from(keys.data(), keys.size(), stream);
  table->lookup_on_device({ids.address(), static_cast<uint32_t>(kKeys), stream}, out.address(),
                          LookUpPurpose::kTraining);
  out.copy_to(rows.data(), rows.size(), stream);
  for (const int64_t key : keys) {
    const auto i = static_cast<size_t>(key);
    const int64_t updates = updates_of(key, rows.data() + i * kDim);
    history.at(end).rows[key] = {updates, versions[i]};
    check(frequencies[i] == updates, "key " + std::to_string(key) + " has another frequency");
    check((levels[i] >= 0) == (updates != 0), "key " + std::to_string(key) + " has a row, or none");
  }
  history.end(end);
  const size_t on_host = history.begin({.kind = Operation::Kind::kRead, .name = "the end on the host"});
  table->lookup(keys, rows.data(), LookUpPurpose::kTraining);
  end_reads({on_host}, keys, rows.data());
  const size_t moment = history.begin({.kind = Operation::Kind::kMoment, .name = "the end, exported"});
  saw_rows(moment, table->export_rows());
  history.end(moment);
  for (const Table* one : table->all()) check_ranks(*one);
  for (const Table* one : table->all()) {
    uint32_t refused = 1;
    device.copy_to_host(&refused, one->parts().store->tiers().hbm()->mirror().refused().address,
                        sizeof(refused), stream);
    check(refused == 0, "the mirror was told of keys that it had, or of too many");
  }
}

void ExploredVariable::look_at_checkpoints() {
  if (persisted.empty()) return;
  Scheduler::instance().now_at("the next process");
  std::vector<std::unique_ptr<Table>> tables;
  for (TableSpec spec : specs) {
    spec.tiers.erase(spec.tiers.begin());
    tables.push_back(std::make_unique<Table>(spec));
    check(tables.back()->persisted().size() == persisted.size(), "checkpoints were lost");
  }
  for (auto one = persisted.rbegin(); one != persisted.rend(); ++one) {
    for (size_t p = 0; p < tables.size(); ++p) {
      tables[p]->restore_persisted(one->numbers[p], {.number = p, .count = tables.size()}, {one->paths},
                                   one->states[p], /*waiting_keys=*/false);
      saw_rows(one->moment, tables[p]->export_rows());
    }
  }
}

}  // namespace embstore::explorer
