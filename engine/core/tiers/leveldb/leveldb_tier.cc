#include "tiers/leveldb/leveldb_tier.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "platform/crc32c.h"
#include "tiers/leveldb/leveldb_open_options.h"

namespace embstore {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "records are written as they lie in memory");

constexpr size_t kErasuresABatch = size_t{1} << 16;
constexpr size_t kRowsAScan = size_t{1} << 10;

// --- The key and the first bytes of the record that says what the database holds.

constexpr std::string_view kFormatKey = "format";
constexpr std::array<char, 8> kMagic = {'E', 'M', 'B', 'S', 'T', 'L', 'D', 'B'};
constexpr uint32_t kFormatVersion = 1;

// --- The key of a row's record: 'r', the row's key with its sign flipped, the slot; big-endian, so that
// LevelDB's order is the keys' order.

constexpr char kRowPrefix = 'r';
constexpr size_t kRecordKeyBytes = 1 + sizeof(int64_t) + sizeof(Slot);
using RecordKey = std::array<char, kRecordKeyBytes>;

RecordKey record_key(const Place& place) {
  const uint64_t key = __builtin_bswap64(static_cast<uint64_t>(place.key) ^ (uint64_t{1} << 63));
  const uint32_t slot = __builtin_bswap32(place.slot);
  RecordKey record;
  record[0] = kRowPrefix;
  std::memcpy(record.data() + 1, &key, sizeof(key));
  std::memcpy(record.data() + 1 + sizeof(key), &slot, sizeof(slot));
  return record;
}

std::optional<Place> place_of(std::string_view record) {
  if (record.size() != kRecordKeyBytes || record[0] != kRowPrefix) return std::nullopt;
  uint64_t key;
  uint32_t slot;
  std::memcpy(&key, record.data() + 1, sizeof(key));
  std::memcpy(&slot, record.data() + 1 + sizeof(key), sizeof(slot));
  return Place{static_cast<int64_t>(__builtin_bswap64(key) ^ (uint64_t{1} << 63)), __builtin_bswap32(slot)};
}

// --- The value of a row's record: the sequence number of its write, the header, the floats, the checksum.

constexpr size_t kHeaderOffset = sizeof(uint64_t);
constexpr size_t kFloatsOffset = kHeaderOffset + sizeof(RowHeader);

// What LevelDB leaves of a database that it couldn't finish making.
bool is_unfinished(const fs::path& file) {
  const std::string name = file.filename().string();
  return name == "LOCK" || name == "LOG" || name == "LOG.old" || name.starts_with("MANIFEST-") ||
         name.ends_with(".dbtmp");
}

}  // namespace

struct LevelDbTier::FormatRecord {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t dim;
  uint32_t slot_count;
  uint32_t kept;  // 1: the files are to stay when the tier closes
  uint32_t reserved;
  uint32_t crc;

  uint32_t computed_crc() const { return crc32c(this, offsetof(FormatRecord, crc)); }
};

struct LevelDbTier::Handles {
  LevelDbOpenOptions open_options;
  Owned<LevelDbLibrary::ReadOptions> read_options;
  Owned<LevelDbLibrary::ReadOptions> scan_options;
  Owned<LevelDbLibrary::WriteOptions> write_options;

  Handles(const LevelDbLibrary& calls, const LevelDbOptions& options)
      : open_options(calls, options),
        read_options(calls.readoptions_create(), {calls.readoptions_destroy}),
        scan_options(calls.readoptions_create(), {calls.readoptions_destroy}),
        write_options(calls.writeoptions_create(), {calls.writeoptions_destroy}) {
    // Records carry a checksum of their own: a block's would cost a pass over the block for every row.
    calls.readoptions_set_verify_checksums(read_options.get(), 0);
    calls.readoptions_set_verify_checksums(scan_options.get(), 0);
    calls.readoptions_set_fill_cache(scan_options.get(), 0);
    calls.writeoptions_set_sync(write_options.get(), options.sync_writes ? 1 : 0);
  }
};

LevelDbTier::LevelDbTier(const RowLayout& layout, std::string path, const LevelDbOptions& options)
    : calls_(leveldb_library()),
      layout_(layout),
      path_(std::move(path)),
      options_(options),
      value_bytes_(kFloatsOffset + layout.row_bytes() + sizeof(uint32_t)),
      handles_(std::make_unique<Handles>(calls_, options)) {
  try {
    options_.reopen ? reopen() : start_empty();
  } catch (...) {
    close_database();
    throw;
  }
}

