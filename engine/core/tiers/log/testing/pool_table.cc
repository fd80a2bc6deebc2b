#include "pool_table.h"

#include <algorithm>

#include "threads/mutex.h"

namespace embstore::log::testing {

Versions versions_of(const Index& index) {
  Versions versions;
  for (const auto& [key, entry] : index) versions.emplace(key, entry.version);
  return versions;
}

Pool::Pool(const std::string& where, const RowLayout& of, uint64_t slots, const LibPmem& calls,
           files::FileCalls& system)
    : path(where), layout(of), size_bytes(size_for(of, slots)), libpmem_calls(calls), file_calls(system) {
  reopen();
}

void Pool::reopen() {
  tier.reset();
  checkpoints.reset();
  index.clear();
  checkpoints.emplace(path + ".pool", identity(layout), file_calls);
  tier.emplace(path + ".pool", checkpoints->table(), size_bytes, checkpoints->any_found(), libpmem_calls,
               file_calls);
  checkpoints->take_up({&*tier});
}

void Pool::write(std::span<const int64_t> keys, int64_t version) {
  RowBatch rows(layout);
  rows.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) fill_row(rows, i, keys[i], version);
  std::vector<Slot> slots(keys.size());
  tier->write(rows, slots);
  check(std::is_sorted(slots.begin(), slots.end()), "a batch isn't written in the order of its slots");
  std::vector<Place> replaced;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto old = index.find(keys[i]);
    if (old != index.end()) replaced.push_back({keys[i], old->second.slot});
    index[keys[i]] = {slots[i], version};
  }
  tier->erase(replaced);
}

void Pool::write_one(int64_t key, int64_t version) {
  RowBatch rows(layout);
  rows.resize(1);
  fill_row(rows, 0, key, version);
  erase(std::vector{key});
  index[key] = {tier->write_claimed(rows.header(0), rows.row(0), /*is_live=*/true), version};
  tier->fence();
}

void Pool::erase(std::span<const int64_t> keys) {
  std::vector<Place> places;
  for (const int64_t key : keys) {
    const auto found = index.find(key);
    if (found == index.end()) continue;
    places.push_back({key, found->second.slot});
    index.erase(found);
  }
  tier->erase(places);
}

uint64_t Pool::checkpoint() {
  const uint64_t number = checkpoints->begin({});
  checkpoints->commit(number, id_of(number));
  return number;
}

void Pool::restore(uint64_t number, int threads) {
  Mutex mutex;
  index.clear();
  checkpoints->restore(
      number, threads, [&](size_t, std::span<const RowHeader> headers, std::span<const Slot> slots) {
        const MutexLock lock(mutex);
        for (size_t i = 0; i < slots.size(); ++i) {
          const bool is_new = index.emplace(headers[i].key, Entry{slots[i], headers[i].version}).second;
          check(is_new, "a checkpoint has two rows of key " + std::to_string(headers[i].key));
        }
      });
}

void Pool::check_all() const {
  check(tier->stats().rows == index.size(),
        "the pool counts " + std::to_string(tier->stats().rows) + " rows of " + std::to_string(index.size()));
  std::vector<Place> places;
  for (const auto& [key, entry] : index) places.push_back({key, entry.slot});
  RowBatch rows(layout);
  tier->read(places, rows);
  for (size_t i = 0; i < places.size(); ++i) {
    const int64_t key = places[i].key;
    check(checked_version(rows, i, key) == index.at(key).version,
          "key " + std::to_string(key) + " has another version");
  }
}

void Pool::expect_taken(uint64_t slots) const {
  const uint64_t taken = tier->slot_count() - tier->free_slots();
  check(taken == slots, std::to_string(taken) + " slots are taken, not " + std::to_string(slots));
}

TableIdentity identity(const RowLayout& layout) {
  return {.table_name = "var", .optimizer = "Adagrad", .layout = layout, .uuid = {}};
}

uint64_t size_for(const RowLayout& layout, uint64_t slots) { return shape_in_pool(layout).file_bytes(slots); }

}  // namespace embstore::log::testing
