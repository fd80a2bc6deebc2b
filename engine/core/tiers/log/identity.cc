#include "tiers/log/identity.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string_view>

#include "errors/error.h"
#include "files/file.h"
#include "row/place.h"
#include "tiers/log/file_names.h"

namespace embstore::log {
namespace {

// The first bytes of files of earlier versions of the engine whose rows outlive the process.
constexpr const char* kEarlierMagics[] = {"ESPMROWS", "ESPMCKPT", "ESSSDHSH", "ESSSDCKP", "ESSSDSEQ"};

[[noreturn]] void refuse_variable(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, path + ": " + why);
}

template <size_t kBytes>
void put_name(char (&field)[kBytes], uint32_t& length, const std::string& name, const char* what) {
  if (name.size() > kBytes) {
    throw Error(ErrorKind::kInvalidArgument, std::string(what) + ": \"" + name + "\" has more than " +
                                                 std::to_string(kBytes) +
                                                 " bytes, which is too long for files that are kept");
  }
  std::copy(name.begin(), name.end(), field);
  length = static_cast<uint32_t>(name.size());
}

uint32_t checksum_of(const FileHeader& header) { return crc32c(&header, offsetof(FileHeader, checksum)); }

}  // namespace

const char* const kEarlierVersionRefusal =
    "is of an earlier version of the engine; with that version es.save() the variable, then remove its "
    "files, those "
    "of all tiers (.pool, .ssdhash, .leveldb), and es.restore() the save here";

Uuid draw_uuid() {
  std::random_device random;
  Uuid uuid;
  for (size_t i = 0; i < uuid.size(); i += sizeof(uint32_t)) {
    const uint32_t word = random();
    std::memcpy(uuid.data() + i, &word, sizeof word);
  }
  return uuid;
}

FileHeader make_header(const char (&magic)[8], const TableIdentity& table, uint64_t number, uint64_t capacity,
                       uint32_t stride) {
  FileHeader header{};
  std::memcpy(header.magic, magic, sizeof header.magic);
  header.format_version = kFormatVersion;
  header.header_bytes = kHeaderBytes;
  header.uuid = table.uuid;
  header.number = number;
  header.capacity = capacity;
  header.dim = static_cast<uint32_t>(table.layout.dim());
  header.slot_count = static_cast<uint32_t>(table.layout.slot_count());
  header.row_bytes = static_cast<uint32_t>(table.layout.row_bytes());
  header.stride = stride;
  put_name(header.table_name, header.table_name_bytes, table.table_name, "name");
  put_name(header.optimizer, header.optimizer_bytes, table.optimizer, "optimizer");
  header.checksum = checksum_of(header);
  return header;
}

FileHeader read_header(files::FileCalls& calls, const std::string& path) {
  const files::File file(calls, path, O_RDONLY);
  FileHeader header{};
  file.read_at(&header, sizeof header, 0);
  return header;
}

HeaderKind kind_of(const FileHeader& header, const char (&magic)[8]) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&header);
  if (std::all_of(bytes, bytes + sizeof header, [](std::byte byte) { return byte == std::byte{0}; })) {
    return HeaderKind::kBlank;
  }
  for (const char* const earlier : kEarlierMagics) {
    if (std::memcmp(header.magic, earlier, sizeof header.magic) == 0) return HeaderKind::kEarlier;
  }
  if (std::memcmp(header.magic, magic, sizeof header.magic) != 0) return HeaderKind::kForeign;
  if (header.format_version > kFormatVersion) return HeaderKind::kLater;
  return header.format_version == kFormatVersion && header.checksum == checksum_of(header) &&
                 header.header_bytes == kHeaderBytes && header.table_name_bytes <= sizeof header.table_name &&
                 header.optimizer_bytes <= sizeof header.optimizer
             ? HeaderKind::kOurs
             : HeaderKind::kTorn;
}

void check_header(const std::string& path, const FileHeader& header, const char (&magic)[8],
                  const TableIdentity& table) {
  switch (kind_of(header, magic)) {
    case HeaderKind::kOurs: break;
    case HeaderKind::kBlank:
    case HeaderKind::kTorn: refuse(path, "is damaged: its header isn't what was written");
    case HeaderKind::kForeign:
      refuse(path, "isn't a file of this engine's rows; remove it, or choose another storage_path");
    case HeaderKind::kEarlier: refuse(path, kEarlierVersionRefusal);
    case HeaderKind::kLater:
      refuse(path, "has format version " + std::to_string(header.format_version) +
                       "; this engine reads version " + std::to_string(kFormatVersion));
  }
  const std::string_view table_name(header.table_name, header.table_name_bytes);
  if (table_name != table.table_name) {
    refuse_variable(
        path,
        "is of the variable \"" + std::string(table_name) + "\", not of \"" + table.table_name +
            "\"; give each its own name or storage_path, and open it with the partition_num that it was "
            "made with");
  }
  if (header.dim != static_cast<uint32_t>(table.layout.dim()) ||
      header.slot_count != static_cast<uint32_t>(table.layout.slot_count())) {
    refuse_variable(path, "is of rows of dim " + std::to_string(header.dim) + " with " +
                              std::to_string(header.slot_count) + " optimizer slots; the variable has dim " +
                              std::to_string(table.layout.dim()) + " with " +
                              std::to_string(table.layout.slot_count()));
  }
  const std::string_view optimizer(header.optimizer, header.optimizer_bytes);
  if (optimizer != table.optimizer) {
    refuse_variable(path, "is of rows of the optimizer " + std::string(optimizer) +
                              ", and the variable has " + table.optimizer);
  }
  if (header.row_bytes != table.layout.row_bytes()) refuse(path, "is damaged: its header makes no sense");
}

FileHeader read_extent_header(files::FileCalls& calls, const std::string& path, const TableIdentity& table,
                              uint64_t number, size_t stride) {
  if (!exists(path)) refuse_needed(path, "is missing");
  const FileHeader header = read_header(calls, path);
  check_header(path, header, kRowsMagic, table);
  if (header.capacity > RowRef::kMaxSlots) {
    refuse(path, "has room for " + std::to_string(header.capacity) + " rows, more than the " +
                     std::to_string(RowRef::kMaxSlots) +
                     " that this version can address; save the table with the version that made it, and "
                     "restore the save with a larger partition_num");
  }
  if (header.uuid == table.uuid && header.number == number && header.stride == stride) return header;
  refuse_needed(path, "is another file than the one that the checkpoints beside it are of");
}

}  // namespace embstore::log
