// A variable for tests: one table or several partitions, with each batch applied whole or not at all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "row/key_partition.h"
#include "row/keys_by_partition.h"
#include "table.h"
#include "testing/check.h"
#include "threads/mutex.h"

namespace embstore {

class Variable {
 public:
  // Calls make(number) for each partition.
  template <class Make>
  Variable(size_t partitions, Make make) {
    for (size_t number = 0; number < partitions; ++number) {
      tables_.push_back(make(number));
      pointers_.push_back(tables_.back().get());
    }
  }

  size_t partitions() const { return tables_.size(); }
  Table& partition(size_t number) const { return *tables_[number]; }
  std::span<Table* const> all() const { return pointers_; }
  TableParts& parts() const { return partition(0).parts(); }

  void lookup(std::span<const int64_t> ids, float* out, LookUpPurpose purpose) const {
    split(ids, [&](Table& table, std::span<const int64_t> own, std::span<const int64_t> at) {
      std::vector<float> rows(own.size() * dim());
      table.lookup(own, rows.data(), purpose);
      put_back(rows.data(), at, dim(), out);
    });
  }

  // A batch that all partitions have prepared.
  class Prepared {
   public:
    void commit(std::optional<int64_t> global_step) {
      for (const auto& one : prepared_) one->commit(global_step);
      prepared_.clear();
    }

   private:
    friend class Variable;
    std::optional<MutexLock> lock_;
    std::deque<Operation> uses_;
    std::vector<std::vector<float>> gradients_;
    std::vector<std::unique_ptr<Table::PreparedApply>> prepared_;
  };
  std::unique_ptr<Prepared> prepare_apply(std::span<const int64_t> ids, const float* gradients) {
    auto prepared = std::make_unique<Prepared>();
    if (partitions() > 1) prepared->lock_.emplace(whole_batches_);
    if (kUnderThreadSanitizer) {
      // The sanitizer reports a cycle between a gate and the steps of the next partition: it can't know that
      // no step has its turns while rows of the first partition are in use, as they are while its gate is
      // held.
      for (Table* table : pointers_) prepared->uses_.emplace_back(table->parts());
    }
    prepared->gradients_.reserve(partitions());
    split(ids, [&](Table& table, std::span<const int64_t> own, std::span<const int64_t> at) {
      std::vector<float>& table_gradients = prepared->gradients_.emplace_back();
      for (const int64_t position : at) {
        const float* const row = gradients + static_cast<size_t>(position) * dim();
        table_gradients.insert(table_gradients.end(), row, row + dim());
      }
      prepared->prepared_.push_back(table.prepare_apply(own, table_gradients.data()));
    });
    return prepared;
  }
  void apply_gradients(std::span<const int64_t> ids, const float* gradients,
                       std::optional<int64_t> global_step) {
    if (partitions() == 1) return partition(0).apply_gradients(ids, gradients, global_step);
    prepare_apply(ids, gradients)->commit(global_step);
  }

  void leave_out_apply() {
    for (Table* table : pointers_) table->leave_out_apply();
  }

  void lookup_on_device(const IdsOnDevice& ids, gpu::DeviceAddress out, LookUpPurpose purpose) const {
    const std::vector<const Table*> tables(pointers_.begin(), pointers_.end());
    const Table::LookUpOnDevice batch{tables, ids, out};
    Table::lookup_on_device({&batch, 1}, purpose);
  }
  void apply_on_device(const IdsOnDevice& ids, gpu::DeviceAddress gradients,
                       std::optional<int64_t> global_step, const BatchConditions& conditions = {}) {
    std::optional<MutexLock> lock;
    if (partitions() > 1) lock.emplace(whole_batches_);
    const Table::ApplyOnDevice batch{pointers_, ids, {gradients, ids.count}, conditions};
    Table::apply_on_device({&batch, 1}, global_step);
  }

  // One turn for each partition.
  using Turns = std::vector<uint64_t>;
  Turns next_turn() {
    Turns turns;
    for (Table* table : pointers_) turns.push_back(table->next_turn());
    return turns;
  }
  void prefetch(std::span<const int64_t> ids, const Turns& turns) {
    size_t p = 0;
    split(ids, [&](Table& table, std::span<const int64_t> own, auto) { table.prefetch(own, turns[p++]); });
  }
  void prefetch_on_device(const IdsOnDevice& ids, const Turns& turns) {
    Table::prefetch_on_device(pointers_, ids, turns);
  }
  void forget_prefetched() {
    for (Table* table : pointers_) table->forget_prefetched();
  }

