#include "tiers/ssd_hash/checkpoint_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "errors/error.h"
#include "files/file.h"
#include "files/file_error.h"

namespace embstore::ssd_hash {
namespace {

constexpr char kWhatToDo[] =
    "; put back the directory as it was, or remove the pool's files and this directory to start without "
    "their rows";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kStorage, path + ": " + why + kWhatToDo);
}

CheckpointHeader header_for(const LogShape& shape, const std::string& optimizer, const CheckpointName& name) {
  CheckpointHeader header{};
  std::memcpy(header.magic, kCheckpointMagic, sizeof header.magic);
  header.format_version = kCheckpointsVersion;
  header.header_bytes = sizeof header;
  header.number = name.number;
  std::copy(name.id.begin(), name.id.end(), header.id);
  header.variable_hash = hash_of_name(shape.variable_name);
  header.dim = static_cast<uint32_t>(shape.layout.dim());
  header.slot_count = static_cast<uint32_t>(shape.layout.slot_count());
  header.row_bytes = static_cast<uint32_t>(shape.layout.row_bytes());
  header.record_bytes = static_cast<uint32_t>(shape.record.bytes);
  std::copy(optimizer.begin(), optimizer.end(), header.optimizer);
  return header;
}

void append(std::vector<std::byte>& bytes, const void* data, size_t count) {
  const auto* const from = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), from, from + count);
}

std::vector<std::byte> contents_of(const std::string& path, files::FileCalls& calls) {
  const files::File file(calls, path, O_RDONLY);
  std::vector<std::byte> bytes(file.size_bytes());
  if (file.read_at(bytes.data(), bytes.size(), 0) < bytes.size()) refuse(path, "is truncated");
  return bytes;
}

void check_identity(const std::string& path, const CheckpointHeader& found, const CheckpointHeader& wanted) {
  if (found.variable_hash != wanted.variable_hash) {
    refuse(path, "is of another variable, or of another number of partitions");
  }
  if (found.number != wanted.number || std::memcmp(found.id, wanted.id, sizeof found.id) != 0) {
    refuse(path, "is of another checkpoint than the pool's " + std::to_string(wanted.number));
  }
  if (found.dim != wanted.dim || found.slot_count != wanted.slot_count ||
      found.row_bytes != wanted.row_bytes || found.record_bytes != wanted.record_bytes) {
    refuse(path, "is of rows of dim " + std::to_string(found.dim) + " with " +
                     std::to_string(found.slot_count) + " optimizer slots; the variable has dim " +
                     std::to_string(wanted.dim) + " with " + std::to_string(wanted.slot_count));
  }
  if (std::memcmp(found.optimizer, wanted.optimizer, sizeof found.optimizer) != 0) {
    const std::string name(found.optimizer, strnlen(found.optimizer, sizeof found.optimizer));
    refuse(path, "is of rows of the optimizer " + name + ", and the variable has " + wanted.optimizer);
  }
}

// Takes what was written apart, and never goes beyond it.
class Parts {
 public:
  Parts(const std::string& path, std::span<const std::byte> bytes) : path_(path), rest_(bytes) {}
  void take(void* to, size_t bytes) {
    if (rest_.size() < bytes) refuse(path_, "is damaged: it ends too early");
    std::memcpy(to, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
  }
  size_t left() const { return rest_.size(); }

 private:
  const std::string& path_;
  std::span<const std::byte> rest_;
};

}  // namespace

void check_optimizer_name(const std::string& optimizer) {
  if (optimizer.size() < kOptimizerBytes) return;
  throw Error(ErrorKind::kInvalidArgument, "optimizer: \"" + optimizer + "\" is too long a name");
}

void write_checkpoint_file(const LogShape& shape, const std::string& optimizer, const CheckpointName& name,
                           const Snapshot& snapshot, const Log::NextNumbers& next) {
  CheckpointHeader header = header_for(shape, optimizer, name);
  header.rows = snapshot.rows;
  header.files = snapshot.files.size();
  header.next_file_number = next.file;
  header.next_sequence = next.sequence;
  std::vector<std::byte> bytes;
  append(bytes, &header, sizeof header);
  for (const FileSnapshot& part : snapshot.files) {
    const CheckpointedFile file{part.file->number, part.file->capacity, part.records};
    append(bytes, &file, sizeof file);
    append(bytes, part.rows->data(), part.rows->size() * sizeof(uint64_t));
  }
  const uint32_t checksum = crc32c(bytes.data(), bytes.size());
  append(bytes, &checksum, sizeof checksum);

  const std::string path = shape.checkpoint_path(name.number);
  files::File file(*shape.calls, path + std::string(kUnfinishedSuffix), O_RDWR | O_CREAT | O_TRUNC,
                   files::FileUse{.for_the_medium = true, .meter = shape.meter});
  try {
    file.write_at(bytes.data(), bytes.size(), 0);
    file.sync();
    file.rename_to(path);
  } catch (...) {
    shape.calls->unlink(file.path().c_str());
    throw;
  }
}

CheckpointContents read_checkpoint_file(const LogShape& shape, const std::string& optimizer,
                                        const CheckpointName& name) {
  const std::string path = shape.checkpoint_path(name.number);
  std::vector<std::byte> bytes;
  try {
    bytes = contents_of(path, *shape.calls);
  } catch (const files::FileError& error) {
    if (error.reason() != ENOENT) throw;
    refuse(path, "is missing, and the pool has checkpoint " + std::to_string(name.number));
  }
  CheckpointHeader header{};
  const CheckpointHeader wanted = header_for(shape, optimizer, name);
  uint32_t checksum = 0;
  if (bytes.size() < sizeof header + sizeof checksum) refuse(path, "is truncated");
  const size_t checked = bytes.size() - sizeof checksum;
  Parts parts(path, std::span(bytes).first(checked));
  parts.take(&header, sizeof header);
  if (std::memcmp(header.magic, wanted.magic, sizeof header.magic) != 0) {
    refuse(path, "isn't a checkpoint of SSDHASH rows");
  }
  if (header.format_version != wanted.format_version || header.header_bytes != wanted.header_bytes) {
    refuse(path, "has format version " + std::to_string(header.format_version) +
                     "; this engine reads version " + std::to_string(wanted.format_version));
  }
  std::memcpy(&checksum, bytes.data() + checked, sizeof checksum);
  if (checksum != crc32c(bytes.data(), checked)) refuse(path, "is damaged: its checksum is wrong");
  check_identity(path, header, wanted);

  CheckpointContents contents{
      .files = {}, .rows = header.rows, .next = {header.next_file_number, header.next_sequence}};
  uint64_t rows = 0;
  for (uint64_t i = 0; i < header.files; ++i) {
    CheckpointedFile file{};
    parts.take(&file, sizeof file);
    if (parts.left() / sizeof(uint64_t) < bit_words(file.records))
      refuse(path, "is damaged: it ends too early");
    RecordBits bits(bit_words(file.records));
    parts.take(bits.data(), bits.size() * sizeof(uint64_t));
    if (file.records > file.record_capacity || end_of_records(bits) > file.records) {
      refuse(path, "is damaged: file " + std::to_string(file.number) + " can't have so many records");
    }
    rows += count_records(bits);
    contents.files.push_back({file.number, file.record_capacity, file.records, std::move(bits)});
  }
  if (parts.left() > 0 || rows != header.rows) refuse(path, "is damaged: its parts don't fit together");
  return contents;
}

}  // namespace embstore::ssd_hash
