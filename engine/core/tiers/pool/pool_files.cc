#include "tiers/pool/pool_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "files/file.h"
#include "tiers/pool/checkpoint_table.h"
#include "tiers/pool/pool_headers.h"

namespace embstore::pool {
namespace {

namespace fs = std::filesystem;

std::string unfinished(const std::string& path) { return path + ".new"; }

std::string directory_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return (parent.empty() ? fs::path(".") : parent).string();
}

bool exists(const std::string& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (code && status.type() != fs::file_type::not_found) {
    throw Error(ErrorKind::kStorage, path + ": can't be looked at: " + code.message());
  }
  return fs::exists(status);
}

Uuid draw_uuid() {
  std::random_device random;
  Uuid uuid;
  for (size_t i = 0; i < uuid.size(); i += sizeof(uint32_t)) {
    const uint32_t word = random();
    std::memcpy(uuid.data() + i, &word, sizeof word);
  }
  return uuid;
}

class PoolMaker {
 public:
  PoolMaker(const PoolSpecification& wanted, const LibPmem& libpmem, files::FileCalls& calls)
      : wanted_(wanted),
        rows_path_(rows_path(wanted.path)),
        checkpoints_path_(checkpoints_path(wanted.path)),
        directory_(directory_of(wanted.path)),
        shape_(wanted.layout),
        libpmem_(libpmem),
        calls_(calls) {}

  void remove_unfinished() {
    remove(unfinished(checkpoints_path_));
    remove(unfinished(rows_path_));
  }

  // The file of checkpoints is named last: a pool is there when it is.
  void make(uint64_t slots) {
    refuse_foreign_rows();
    const Uuid uuid = draw_uuid();
    try {
      make_rows(uuid, slots);
      make_checkpoints(uuid, slots, /*from=*/nullptr);
    } catch (...) {
      discard_unfinished();
      throw;
    }
    name(rows_path_);
    name(checkpoints_path_);
  }

  // Longer rows first: whichever file of checkpoints is there, the rows that it speaks of are.
  void grow(const CheckpointTable& table, const Uuid& uuid, uint64_t slots) {
    {
      const DurableFile longer(libpmem_, rows_path_, shape_.file_bytes(slots), LibPmem::kFileCreate);
    }
    sync(rows_path_);
    try {
      make_checkpoints(uuid, slots, &table);
    } catch (...) {
      discard_unfinished();
      throw;
    }
    name(checkpoints_path_);
  }

  std::unique_ptr<DurableFile> map(const std::string& path) const {
    std::error_code code;
    const uint64_t bytes = fs::file_size(path, code);
    if (code) throw Error(ErrorKind::kStorage, path + ": can't be looked at: " + code.message());
    if (bytes < kHeaderBytes) {
      throw Error(ErrorKind::kStorage, path + ": is truncated: shorter than its header");
    }
    return std::make_unique<DurableFile>(libpmem_, path);
  }

 private:
  void make_rows(const Uuid& uuid, uint64_t slots) {
    {
      DurableFile rows(libpmem_, unfinished(rows_path_), shape_.file_bytes(slots),
                       LibPmem::kFileCreate | LibPmem::kFileExcl);
      write_rows_header(rows, uuid);
    }
    sync(unfinished(rows_path_));
  }

  void make_checkpoints(const Uuid& uuid, uint64_t slots, const CheckpointTable* from) {
    {
      auto file = std::make_unique<DurableFile>(libpmem_, unfinished(checkpoints_path_),
                                                CheckpointsShape(slots).file_bytes(),
                                                LibPmem::kFileCreate | LibPmem::kFileExcl);
      write_checkpoints_header(*file, uuid, wanted_, slots);
      CheckpointTable table(std::move(file), slots);
      if (from != nullptr) from->copy_to(table);
    }
    sync(unfinished(checkpoints_path_));
  }

  // What isn't a pool's is somebody's, and stays.
  void refuse_foreign_rows() const {
    if (!exists(rows_path_) || has_rows_magic(*map(rows_path_))) return;
    throw Error(ErrorKind::kStorage, rows_path_ +
                                         ": isn't a file of a pool's rows; remove it, or choose "
                                         "another storage_path");
  }

