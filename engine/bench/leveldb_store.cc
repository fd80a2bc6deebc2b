#include "bench/leveldb_store.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "errors/error.h"
#include "tiers/leveldb/leveldb_open_options.h"

namespace embstore {
namespace {

// Returns bytes that sort in the order of the keys.
uint64_t record_key(int64_t key) {
  static_assert(std::endian::native == std::endian::little);
  return __builtin_bswap64(static_cast<uint64_t>(key) ^ (uint64_t{1} << 63));
}

}  // namespace

struct LevelDbStore::Handles {
  Handles(const LevelDbLibrary& calls, const LevelDbOptions& options)
      : open_options(calls, options),
        read_options(calls.readoptions_create(), {calls.readoptions_destroy}),
        write_options(calls.writeoptions_create(), {calls.writeoptions_destroy}),
        batch(calls.writebatch_create(), {calls.writebatch_destroy}),
        database(nullptr, {calls.close}) {
    calls.options_set_create_if_missing(open_options.handle.get(), 1);
    calls.options_set_error_if_exists(open_options.handle.get(), 1);
  }

  LevelDbOpenOptions open_options;
  LevelDbOwned<LevelDbLibrary::ReadOptions> read_options;
  LevelDbOwned<LevelDbLibrary::WriteOptions> write_options;
  LevelDbOwned<LevelDbLibrary::WriteBatch> batch;
  LevelDbOwned<LevelDbLibrary::Database> database;  // closed before what it uses
};

LevelDbStore::LevelDbStore(std::string directory, size_t row_floats)
    : calls_(leveldb_library()),
      directory_(std::move(directory)),
      row_floats_(row_floats),
      handles_(std::make_unique<Handles>(calls_, LevelDbOptions{})) {
  char* error = nullptr;
  handles_->database.reset(calls_.open(handles_->open_options.handle.get(), directory_.c_str(), &error));
  check(error);
}

LevelDbStore::~LevelDbStore() { close(); }

void LevelDbStore::close() { handles_.reset(); }

void LevelDbStore::write(std::span<const int64_t> ids, const float* rows) {
  calls_.writebatch_clear(handles_->batch.get());
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t key = record_key(ids[i]);
    calls_.writebatch_put(handles_->batch.get(), reinterpret_cast<const char*>(&key), sizeof key,
                          reinterpret_cast<const char*>(rows + i * row_floats_), row_floats_ * sizeof(float));
  }
  char* error = nullptr;
  calls_.write(handles_->database.get(), handles_->write_options.get(), handles_->batch.get(), &error);
  check(error);
}

void LevelDbStore::read(std::span<const int64_t> ids, float* rows) const {
  std::vector<std::pair<int64_t, size_t>> order(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) order[i] = {ids[i], i};
  std::sort(order.begin(), order.end());
  for (const auto& [id, i] : order) {
    const uint64_t key = record_key(id);
    size_t bytes = 0;
    char* error = nullptr;
    const LevelDbOwned<char> value(
        calls_.get(handles_->database.get(), handles_->read_options.get(),
                   reinterpret_cast<const char*>(&key), sizeof key, &bytes, &error),
        {calls_.free_text});
    check(error);
    if (bytes != row_floats_ * sizeof(float)) fail("has no row of key " + std::to_string(id));
    std::memcpy(rows + i * row_floats_, value.get(), bytes);
  }
}

void LevelDbStore::check(char* error) const {
  if (error == nullptr) return;
  const std::string reason = error;
  calls_.free_text(error);
  fail(reason);
}

void LevelDbStore::fail(const std::string& what) const {
  throw Error(ErrorKind::kStorage, directory_ + ": " + what);
}

}  // namespace embstore
