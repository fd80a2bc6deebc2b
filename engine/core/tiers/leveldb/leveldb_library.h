// The functions of LevelDB's C interface that the engine calls, as a table that is filled when the first
// LevelDB tier is made: so the engine can be imported on a machine without the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace embstore {

// An owning pointer to a C object, and the function that destroys it.
template <class Object>
struct LevelDbDestroy {
  void (*destroy)(Object*);
  void operator()(Object* object) const { destroy(object); }
};
template <class Object>
using LevelDbOwned = std::unique_ptr<Object, LevelDbDestroy<Object>>;

// Signatures as in leveldb/c.h. A function that fails sets *error to a message, to be freed by free_text().
struct LevelDbLibrary {
  struct Database;
  struct Options;
  struct ReadOptions;
  struct WriteOptions;
  struct WriteBatch;
  struct FilterPolicy;
  struct Cache;

  static constexpr int kNoCompression = 0;

  Database* (*open)(const Options*, const char* path, char** error);
  void (*close)(Database*);
  void (*destroy_db)(const Options*, const char* path, char** error);
  void (*free_text)(char*);  // leveldb_free: frees a value or an error; null is allowed

  void (*write)(Database*, const WriteOptions*, WriteBatch*, char** error);
  char* (*get)(Database*, const ReadOptions*, const char* key, size_t key_bytes, size_t* value_bytes,
               char** error);

  WriteBatch* (*writebatch_create)();
  void (*writebatch_destroy)(WriteBatch*);
  void (*writebatch_clear)(WriteBatch*);
  void (*writebatch_put)(WriteBatch*, const char* key, size_t key_bytes, const char* value,
                         size_t value_bytes);
  void (*writebatch_delete)(WriteBatch*, const char* key, size_t key_bytes);
  void (*writebatch_append)(WriteBatch* to, const WriteBatch* from);

  Options* (*options_create)();
  void (*options_destroy)(Options*);
  void (*options_set_create_if_missing)(Options*, uint8_t);
  void (*options_set_error_if_exists)(Options*, uint8_t);
  void (*options_set_write_buffer_size)(Options*, size_t);
  void (*options_set_block_size)(Options*, size_t);
  void (*options_set_max_file_size)(Options*, size_t);
  void (*options_set_compression)(Options*, int);
  void (*options_set_filter_policy)(Options*, FilterPolicy*);
  void (*options_set_cache)(Options*, Cache*);

  FilterPolicy* (*filterpolicy_create_bloom)(int bits_per_key);
  void (*filterpolicy_destroy)(FilterPolicy*);
  Cache* (*cache_create_lru)(size_t size_bytes);
  void (*cache_destroy)(Cache*);

  ReadOptions* (*readoptions_create)();
  void (*readoptions_destroy)(ReadOptions*);
  void (*readoptions_set_verify_checksums)(ReadOptions*, uint8_t);
  WriteOptions* (*writeoptions_create)();
  void (*writeoptions_destroy)(WriteOptions*);
};

// Loads the library at the first call. Throws Error(kMissingLibrary), or Error(kForked) if the parent process
// had loaded it before it forked this one.
const LevelDbLibrary& leveldb_library();

}  // namespace embstore
