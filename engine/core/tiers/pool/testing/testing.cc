#include "testing.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "threads/mutex.h"

namespace embstore::pool::testing {

namespace {

uint64_t bits_of(int64_t key, int64_t version) {
  return static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15ULL ^
         static_cast<uint64_t>(version) * 0x632be59bd9b4e019ULL;
}

}  // namespace

void fill_row(RowBatch& rows, size_t i, int64_t key, int64_t version) {
  const uint64_t bits = bits_of(key, version);
  rows.header(i) = {.key = key,
                    .frequency = bits >> 32,
                    .version = version,
                    .served = bits % 1000,
                    .stamp = (bits >> 8) + 1,
                    .save_span = bits & 0xffff};
  for (size_t f = 0; f < rows.row_floats(); ++f) {
    rows.row(i)[f] = static_cast<float>((bits + f * 7919) % 16000000);
  }
}

int64_t checked_version(const RowBatch& rows, size_t i, int64_t key) {
  const RowHeader& header = rows.header(i);
  const uint64_t bits = bits_of(key, header.version);
  check(header.key == key,
        "row of key " + std::to_string(header.key) + " in place of " + std::to_string(key));
  check(header.frequency == bits >> 32 && header.served == bits % 1000 && header.stamp == (bits >> 8) + 1 &&
            header.save_span == (bits & 0xffff),
        "the header of key " + std::to_string(key) + " is torn");
  for (size_t f = 0; f < rows.row_floats(); ++f) {
    check(rows.row(i)[f] == static_cast<float>((bits + f * 7919) % 16000000),
          "the row of key " + std::to_string(key) + " is torn");
  }
  return header.version;
}

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

CheckpointId id_of(uint64_t number) {
  CheckpointId id{};
  std::memcpy(id.data(), &number, sizeof number);
  id[15] = 0xee;
  return id;
}

uint64_t size_for(const RowLayout& layout, uint64_t slots) { return shape_in_pool(layout).file_bytes(slots); }

std::vector<int64_t> keys_from(int64_t first, int64_t count) {
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < count; ++i) keys.push_back(first + i);
  return keys;
}

void flip(const std::string& file, uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const auto byte = static_cast<char>(stream.get() ^ 4);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
  check(stream.good(), file + " can't be changed");
}

std::string bytes_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  check(stream.good(), file + " can't be read");
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace embstore::pool::testing
