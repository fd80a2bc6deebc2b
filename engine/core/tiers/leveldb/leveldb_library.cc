#include "tiers/leveldb/leveldb_library.h"

#include <atomic>

#include "errors/error.h"
#include "platform/process_local.h"
#include "platform/shared_library.h"

namespace embstore {

const LevelDbLibrary& leveldb_library() {
  static constexpr auto load = [] {
    const SharedLibrary library("libleveldb.so.1d", "libleveldb1d");
    LevelDbLibrary loaded{};
    library.load(loaded.open, "leveldb_open");
    library.load(loaded.close, "leveldb_close");
    library.load(loaded.destroy_db, "leveldb_destroy_db");
    library.load(loaded.free_text, "leveldb_free");
    library.load(loaded.write, "leveldb_write");
    library.load(loaded.get, "leveldb_get");
    library.load(loaded.writebatch_create, "leveldb_writebatch_create");
    library.load(loaded.writebatch_destroy, "leveldb_writebatch_destroy");
    library.load(loaded.writebatch_clear, "leveldb_writebatch_clear");
    library.load(loaded.writebatch_put, "leveldb_writebatch_put");
    library.load(loaded.writebatch_delete, "leveldb_writebatch_delete");
    library.load(loaded.writebatch_append, "leveldb_writebatch_append");
    library.load(loaded.options_create, "leveldb_options_create");
    library.load(loaded.options_destroy, "leveldb_options_destroy");
    library.load(loaded.options_set_create_if_missing, "leveldb_options_set_create_if_missing");
    library.load(loaded.options_set_error_if_exists, "leveldb_options_set_error_if_exists");
    library.load(loaded.options_set_write_buffer_size, "leveldb_options_set_write_buffer_size");
    library.load(loaded.options_set_block_size, "leveldb_options_set_block_size");
    library.load(loaded.options_set_max_file_size, "leveldb_options_set_max_file_size");
    library.load(loaded.options_set_compression, "leveldb_options_set_compression");
    library.load(loaded.options_set_filter_policy, "leveldb_options_set_filter_policy");
    library.load(loaded.options_set_cache, "leveldb_options_set_cache");
    library.load(loaded.filterpolicy_create_bloom, "leveldb_filterpolicy_create_bloom");
    library.load(loaded.filterpolicy_destroy, "leveldb_filterpolicy_destroy");
    library.load(loaded.cache_create_lru, "leveldb_cache_create_lru");
    library.load(loaded.cache_destroy, "leveldb_cache_destroy");
    library.load(loaded.readoptions_create, "leveldb_readoptions_create");
    library.load(loaded.readoptions_destroy, "leveldb_readoptions_destroy");
    library.load(loaded.readoptions_set_verify_checksums, "leveldb_readoptions_set_verify_checksums");
    library.load(loaded.writeoptions_create, "leveldb_writeoptions_create");
    library.load(loaded.writeoptions_destroy, "leveldb_writeoptions_destroy");
    return loaded;
  };
  struct Loaded : LevelDbLibrary {
    Loaded() : LevelDbLibrary(load()) {}
  };
  static constinit std::atomic<ForkGeneration> loaded_in{0};
  const ForkGeneration earlier = loaded_in.load(std::memory_order_relaxed);
  if (earlier != 0 && inherited(earlier)) {
    // LevelDB's thread, which writes and merges files, is one per process and isn't in this one; nor can the
    // library be made to start another, so a database would hang at its first full buffer.
    throw Error(
        ErrorKind::kForked,
        "LevelDB was in use in the process that this one was forked from, and can't be used here; start "
        "workers by spawn, or use a storage type with SSDHASH");
  }
  const LevelDbLibrary& calls = ProcessLocal<Loaded>::get();
  loaded_in.store(fork_generation(), std::memory_order_relaxed);
  return calls;
}

}  // namespace embstore
