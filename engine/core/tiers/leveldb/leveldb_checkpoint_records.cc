#include "tiers/leveldb/leveldb_checkpoint_records.h"

#include <algorithm>
#include <cstring>

#include "platform/crc32c.h"

namespace embstore {
namespace {

constexpr char kDeadPrefix = 'd';
constexpr char kTablePrefix = 't';

constexpr size_t kPlaceBytes = sizeof(int64_t) + sizeof(Slot);
constexpr uint64_t kPlacesARecord = uint64_t{1} << 16;

struct CheckpointValue {
  uint64_t number;
  CheckpointId id;
  uint64_t sequence_end;
  uint64_t rows;
  uint64_t dead;
  uint32_t reserved;
  uint32_t crc;  // of the key and what is before it
};
static_assert(sizeof(CheckpointValue) == 56);

template <class Number>
void append_number(std::string& text, Number number) {  // big-endian
  for (int shift = 8 * static_cast<int>(sizeof(number)) - 8; shift >= 0; shift -= 8) {
    text.push_back(static_cast<char>(number >> shift));
  }
}

std::string key_prefix(char prefix, uint32_t table) {
  std::string key(1, prefix);
  append_number(key, table);
  return key;
}

std::string checkpoint_key(uint32_t table, uint64_t number) {
  std::string key = key_prefix(kLevelDbCheckpointPrefix, table);
  append_number(key, number);
  return key;
}

std::string dead_key(uint32_t table, uint64_t number, uint32_t part) {
  std::string key = key_prefix(kDeadPrefix, table);
  append_number(key, number);
  append_number(key, part);
  return key;
}

uint64_t number_in(std::string_view key) {
  uint64_t number = 0;
  constexpr size_t kOffset = 1 + sizeof(uint32_t);
  if (key.size() >= kOffset + sizeof(number)) std::memcpy(&number, key.data() + kOffset, sizeof(number));
  return __builtin_bswap64(number);
}

uint32_t parts_of(uint64_t dead) {
  return static_cast<uint32_t>((dead + kPlacesARecord - 1) / kPlacesARecord);
}

uint32_t crc_of(std::string_view key, const void* value, size_t bytes) {
  return crc32c(value, bytes, crc32c(key.data(), key.size()));
}

void append_crc(std::string_view key, std::string& value) {
  const uint32_t crc = crc_of(key, value.data(), value.size());
  value.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
}

bool has_crc(std::string_view key, std::string_view value) {
  if (value.size() < sizeof(uint32_t)) return false;
  uint32_t crc = 0;
  std::memcpy(&crc, value.data() + value.size() - sizeof(crc), sizeof(crc));
  return crc == crc_of(key, value.data(), value.size() - sizeof(crc));
}

}  // namespace

void LevelDbCheckpointRecords::put(const LevelDbCheckpoint& checkpoint, std::span<const Place> dead) {
  LevelDbDatabase::Batch batch = database_.make_batch();
  std::string value;
  for (uint32_t part = 0; part < parts_of(dead.size()); ++part) {
    value.assign(checkpoint.name.id.begin(), checkpoint.name.id.end());
    const std::span<const Place> rest = dead.subspan(part * kPlacesARecord);
    for (const Place& place : rest.first(std::min(rest.size(), size_t{kPlacesARecord}))) {
      value.append(reinterpret_cast<const char*>(&place.key), sizeof(place.key));
      value.append(reinterpret_cast<const char*>(&place.slot), sizeof(place.slot));
    }
    const std::string key = dead_key(table_, checkpoint.name.number, part);
    append_crc(key, value);
    database_.put(batch, key, value);
    database_.write(batch);
    database_.clear(batch);
  }
  const std::string key = checkpoint_key(table_, checkpoint.name.number);
  CheckpointValue is{.number = checkpoint.name.number,
                     .id = checkpoint.name.id,
                     .sequence_end = checkpoint.sequence_end,
                     .rows = checkpoint.rows,
                     .dead = checkpoint.dead,
                     .reserved = 0,
                     .crc = 0};
  is.crc = crc_of(key, &is, offsetof(CheckpointValue, crc));
  database_.put(batch, key, {reinterpret_cast<const char*>(&is), sizeof(is)});
  database_.write(batch);
}

LevelDbCheckpoint LevelDbCheckpointRecords::get(const CheckpointName& name) const {
  const std::string key = checkpoint_key(table_, name.number);
  const LevelDbDatabase::Value value = database_.get(key);
  if (value.data == nullptr) fail(name, "isn't there");
  CheckpointValue is;
  if (value.size != sizeof(is) || !has_crc(key, value.bytes()))
    fail(name, "is damaged: its checksum is wrong");
  std::memcpy(&is, value.data.get(), sizeof(is));
  if (is.id != name.id)
    fail(name, "is another one of that number: the database is of another time than the pool");
  return {name, is.sequence_end, is.rows, is.dead};
}

std::vector<Place> LevelDbCheckpointRecords::dead_places(const LevelDbCheckpoint& checkpoint) const {
  std::vector<Place> places;
  for (uint32_t part = 0; part < parts_of(checkpoint.dead); ++part) {
    const std::string key = dead_key(table_, checkpoint.name.number, part);
    const LevelDbDatabase::Value value = database_.get(key);
    const uint64_t count = std::min(checkpoint.dead - places.size(), kPlacesARecord);
    const size_t id_bytes = checkpoint.name.id.size();
    if (value.data == nullptr || value.size != id_bytes + count * kPlaceBytes + sizeof(uint32_t) ||
        !has_crc(key, value.bytes()) ||
        std::memcmp(value.data.get(), checkpoint.name.id.data(), id_bytes) != 0) {
      fail(checkpoint.name, "is damaged: part " + std::to_string(part) + " of its dead places isn't whole");
    }
    for (uint64_t i = 0; i < count; ++i) {
      const char* const at = value.data.get() + id_bytes + i * kPlaceBytes;
      Place place;
      std::memcpy(&place.key, at, sizeof(place.key));
      std::memcpy(&place.slot, at + sizeof(place.key), sizeof(place.slot));
      places.push_back(place);
    }
  }
  return places;
}

void LevelDbCheckpointRecords::remove(const LevelDbCheckpoint& checkpoint) {
  LevelDbDatabase::Batch batch = database_.make_batch();
  database_.remove(batch, checkpoint_key(table_, checkpoint.name.number));
  for (uint32_t part = 0; part < parts_of(checkpoint.dead); ++part) {
    database_.remove(batch, dead_key(table_, checkpoint.name.number, part));
  }
  database_.write(batch);
}

void LevelDbCheckpointRecords::remove_all_but(std::span<const CheckpointName> kept) {
  LevelDbDatabase::Batch batch = database_.make_batch();
  bool any = false;
  for (const char prefix : {kLevelDbCheckpointPrefix, kDeadPrefix}) {
    database_.scan(key_prefix(prefix, table_), [&](std::string_view key, std::string_view) {
      const auto is_of_key = [&](const CheckpointName& name) { return name.number == number_in(key); };
      if (std::any_of(kept.begin(), kept.end(), is_of_key)) return;
      database_.remove(batch, key);
      any = true;
    });
  }
  if (any) database_.write(batch);
}

void LevelDbCheckpointRecords::fail(const CheckpointName& name, const std::string& what) const {
  database_.fail("checkpoint " + std::to_string(name.number) + " of table '" + table_name_ + "' " + what);
}

std::string LevelDbTableRecord::key_of(const std::string& table_name) { return kTablePrefix + table_name; }

std::string LevelDbTableRecord::bytes(const std::string& table_name) const {
  std::string value(reinterpret_cast<const char*>(&number), sizeof(number));
  value += optimizer;
  append_crc(key_of(table_name), value);
  return value;
}

std::optional<LevelDbTableRecord> LevelDbTableRecord::of(const std::string& table_name,
                                                         std::string_view value) {
  if (value.size() < 2 * sizeof(uint32_t) || !has_crc(key_of(table_name), value)) return std::nullopt;
  LevelDbTableRecord record;
  std::memcpy(&record.number, value.data(), sizeof(record.number));
  record.optimizer = value.substr(sizeof(record.number), value.size() - 2 * sizeof(uint32_t));
  return record;
}

}  // namespace embstore
