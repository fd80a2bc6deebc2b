// Opens, creates and extends the file of a pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "files/file_calls.h"
#include "memory/libpmem.h"
#include "tiers/log/identity.h"
#include "tiers/medium/pmem_file.h"

namespace embstore::log {

RecordShape shape_in_pool(const RowLayout& layout);
// Returns how many records fit into a file of `file_bytes` bytes.
uint64_t records_that_fit(const RowLayout& layout, uint64_t file_bytes);

// Opens the pool at `path`, of at most size_bytes. If is_needed, checkpoints have rows there; otherwise the
// pool is created anew. Throws, naming the file: Error(kStorage) if it's missing, damaged, or of another
// format; Error(kInvalidArgument) if it's another table's, or longer than size_bytes.
std::unique_ptr<medium::PmemFile> open_pool_file(const std::string& path, const TableIdentity& table,
                                                 uint64_t size_bytes, bool is_needed, const LibPmem& libpmem,
                                                 files::FileCalls& calls);

}  // namespace embstore::log