LevelDbTier::~LevelDbTier() {
  if (options_.keep_files) {
    try {
      drain();
    } catch (const Error&) {
      // Erased rows come back when the database is reopened. Who must know calls drain() first.
    }
  }
  close_database();
  if (!options_.keep_files) {
    char* error = nullptr;
    calls_.destroy_db(handles_->open_options.handle.get(), path_.c_str(), &error);
    calls_.free_text(error);  // what can't be removed stays; the next tier at this path removes it
  }
}

void LevelDbTier::write(const RowBatch& rows, std::span<Slot> slots) {
  if (rows.empty()) return;
  const size_t crc_offset = value_bytes_ - sizeof(uint32_t);
  std::vector<char> value(value_bytes_);

  const std::lock_guard lock(write_mutex_);
  const Owned<LevelDbLibrary::WriteBatch> batch = make_batch();
  if (const uint64_t end = next_sequence_ + rows.size(); end > kSlots) {
    reused_places_.store(end, std::memory_order_release);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t sequence = next_sequence_++;
    slots[i] = static_cast<Slot>(sequence % kSlots);
    std::memcpy(value.data(), &sequence, sizeof(sequence));
    std::memcpy(value.data() + kHeaderOffset, &rows.header(i), sizeof(RowHeader));
    std::memcpy(value.data() + kFloatsOffset, rows.row(i), layout_.row_bytes());
    const uint32_t crc = crc32c(value.data(), crc_offset);
    std::memcpy(value.data() + crc_offset, &crc, sizeof(crc));
    const RecordKey key = record_key({rows.header(i).key, slots[i]});
    calls_.writebatch_put(batch.get(), key.data(), key.size(), value.data(), value.size());
  }
  delete_erased_then(batch.get());
  rows_ += rows.size();
}

void LevelDbTier::read_rows(std::span<const Place> places, RowPart, RowBatch& rows,
                            std::vector<DamagedRow>&) const {
  rows.resize(places.size());
  // Neighbours in this order share LevelDB's blocks.
  std::vector<uint32_t> order(places.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return places[a].key < places[b].key; });
  for (const uint32_t i : order) {
    const RecordKey key = record_key(places[i]);
    if (const std::optional<Value> value = get({key.data(), key.size()})) {
      decode(places[i], {value->data.get(), value->size}, rows.header(i), rows.row(i));
    } else {
      rows.header(i) = RowHeader{};
      rows.header(i).key = ~places[i].key;
    }
  }
}

void LevelDbTier::erase(std::span<const Place> places) {
  {
    const std::lock_guard lock(mutex_);
    erased_.insert(erased_.end(), places.begin(), places.end());
  }
  rows_ -= places.size();
}

// Where rows only leave, no write comes that would see to it.
void LevelDbTier::compact() {
  constexpr uint64_t kMany = uint64_t{1} << 16;
  if (waiting_erasures() >= kMany) drain();
}

void LevelDbTier::drain() {
  const std::lock_guard lock(write_mutex_);
  delete_erased_then(nullptr);
}

uint64_t LevelDbTier::waiting_erasures() const {
  const std::lock_guard lock(mutex_);
  return erased_.size();
}

TierStats LevelDbTier::stats() const {
  uint64_t file_bytes = 0;
  std::error_code ignored;  // files come and go meanwhile
  for (fs::directory_iterator file(path_, ignored), end; !ignored && file != end; file.increment(ignored)) {
    std::error_code gone;
    const uintmax_t bytes = file->file_size(gone);
    if (!gone) file_bytes += bytes;
  }
  return TierStats{
      .name = "LEVELDB",
      .rows = rows_.load(),
      .row_bytes = layout_.row_bytes(),
      .address = 0,
      .mapped_bytes = file_bytes,
      .path = path_,
      .is_pmem = std::nullopt,
  };
}

// --- Opening and closing.

void LevelDbTier::start_empty() {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::exists(status) && !fs::is_directory(status)) fail("is a file; give a directory");
  if (has_database()) {
    open_database(false);
    if (read_format().kept != 0) {
      fail("holds rows that were kept; reopen them, or remove the directory");
    }
    close_database();
    char* message = nullptr;
    calls_.destroy_db(handles_->open_options.handle.get(), path_.c_str(), &message);
    check(message, "can't remove the rows that an earlier process left");
  } else if (fs::is_directory(status)) {
    for (fs::directory_iterator file(path_, error), end; !error && file != end; file.increment(error)) {
      if (!is_unfinished(file->path())) {
        fail("holds " + file->path().filename().string() +
             ", which is not LevelDB's; give a directory that is empty or isn't there");
      }
    }
    if (error) fail("can't be listed: " + error.message());
  }
  open_database(true);
  write_format();
}

