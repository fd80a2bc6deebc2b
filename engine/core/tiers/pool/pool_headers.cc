#include "tiers/pool/pool_headers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "errors/error.h"
#include "tiers/table_name.h"

namespace embstore::pool {
namespace {

[[noreturn]] void refuse(const DurableFile& file, const std::string& why) {
  throw Error(ErrorKind::kStorage, file.path() + ": " + why);
}
[[noreturn]] void refuse_identity(const DurableFile& file, const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, file.path() + ": " + why);
}

template <size_t kBytes>
void put_name(char (&field)[kBytes], uint32_t& length, const std::string& name, const char* what) {
  if (name.size() > kBytes) {
    throw Error(ErrorKind::kInvalidArgument, std::string(what) + ": \"" + name + "\" has more than " +
                                                 std::to_string(kBytes) +
                                                 " bytes, which is too long for a pool");
  }
  std::copy(name.begin(), name.end(), field);
  length = static_cast<uint32_t>(name.size());
}

// What every header begins and ends with.
template <class Header>
Header checked_header(const DurableFile& file, const char (&magic)[8], const char* what) {
  if (file.size_bytes() < kHeaderBytes) refuse(file, "is truncated: shorter than its header");
  Header header;
  std::memcpy(&header, file.data(), sizeof header);
  if (std::memcmp(header.magic, magic, sizeof header.magic) != 0) {
    refuse(file,
           std::string("isn't a file of a pool's ") + what + "; remove it, or choose another storage_path");
  }
  if (header.format_version != kFormatVersion) {
    refuse(file, "has format version " + std::to_string(header.format_version) +
                     "; this engine reads version " + std::to_string(kFormatVersion));
  }
  if (header.checksum != checksum_of_header(header) || header.header_bytes != kHeaderBytes) {
    refuse(file, "is damaged: its header's checksum is wrong");
  }
  return header;
}

template <class Header>
void write_header(DurableFile& file, Header& header, const char (&magic)[8]) {
  std::memcpy(header.magic, magic, sizeof header.magic);
  header.format_version = kFormatVersion;
  header.header_bytes = kHeaderBytes;
  header.checksum = checksum_of_header(header);
  file.write(0, &header, sizeof header);
  file.settle(0, kHeaderBytes);
}

}  // namespace

void write_rows_header(DurableFile& file, const Uuid& uuid) {
  RowsHeader header{};
  header.uuid = uuid;
  write_header(file, header, kRowsMagic);
}

void write_checkpoints_header(DurableFile& file, const Uuid& uuid, const PoolSpecification& wanted,
                              uint64_t slots) {
  CheckpointsHeader header{};
  header.uuid = uuid;
  header.slots = slots;
  header.dim = static_cast<uint32_t>(wanted.layout.dim());
  header.slot_count = static_cast<uint32_t>(wanted.layout.slot_count());
  header.row_bytes = static_cast<uint32_t>(wanted.layout.row_bytes());
  header.stride = static_cast<uint32_t>(RecordShape(wanted.layout).stride);
  header.entries = kEntries;
  put_name(header.table_name, header.table_name_bytes, wanted.table_name, "name");
  put_name(header.optimizer, header.optimizer_bytes, wanted.optimizer, "optimizer");
  write_header(file, header, kCheckpointsMagic);
}

CheckpointsHeader checked_checkpoints_header(const DurableFile& file, const PoolSpecification& wanted) {
  const auto header = checked_header<CheckpointsHeader>(file, kCheckpointsMagic, "checkpoints");
  if (header.entries != kEntries || header.table_name_bytes > sizeof header.table_name ||
      header.optimizer_bytes > sizeof header.optimizer || header.slots == 0 ||
      header.slots > RowRef::kMaxSlots) {
    refuse(file, "is damaged: its header makes no sense");
  }
  const std::string_view table_name(header.table_name, header.table_name_bytes);
  if (table_name != wanted.table_name) {
    if (table_name == name_before_hashes(wanted.table_name)) refuse_identity(file, kPlacedByModuloRefusal);
    refuse_identity(file, "is of the variable \"" + std::string(table_name) + "\", not of \"" +
                              wanted.table_name + "\"; give each its own name or storage_path");
  }
  if (header.dim != static_cast<uint32_t>(wanted.layout.dim()) ||
      header.slot_count != static_cast<uint32_t>(wanted.layout.slot_count())) {
    refuse_identity(file, "is of rows of dim " + std::to_string(header.dim) + " with " +
                              std::to_string(header.slot_count) + " optimizer slots; the variable has dim " +
                              std::to_string(wanted.layout.dim()) + " with " +
                              std::to_string(wanted.layout.slot_count()));
  }
  const std::string_view optimizer(header.optimizer, header.optimizer_bytes);
  if (optimizer != wanted.optimizer) {
    refuse_identity(file, "is of rows of the optimizer " + std::string(optimizer) +
                              ", and the variable has " + wanted.optimizer);
  }
  if (header.row_bytes != wanted.layout.row_bytes() || header.stride != RecordShape(wanted.layout).stride) {
    refuse(file, "is damaged: its header makes no sense");
  }
  if (file.size_bytes() < CheckpointsShape(header.slots).file_bytes()) {
    refuse(file, "is truncated: it has " + std::to_string(file.size_bytes()) + " bytes of " +
                     std::to_string(CheckpointsShape(header.slots).file_bytes()));
  }
  return header;
}

void check_rows_header(const DurableFile& file, const CheckpointsHeader& beside, const RecordShape& shape) {
  const auto header = checked_header<RowsHeader>(file, kRowsMagic, "rows");
  if (header.uuid != beside.uuid) {
    refuse(file, "isn't the pool that the checkpoints beside it are of; put back the one that is");
  }
  if (file.size_bytes() < shape.file_bytes(beside.slots)) {
    refuse(file, "is truncated: it has " + std::to_string(file.size_bytes()) + " bytes of " +
                     std::to_string(shape.file_bytes(beside.slots)));
  }
}

bool has_rows_magic(const DurableFile& file) {
  return file.size_bytes() >= kHeaderBytes && std::memcmp(file.data(), kRowsMagic, sizeof kRowsMagic) == 0;
}

}  // namespace embstore::pool
