#include "keep/checkpoint/reader.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "errors/error.h"
#include "platform/crc32c.h"

namespace embstore::checkpoint {
namespace {

bool same(const Totals& a, const Totals& b) {
  return a.rows == b.rows && a.removed_keys == b.removed_keys && a.waiting_keys == b.waiting_keys &&
         a.sketches == b.sketches;
}

// Returns what open() returns. A file that a manifest names and that isn't there, or isn't a file, is a
// fault of the checkpoint, not of the medium.
template <class Open>
auto opened(Open open) {
  try {
    return open();
  } catch (const files::FileError& error) {
    if (error.reason() != ENOENT && error.reason() != ESPIPE) throw;
    throw Error(ErrorKind::kCheckpoint, error.what());
  }
}

}  // namespace

Reader::Reader(std::string path, files::FileCalls& calls)
    : file_(opened([&] {
        return files::File(calls, std::move(path), O_RDONLY, {.pattern = files::AccessPattern::kSequential});
      })),
      size_bytes_(file_.size_bytes()) {
  read_header();
}

void Reader::read_header() {
  if (size_bytes_ < sizeof header_) truncated();
  read(&header_, sizeof header_, 0);
  {
    const MutexLock lock(mutex_);
    offset_ = sizeof header_;
    checksum_ = crc32c(&header_, sizeof header_);
  }
  if (header_.magic != kMagic) damaged("it isn't a file of a checkpoint's rows");
  if (header_.format_version < kPlacedByModulo || header_.format_version > kFormatVersion) {
    damaged("its format has version " + std::to_string(header_.format_version) +
            ", and this program reads versions " + std::to_string(kPlacedByModulo) + " to " +
            std::to_string(kFormatVersion));
  }
  if (header_.checksum != crc32c(&header_, offsetof(FileHeader, checksum)) ||
      header_.header_bytes != sizeof(FileHeader) || header_.dim == 0 ||
      header_.record_bytes != record_bytes(header_.dim, header_.slot_count) ||
      header_.partition >= header_.partition_count) {
    damaged("its header is damaged");
  }
}

BlockKind Reader::next_kind() const {
  const MutexLock lock(mutex_);
  BlockHeader block;
  if (ended_ || file_.read_at(&block, sizeof block, offset_) < sizeof block) return kEnd;
  return static_cast<BlockKind>(block.kind);
}

std::optional<Reader::Block> Reader::next(std::vector<std::byte>& payload) {
  std::optional<BlockHeader> block;
  uint64_t start;
  {
    const MutexLock lock(mutex_);
    start = offset_;
    block = pass_block();
  }
  if (!block) return std::nullopt;
  payload.resize(block->payload_bytes);
  read_payload(*block, start, payload.data());
  return Block{static_cast<BlockKind>(block->kind), block->count, block->number, payload};
}

std::optional<BlockHeader> Reader::pass_block() {
  if (ended_) return std::nullopt;
  BlockHeader block;
  read(&block, sizeof block, offset_);
  if (block.checksum != crc32c(&block, offsetof(BlockHeader, checksum)) || block.number != blocks_) {
    damaged("the header of its block at byte " + std::to_string(offset_) + " is damaged");
  }
  if (block.payload_bytes > size_bytes_ - offset_ - sizeof block) truncated();
  check_block(block);
  if (block.kind == kEnd) check_end(block);
  offset_ += sizeof block + block.payload_bytes;
  ++blocks_;
  checksum_ = crc32c(&block, sizeof block, checksum_);
  ended_ = block.kind == kEnd;
  if (ended_) return std::nullopt;
  count(block);
  return block;
}

void Reader::check_end(const BlockHeader& block) {
  Totals totals;
  read_payload(block, offset_, &totals);
  if (!same(totals, found_)) damaged("it doesn't hold as many rows as it says");
  const uint64_t end = offset_ + sizeof block + sizeof totals;
  if (end != size_bytes_) damaged("it goes on after its end, at byte " + std::to_string(end));
}

void Reader::read_payload(const BlockHeader& block, uint64_t start, void* payload) const {
  read(payload, block.payload_bytes, start + sizeof block);
  if (block.payload_checksum != crc32c(payload, block.payload_bytes)) {
    damaged("its block at byte " + std::to_string(start) + " is damaged");
  }
}

void Reader::check_block(const BlockHeader& block) const {
  const auto holds = [&block](size_t each) { return block.payload_bytes == block.count * each; };
  bool fits = false;
  switch (block.kind) {
    case kRows: fits = holds(header_.record_bytes); break;
    case kRemovedKeys: fits = holds(sizeof(int64_t)); break;
    case kWaitingKeys: fits = holds(sizeof(WaitingKeyRecord)); break;
    case kSketch: fits = block.count == 1 && block.payload_bytes >= sizeof(SketchHeader); break;
    case kInitialRows: fits = block.count > 0 && holds(header_.dim * sizeof(float)); break;
    case kEnd: fits = block.count == 1 && block.payload_bytes == sizeof(Totals); break;
    default: break;
  }
  if (!fits) {
    damaged("its block " + std::to_string(block.number) + " doesn't hold what it says");
  }
}

void Reader::count(const BlockHeader& block) {
  switch (block.kind) {
    case kRows: found_.rows += block.count; break;
    case kRemovedKeys: found_.removed_keys += block.count; break;
    case kWaitingKeys: found_.waiting_keys += block.count; break;
    case kSketch: found_.sketches += block.count; break;
    default: break;
  }
}

void Reader::read(void* data, size_t bytes, uint64_t offset) const {
  if (file_.read_at(data, bytes, offset) < bytes) truncated();
}

void Reader::damaged(const std::string& what) const {
  throw Error(ErrorKind::kCheckpoint, path() + ": " + what);
}

void Reader::truncated() const {
  damaged("it is truncated: " + std::to_string(size_bytes_) + " bytes are left");
}

}  // namespace embstore::checkpoint