bool LevelDbTier::has_database() const {
  std::error_code ignored;  // LevelDB then says what's wrong
  return fs::exists(fs::path(path_) / "CURRENT", ignored);
}

void LevelDbTier::reopen() {
  if (!has_database()) fail("holds no LevelDB database to reopen");
  open_database(false);
  const FormatRecord record = read_format();
  const auto dim = static_cast<uint32_t>(layout_.dim());
  const auto slot_count = static_cast<uint32_t>(layout_.slot_count());
  if (record.dim != dim || record.slot_count != slot_count) {
    fail("holds rows of dim " + std::to_string(record.dim) + " with " + std::to_string(record.slot_count) +
         " optimizer slots, not of dim " + std::to_string(dim) + " with " + std::to_string(slot_count));
  }
  drop_older_records();
  write_format();
}

LevelDbTier::FormatRecord LevelDbTier::read_format() const {
  static_assert(sizeof(FormatRecord) == 32);
  FormatRecord record{};
  const std::optional<Value> value = get(kFormatKey);
  // Whatever the version, the magic and the version come first.
  constexpr size_t kVersionEnd = offsetof(FormatRecord, version) + sizeof(record.version);
  if (value && value->size >= kVersionEnd) std::memcpy(&record, value->data.get(), kVersionEnd);
  if (record.magic != kMagic) fail("is a LevelDB database of something else; give another directory");
  if (record.version != kFormatVersion) {
    fail("has format version " + std::to_string(record.version) + "; this program reads version " +
         std::to_string(kFormatVersion));
  }
  if (value->size == sizeof(record)) std::memcpy(&record, value->data.get(), sizeof(record));
  if (value->size != sizeof(record) || record.crc != record.computed_crc()) {
    fail("its format record is damaged");
  }
  return record;
}

void LevelDbTier::write_format() {
  FormatRecord record{.magic = kMagic,
                      .version = kFormatVersion,
                      .dim = static_cast<uint32_t>(layout_.dim()),
                      .slot_count = static_cast<uint32_t>(layout_.slot_count()),
                      .kept = options_.keep_files ? 1u : 0u,
                      .reserved = 0,
                      .crc = 0};
  record.crc = record.computed_crc();
  const Owned<LevelDbLibrary::WriteBatch> batch = make_batch();
  calls_.writebatch_put(batch.get(), kFormatKey.data(), kFormatKey.size(),
                        reinterpret_cast<const char*>(&record), sizeof(record));
  write_batch(batch.get());
}

// A process that died may have left the record of a row that it had written anew since.
void LevelDbTier::drop_older_records() {
  std::vector<Place> older;
  std::optional<Place> newest;
  uint64_t newest_sequence = 0;
  Scan all(*this);
  RowBatch rows(layout_);
  std::vector<Place> places;
  std::vector<uint64_t> sequences;
  while (all.next(kRowsAScan, rows, places, &sequences)) {
    for (size_t i = 0; i < places.size(); ++i) {
      next_sequence_ = std::max(next_sequence_, sequences[i] + 1);
      if (!newest || newest->key != places[i].key) {
        newest = places[i];
        newest_sequence = sequences[i];
        ++rows_;
      } else if (sequences[i] > newest_sequence) {
        older.push_back(std::exchange(*newest, places[i]));
        newest_sequence = sequences[i];
      } else {
        older.push_back(places[i]);
      }
    }
  }
  erased_ = std::move(older);
  drain();
}

void LevelDbTier::open_database(bool make) {
  calls_.options_set_create_if_missing(handles_->open_options.handle.get(), make ? 1 : 0);
  calls_.options_set_error_if_exists(handles_->open_options.handle.get(), make ? 1 : 0);
  char* error = nullptr;
  database_ = calls_.open(handles_->open_options.handle.get(), path_.c_str(), &error);
  check(error, "can't open it");
}

void LevelDbTier::close_database() noexcept {
  if (database_ != nullptr) calls_.close(std::exchange(database_, nullptr));
}

// --- Reading and writing.

