// The file of a pool: opened, made, made longer.
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
// How many records fit into a file of so many bytes, which is so long if it is made for them.
uint64_t records_that_fit(const RowLayout& layout, uint64_t file_bytes);

// The pool at `path`, of size_bytes at most.
// is_needed: checkpoints have rows there. Otherwise the pool is made anew. Throws Error(kStorage): missing, damaged, of
// another format; Error(kInvalidArgument): of another table, or longer than size_bytes. Each names the file.
std::unique_ptr<medium::PmemFile> open_pool_file(const std::string& path, const TableIdentity& table,
                                                 uint64_t size_bytes, bool is_needed, const LibPmem& libpmem,
                                                 files::FileCalls& calls);

}  // namespace embstore::log
