// The options with which a LevelDB database is opened, by the tier and by the benchmarks that compare with
// plain LevelDB.
#pragma once

#include <cstddef>

#include "tiers/leveldb/leveldb_library.h"

namespace embstore {

// bench/leveldb_options.cc measures the rates that the defaults were chosen by.
struct LevelDbOptions {
  size_t write_buffer_bytes = size_t{4} << 20;  // up to two are in memory
  size_t max_file_bytes = size_t{16} << 20;
  size_t block_bytes = size_t{4} << 10;
  size_t block_cache_bytes = size_t{8} << 20;  // for unmapped files; LevelDB maps the first 1000
  int bloom_bits_per_row = 10;                 // 0: none
};

// The objects that must live as long as the database is open.
struct LevelDbOpenOptions {
  LevelDbOpenOptions(const LevelDbLibrary& calls, const LevelDbOptions& options)
      : bloom(nullptr, {calls.filterpolicy_destroy}),
        cache(calls.cache_create_lru(options.block_cache_bytes), {calls.cache_destroy}),
        handle(calls.options_create(), {calls.options_destroy}) {
    if (options.bloom_bits_per_row > 0) {
      bloom.reset(calls.filterpolicy_create_bloom(options.bloom_bits_per_row));
      calls.options_set_filter_policy(handle.get(), bloom.get());
    }
    calls.options_set_cache(handle.get(), cache.get());
    calls.options_set_write_buffer_size(handle.get(), options.write_buffer_bytes);
    calls.options_set_max_file_size(handle.get(), options.max_file_bytes);
    calls.options_set_block_size(handle.get(), options.block_bytes);
    // Weights don't compress.
    calls.options_set_compression(handle.get(), LevelDbLibrary::kNoCompression);
  }

  LevelDbOwned<LevelDbLibrary::FilterPolicy> bloom;
  LevelDbOwned<LevelDbLibrary::Cache> cache;
  LevelDbOwned<LevelDbLibrary::Options> handle;
};

}  // namespace embstore
