#include "tiers/ssd_hash/file_header.h"

#include <fcntl.h>

#include <cstring>

#include "errors/error.h"
#include "tiers/ssd_hash/aligned_bytes.h"
#include "tiers/ssd_hash/whose_rows.h"

namespace embstore::ssd_hash {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kStorage, path + ": " + why);
}

}  // namespace

void write_file_header(files::File& to, const LogFile& file, const LogShape& shape) {
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof header.magic);
  const bool of_checkpoints = shape.keeps == Keeps::kCheckpoints;
  header.format_version = of_checkpoints ? kCheckpointsVersion : kFormatVersion;
  header.header_bytes = kHeaderBytes;
  header.file_number = file.number;
  header.variable_hash = hash_of_name(shape.variable_name);
  header.dim = static_cast<uint32_t>(shape.layout.dim());
  header.slot_count = static_cast<uint32_t>(shape.layout.slot_count());
  header.row_bytes = static_cast<uint32_t>(shape.layout.row_bytes());
  header.record_bytes = static_cast<uint32_t>(shape.record.bytes);
  header.record_capacity = file.capacity;
  header.flags = shape.keeps == Keeps::kFiles ? kKept : of_checkpoints ? kOfCheckpoints : 0;
  if (file.sealed && !of_checkpoints) {
    header.sealed = 1;
    header.sealed_records = file.records;
  }
  header.checksum = checksum_of_header(header);
  const AlignedBytes block(kHeaderBytes);
  std::memset(block.data(), 0, block.size());
  std::memcpy(block.data(), &header, sizeof header);
  to.write_at(block.data(), block.size(), 0);
}

FileHeader read_file_header(files::FileCalls& calls, const std::string& path) {
  const files::File file(calls, path, O_RDONLY);
  FileHeader header{};
  if (file.read_at(&header, sizeof header, 0) < sizeof header || file.size_bytes() < kHeaderBytes) {
    refuse(path, "is truncated: shorter than its header");
  }
  if (std::memcmp(header.magic, kMagic, sizeof header.magic) != 0) {
    refuse(path, "isn't a file of SSDHASH rows; remove it, or choose another storage_path");
  }
  if (header.format_version != kFormatVersion && header.format_version != kCheckpointsVersion) {
    refuse(path, "has format version " + std::to_string(header.format_version) +
                     "; this engine reads versions " + std::to_string(kFormatVersion) + " and " +
                     std::to_string(kCheckpointsVersion));
  }
  if (header.checksum != checksum_of_header(header)) {
    refuse(path, "is damaged: its header's checksum is wrong");
  }
  return header;
}

void check_file_header(const std::string& path, const FileHeader& header, const LogShape& shape) {
  check_variable(path, header.variable_hash, shape.variable_name);
  if (header.dim != static_cast<uint32_t>(shape.layout.dim()) ||
      header.slot_count != static_cast<uint32_t>(shape.layout.slot_count()) ||
      header.row_bytes != shape.layout.row_bytes() || header.record_bytes != shape.record.bytes ||
      header.header_bytes != kHeaderBytes || header.record_capacity == 0) {
    refuse(path, "holds rows of dim " + std::to_string(header.dim) + " with " +
                     std::to_string(header.slot_count) + " optimizer slots; the variable has dim " +
                     std::to_string(shape.layout.dim()) + " with " +
                     std::to_string(shape.layout.slot_count()));
  }
}

}  // namespace embstore::ssd_hash