void LevelDbTier::delete_erased_then(LevelDbLibrary::WriteBatch* puts) {
  std::vector<Place> erased;
  {
    const std::lock_guard lock(mutex_);
    erased.swap(erased_);
  }
  if (erased.empty() && puts == nullptr) return;
  size_t done = 0;
  try {
    const Owned<LevelDbLibrary::WriteBatch> batch = make_batch();
    do {
      const size_t end = std::min(done + kErasuresABatch, erased.size());
      for (size_t i = done; i < end; ++i) {
        const RecordKey key = record_key(erased[i]);
        calls_.writebatch_delete(batch.get(), key.data(), key.size());
      }
      if (end == erased.size() && puts != nullptr) calls_.writebatch_append(batch.get(), puts);
      write_batch(batch.get());
      calls_.writebatch_clear(batch.get());
      done = end;
    } while (done < erased.size());
  } catch (...) {
    const std::lock_guard lock(mutex_);
    erased_.insert(erased_.begin(), erased.begin() + static_cast<ptrdiff_t>(done), erased.end());
    throw;
  }
}

void LevelDbTier::write_batch(LevelDbLibrary::WriteBatch* batch) {
  char* error = nullptr;
  calls_.write(database_, handles_->write_options.get(), batch, &error);
  check(error, "can't write");
}

std::optional<LevelDbTier::Value> LevelDbTier::get(std::string_view key) const {
  char* error = nullptr;
  size_t size = 0;
  Owned<char> data(calls_.get(database_, handles_->read_options.get(), key.data(), key.size(), &size, &error),
                   {calls_.free_text});
  check(error, "can't read");
  if (data == nullptr) return std::nullopt;
  return Value{std::move(data), size};
}

LevelDbTier::Owned<LevelDbLibrary::WriteBatch> LevelDbTier::make_batch() const {
  return {calls_.writebatch_create(), {calls_.writebatch_destroy}};
}

uint64_t LevelDbTier::decode(const Place& place, std::string_view value, RowHeader& header,
                             float* floats) const {
  uint64_t sequence = 0;
  uint32_t crc = 0;
  bool whole = value.size() == value_bytes_;
  if (whole) {
    const size_t crc_offset = value_bytes_ - sizeof(crc);
    std::memcpy(&sequence, value.data(), sizeof(sequence));
    std::memcpy(&header, value.data() + kHeaderOffset, sizeof(header));
    std::memcpy(floats, value.data() + kFloatsOffset, layout_.row_bytes());
    std::memcpy(&crc, value.data() + crc_offset, sizeof(crc));
    whole =
        crc == crc32c(value.data(), crc_offset) && header.key == place.key && sequence % kSlots == place.slot;
  }
  if (!whole) fail("the row of key " + std::to_string(place.key) + " is damaged");
  return sequence;
}

void LevelDbTier::check(char* error, const char* what) const {
  if (error == nullptr) return;
  const std::string reason = error;
  calls_.free_text(error);
  // "lock FILE: already held by process", or by another one: "lock FILE: Resource temporarily ...".
  if (reason.find("lock " + path_) != std::string::npos) {
    fail("is in use by another variable; give each its own name or storage_path (" + reason + ")");
  }
  fail(std::string(what) + ": " + reason);
}

void LevelDbTier::fail(const std::string& what) const {
  throw Error(ErrorKind::kStorage, path_ + ": " + what);
}

// --- Scanning.

LevelDbTier::Scan::Scan(const LevelDbTier& tier)
    : tier_(tier),
      iterator_(tier.calls_.create_iterator(tier.database_, tier.handles_->scan_options.get()),
                {tier.calls_.iter_destroy}) {
  tier.calls_.iter_seek(iterator_.get(), &kRowPrefix, 1);
}

bool LevelDbTier::Scan::next(size_t max_rows, RowBatch& rows, std::vector<Place>& places,
                             std::vector<uint64_t>* sequences) {
  const LevelDbLibrary& calls = tier_.calls_;
  places.clear();
  if (sequences != nullptr) sequences->clear();
  rows.resize(max_rows);
  for (; places.size() < max_rows && calls.iter_valid(iterator_.get()) != 0;
       calls.iter_next(iterator_.get())) {
    size_t key_bytes = 0;
    const char* key = calls.iter_key(iterator_.get(), &key_bytes);
    const std::optional<Place> place = place_of({key, key_bytes});
    if (!place) tier_.fail("holds a record that isn't a row's");
    size_t value_bytes = 0;
    const char* value = calls.iter_value(iterator_.get(), &value_bytes);
    const size_t i = places.size();
    const uint64_t sequence = tier_.decode(*place, {value, value_bytes}, rows.header(i), rows.row(i));
    places.push_back(*place);
    if (sequences != nullptr) sequences->push_back(sequence);
  }
  char* error = nullptr;
  calls.iter_get_error(iterator_.get(), &error);
  tier_.check(error, "can't scan it");
  rows.resize(places.size());
  return !places.empty();
}

LevelDbTier::Scan LevelDbTier::scan() {
  drain();
  return Scan(*this);
}

}  // namespace embstore
