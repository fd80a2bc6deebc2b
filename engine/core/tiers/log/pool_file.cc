#include "tiers/log/pool_file.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "errors/error.h"
#include "files/file.h"
#include "memory/room.h"
#include "row/place.h"
#include "tiers/log/file_names.h"

namespace embstore::log {
namespace {

namespace fs = std::filesystem;

// An earlier version kept checkpoints in a file beside the rows.
void refuse_earlier(const std::string& path) {
  const std::string beside = fs::path(path).replace_extension(".checkpoints").string();
  if (exists(beside)) refuse(beside, kEarlierVersionRefusal);
}

// Creates a pool. The file gets its final name when its header is on the medium, so a file of that name is
// whole, or another program's.
std::unique_ptr<medium::PmemFile> make(const std::string& path, const TableIdentity& table, uint64_t records,
                                       const LibPmem& libpmem, files::FileCalls& calls) {
  // A file that isn't a pool's belongs to another program, and stays.
  if (exists(path)) {
    const FileHeader header = read_header(calls, path);
    if (kind_of(header, kRowsMagic) != HeaderKind::kOurs) check_header(path, header, kRowsMagic, table);
    files::remove_file(calls, path);
  }
  const std::string unfinished = path + std::string(kUnfinished);
  if (exists(unfinished)) files::remove_file(calls, unfinished);
  const RecordShape shape = shape_in_pool(table.layout);
  try {
    {
      medium::PmemFile rows(libpmem, unfinished, shape.file_bytes(records),
                            LibPmem::kFileCreate | LibPmem::kFileExcl);
      const FileHeader header =
          make_header(kRowsMagic, table, /*number=*/0, records, static_cast<uint32_t>(shape.stride));
      rows.write(0, &header, sizeof header);
      rows.drain_and_sync(0, kHeaderBytes);
    }
    files::File file(calls, unfinished, O_RDWR, {.for_the_medium = true});
    file.sync();
    file.rename_to(path);
  } catch (...) {
    calls.unlink(unfinished.c_str());
    throw;
  }
  files::sync_directory(calls, directory_of(path));
  return std::make_unique<medium::PmemFile>(libpmem, path);
}

std::unique_ptr<medium::PmemFile> open_kept(const std::string& path, const TableIdentity& table,
                                            uint64_t size_bytes, uint64_t records, const LibPmem& libpmem,
                                            files::FileCalls& calls) {
  const RecordShape shape = shape_in_pool(table.layout);
  const FileHeader header = read_extent_header(calls, path, table, /*number=*/0, shape.stride);
  const uint64_t file_bytes = fs::file_size(path);
  const uint64_t records_so_far = records_that_fit(table.layout, file_bytes);
  if (records_so_far < header.capacity) {
    refuse_needed(path, "is truncated: it has " + std::to_string(file_bytes) + " bytes of " +
                            std::to_string(shape.file_bytes(header.capacity)));
  }
  if (records < records_so_far) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: " + std::to_string(size_bytes) + " bytes are fewer than " + path +
                    " was made with: it has room for " + std::to_string(records_so_far) + " rows, not " +
                    std::to_string(records) + ", and never less");
  }
  // If an earlier extension was cut short, there may be no space behind the file's end: a store there would
  // end the process.
  if (records == records_so_far && taken_bytes(path) >= file_bytes) {
    return std::make_unique<medium::PmemFile>(libpmem, path);
  }
  std::unique_ptr<medium::PmemFile> longer;
  try {
    longer =
        std::make_unique<medium::PmemFile>(libpmem, path, shape.file_bytes(records), LibPmem::kFileCreate);
  } catch (...) {
    // libpmem extends the file before it allocates space.
    std::error_code ignored;
    fs::resize_file(path, file_bytes, ignored);
    throw;
  }
  files::File(calls, path, O_RDWR, {.for_the_medium = true}).sync();  // makes its length durable
  return longer;
}

}  // namespace

RecordShape shape_in_pool(const RowLayout& layout) { return {layout, kMediaLineBytes}; }

uint64_t records_that_fit(const RowLayout& layout, uint64_t file_bytes) {
  const uint64_t pages = file_bytes / medium::kBlockBytes * medium::kBlockBytes;
  if (pages <= kHeaderBytes) return 0;
  return std::min<uint64_t>((pages - kHeaderBytes) / shape_in_pool(layout).stride, RowRef::kMaxSlots);
}

std::unique_ptr<medium::PmemFile> open_pool_file(const std::string& path, const TableIdentity& table,
                                                 uint64_t size_bytes, bool is_needed, const LibPmem& libpmem,
                                                 files::FileCalls& calls) {
  const uint64_t records = records_that_fit(table.layout, size_bytes);
  if (records == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: " + std::to_string(size_bytes) + " bytes are too few for the pool " + path);
  }
  if (is_needed) return open_kept(path, table, size_bytes, records, libpmem, calls);
  refuse_earlier(path);
  return make(path, table, records, libpmem, calls);
}

}  // namespace embstore::log