  std::vector<int32_t> tiers_of(std::span<const int64_t> ids) const {
    return collect<int32_t>(ids,
                            [](Table& table, auto own, int32_t* values) { table.lookup_tier(own, values); });
  }
  std::vector<int64_t> frequencies(std::span<const int64_t> ids) const {
    return collect<int64_t>(ids,
                            [](Table& table, auto own, int64_t* values) { table.frequencies(own, values); });
  }
  std::vector<int64_t> versions(std::span<const int64_t> ids) const {
    return collect<int64_t>(ids,
                            [](Table& table, auto own, int64_t* values) { table.versions(own, values); });
  }

  uint64_t drop(std::span<const int64_t> keys) {
    uint64_t dropped = 0;
    split(keys, [&](Table& table, std::span<const int64_t> own, auto) { dropped += table.drop(own); });
    return dropped;
  }
  void drain() const {
    for (Table* table : pointers_) table->drain();
  }
  void synchronise() const {
    for (Table* table : pointers_) table->synchronise();
  }
  void close() {
    for (Table* table : pointers_) table->close();
  }
  int64_t apply_count() { return partition(0).apply_count(); }

  // Exports the rows of all partitions, between the same two batches.
  ExportedRows export_rows() {
    std::optional<MutexLock> lock;
    if (partitions() > 1) lock.emplace(whole_batches_);
    ExportedRows all = partition(0).export_rows();
    for (size_t p = 1; p < partitions(); ++p) {
      const ExportedRows one = partition(p).export_rows();
      append(all.keys, one.keys);
      append(all.values, one.values);
      append(all.frequencies, one.frequencies);
      append(all.versions, one.versions);
      for (size_t slot = 0; slot < all.slots.size(); ++slot) append(all.slots[slot], one.slots[slot]);
    }
    return in_order(all);
  }
  // Returns the sum over all partitions; the tiers of a partition follow those of the one before.
  TableStats stats() const {
    TableStats sum = partition(0).stats();
    for (size_t p = 1; p < partitions(); ++p) {
      const TableStats one = partition(p).stats();
      sum.hits += one.hits;
      sum.misses += one.misses;
      sum.without_row += one.without_row;
      sum.promotions += one.promotions;
      sum.demotions += one.demotions;
      sum.background_error += one.background_error;
      append(sum.tiers, one.tiers);
    }
    return sum;
  }

  // Held while a batch goes to several partitions, and by callers that must see whole batches.
  Mutex& whole_batches() { return whole_batches_; }

 private:
  size_t dim() const { return static_cast<size_t>(partition(0).dim()); }

  // Calls visit(table, its ids, their positions in `ids`) for each partition.
  template <class Visit>
  void split(std::span<const int64_t> ids, Visit visit) const {
    const KeysByPartition parts(ids, partitions());
    for (size_t p = 0; p < partitions(); ++p) {
      const std::span<const int64_t> at(parts.positions.data() + parts.begins[p],
                                        parts.begins[p + 1] - parts.begins[p]);
      std::vector<int64_t> own;
      for (const int64_t position : at) own.push_back(ids[static_cast<size_t>(position)]);
      visit(*tables_[p], std::span<const int64_t>(own), at);
    }
  }
  template <class T, class Query>
  std::vector<T> collect(std::span<const int64_t> ids, Query query) const {
    std::vector<T> all(ids.size());
    split(ids, [&](Table& table, std::span<const int64_t> own, std::span<const int64_t> at) {
      std::vector<T> values(own.size());
      query(table, own, values.data());
      put_back(values.data(), at, 1, all.data());
    });
    return all;
  }
  template <class T>
  static void put_back(const T* from, std::span<const int64_t> at, size_t width, T* to) {
    for (const int64_t position : at) {
      std::copy_n(from, width, to + static_cast<size_t>(position) * width);
      from += width;
    }
  }
  template <class T>
  static void append(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }
  ExportedRows in_order(const ExportedRows& rows) const {
    std::vector<int64_t> order(rows.keys.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::sort(order.begin(), order.end(), [&rows](int64_t a, int64_t b) {
      return rows.keys[static_cast<size_t>(a)] < rows.keys[static_cast<size_t>(b)];
    });
    const auto ordered = [&order]<class T>(const std::vector<T>& from, size_t width) {
      std::vector<T> to;
      for (const int64_t i : order) {
        const T* const first = from.data() + static_cast<size_t>(i) * width;
        to.insert(to.end(), first, first + width);
      }
      return to;
    };
    ExportedRows sorted{.keys = ordered(rows.keys, 1),
                        .values = ordered(rows.values, dim()),
                        .frequencies = ordered(rows.frequencies, 1),
                        .versions = ordered(rows.versions, 1),
                        .slots = {}};
    for (const auto& slot : rows.slots) sorted.slots.push_back(ordered(slot, dim()));
    return sorted;
  }

  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<Table*> pointers_;
  Mutex whole_batches_;
};

}  // namespace embstore