  void sync(const std::string& path) { files::File(calls_, path, O_RDWR, {.for_the_medium = true}).sync(); }
  void name(const std::string& path) {
    if (calls_.rename(unfinished(path).c_str(), path.c_str()) != 0) {
      const int reason = errno;
      throw files::FileError(unfinished(path), "can't be renamed to " + path, reason);
    }
    files::sync_directory(calls_, directory_);
  }
  void remove(const std::string& path) {
    if (calls_.unlink(path.c_str()) == 0) return;
    const int reason = errno;
    if (reason != ENOENT) throw files::FileError(path, "can't be removed", reason);
  }
  // For their space; they would go when the pool is opened next.
  void discard_unfinished() {
    calls_.unlink(unfinished(checkpoints_path_).c_str());
    calls_.unlink(unfinished(rows_path_).c_str());
  }

  const PoolSpecification& wanted_;
  const std::string rows_path_;
  const std::string checkpoints_path_;
  const std::string directory_;
  const RecordShape shape_;
  const LibPmem& libpmem_;
  files::FileCalls& calls_;
};

}  // namespace

std::string rows_path(const std::string& path) { return path + ".pool"; }
std::string checkpoints_path(const std::string& path) { return path + ".checkpoints"; }
std::string lock_path(const std::string& path) { return path + ".pool.lock"; }

uint64_t slots_that_fit(const RowLayout& layout, uint64_t size_bytes) {
  const RecordShape shape(layout);
  const auto fits = [&](uint64_t slots) {
    return shape.file_bytes(slots) + CheckpointsShape(slots).file_bytes() <= size_bytes;
  };
  uint64_t fitting = 0;
  uint64_t too_many = std::min<uint64_t>(size_bytes / shape.stride, RowRef::kMaxSlots) + 1;
  while (too_many - fitting > 1) {
    const uint64_t middle = fitting + (too_many - fitting) / 2;
    (fits(middle) ? fitting : too_many) = middle;
  }
  return fitting;
}

PoolFiles open_pool_files(const PoolSpecification& wanted, const LibPmem& libpmem, files::FileCalls& calls) {
  const std::string checkpoints = checkpoints_path(wanted.path);
  const uint64_t slots = slots_that_fit(wanted.layout, wanted.size_bytes);
  if (slots == 0) {
    throw Error(ErrorKind::kInvalidArgument, "storage_size: " + std::to_string(wanted.size_bytes) +
                                                 " bytes are too few for the pool " + rows_path(wanted.path));
  }
  PoolFiles files;
  files.lock = std::make_unique<PoolLock>(lock_path(wanted.path), rows_path(wanted.path));
  PoolMaker maker(wanted, libpmem, calls);
  maker.remove_unfinished();
  if (!exists(checkpoints)) maker.make(slots);

  files.checkpoints = maker.map(checkpoints);
  CheckpointsHeader header = checked_checkpoints_header(*files.checkpoints, wanted);
  if (!exists(rows_path(wanted.path))) {
    throw Error(ErrorKind::kStorage, rows_path(wanted.path) + ": is missing, and " + checkpoints +
                                         " speaks of its rows; put it back, or remove that file as well");
  }
  const RecordShape shape(wanted.layout);
  files.rows = maker.map(rows_path(wanted.path));
  check_rows_header(*files.rows, header, shape);
  if (slots < header.slots) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: " + std::to_string(wanted.size_bytes) + " bytes are fewer than " +
                    rows_path(wanted.path) + " was made with: it has " + std::to_string(header.slots) +
                    " slots, not " + std::to_string(slots) + ", and never fewer");
  }
  if (slots > header.slots) {
    files.rows.reset();
    {
      CheckpointTable table(std::move(files.checkpoints), header.slots);
      table.load([](size_t, const Entry&, std::span<const uint64_t>) {});
      maker.grow(table, header.uuid, slots);
    }
    files.checkpoints = maker.map(checkpoints);
    header = checked_checkpoints_header(*files.checkpoints, wanted);
    files.rows = maker.map(rows_path(wanted.path));
    check_rows_header(*files.rows, header, shape);
  }
  files.slots = header.slots;
  return files;
}

}  // namespace embstore::pool
