// The two files of a pool: made, grown, and taken up again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "files/file_calls.h"
#include "memory/libpmem.h"
#include "row/row_layout.h"
#include "tiers/pool/durable_file.h"
#include "tiers/pool/pool_lock.h"

namespace embstore::pool {

// What a pool is made for, and of what size it is to be.
struct PoolSpecification {
  std::string path;  // of the files, without their endings
  RowLayout layout;
  std::string table_name;
  std::string optimizer;
  uint64_t size_bytes;  // of both files together, at most
};

struct PoolFiles {
  std::unique_ptr<PoolLock> lock;  // given up last
  std::unique_ptr<DurableFile> rows;
  std::unique_ptr<DurableFile> checkpoints;
  uint64_t slots;
};

std::string rows_path(const std::string& path);
std::string checkpoints_path(const std::string& path);
std::string lock_path(const std::string& path);  // that file stays

// How many slots fit into files of so many bytes together.
uint64_t slots_that_fit(const RowLayout& layout, uint64_t size_bytes);

// Throws as PoolTier's constructor does.
PoolFiles open_pool_files(const PoolSpecification& wanted, const LibPmem& libpmem, files::FileCalls& calls);

}  // namespace embstore::pool
