#include "keep/checkpoint/writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/crc32c.h"

namespace embstore::checkpoint {

Writer::Writer(std::string path, const RowLayout& layout, const FileIdentity& identity,
               files::FileCalls& calls)
    : layout_(layout),
      incremental_(identity.incremental),
      is_first_(identity.partition == 0),
      file_(calls, std::move(path), O_RDWR | O_CREAT | O_EXCL, {.for_the_medium = true, .mode = 0666}) {
  const auto dim = static_cast<size_t>(layout.dim());
  const auto slots = static_cast<size_t>(layout.slot_count());
  FileHeader header{
      .magic = kMagic,
      .format_version = kFormatVersion,
      .header_bytes = sizeof(FileHeader),
      .save_id = identity.save_id,
      .dim = static_cast<uint32_t>(dim),
      .slot_count = static_cast<uint32_t>(slots),
      .partition = identity.partition,
      .partition_count = identity.partition_count,
      .record_bytes = static_cast<uint32_t>(record_bytes(dim, slots)),
      .flags = identity.incremental ? kIncremental : 0,
      .reserved = 0,
      .checksum = 0,
  };
  header.checksum = crc32c(&header, offsetof(FileHeader, checksum));
  block_.reserve(sizeof(BlockHeader) + kBlockBytes);
  checksum_ = crc32c(&header, sizeof header);
  write(&header, sizeof header);
}

void Writer::add_initial_rows(std::span<const float> values) {
  const auto dim = static_cast<size_t>(layout_.dim());
  for (size_t at = 0; at < values.size(); at += dim) {
    std::memcpy(extend(kInitialRows, dim * sizeof(float)), values.data() + at, dim * sizeof(float));
  }
}

void Writer::add_row(const RowHeader& header, const float* row) {
  const size_t dim_bytes = static_cast<size_t>(layout_.dim()) * sizeof(float);
  const size_t blocks = 1 + static_cast<size_t>(layout_.slot_count());
  std::byte* to = extend(kRows, sizeof(RowRecord) + blocks * dim_bytes);
  const RowRecord record{.key = header.key,
                         .frequency = header.frequency,
                         .version = header.version,
                         .served = header.served,
                         .stamp = header.stamp};
  std::memcpy(to, &record, sizeof record);
  to += sizeof record;
  for (size_t b = 0; b < blocks; ++b, to += dim_bytes) {
    std::memcpy(to, row + b * layout_.block_floats(), dim_bytes);
  }
  ++totals_.rows;
}

void Writer::add_removed_key(int64_t key) {
  std::memcpy(extend(kRemovedKeys, sizeof key), &key, sizeof key);
  ++totals_.removed_keys;
}

void Writer::add_waiting_key(const WaitingKeyRecord& waiting) {
  std::memcpy(extend(kWaitingKeys, sizeof waiting), &waiting, sizeof waiting);
  ++totals_.waiting_keys;
}

void Writer::add_sketch(const SketchHeader& header, std::span<const std::byte> counters) {
  flush();  // a sketch is a block of its own
  std::byte* const to = extend(kSketch, sizeof header + counters.size());
  std::memcpy(to, &header, sizeof header);
  std::copy(counters.begin(), counters.end(), to + sizeof header);
  ++totals_.sketches;
  flush();
}

FileSummary Writer::finish() {
  flush();
  std::memcpy(extend(kEnd, sizeof totals_), &totals_, sizeof totals_);
  flush();
  file_.sync();
  return {.size_bytes = size_bytes_, .checksum = checksum_, .totals = totals_};
}

std::byte* Writer::extend(BlockKind kind, size_t bytes) {
  if (count_ != 0 && (kind != kind_ || block_.size() + bytes > sizeof(BlockHeader) + kBlockBytes)) {
    flush();
  }
  if (count_ == 0) block_.resize(sizeof(BlockHeader));
  kind_ = kind;
  ++count_;
  const size_t end = block_.size();
  block_.resize(end + bytes);
  return block_.data() + end;
}

void Writer::flush() {
  if (count_ == 0) return;
  const std::byte* const payload = block_.data() + sizeof(BlockHeader);
  const size_t payload_bytes = block_.size() - sizeof(BlockHeader);
  BlockHeader header{
      .kind = kind_,
      .count = count_,
      .payload_bytes = payload_bytes,
      .number = blocks_++,
      .payload_checksum = crc32c(payload, payload_bytes),
      .checksum = 0,
  };
  header.checksum = crc32c(&header, offsetof(BlockHeader, checksum));
  std::memcpy(block_.data(), &header, sizeof header);
  checksum_ = crc32c(&header, sizeof header, checksum_);
  write(block_.data(), block_.size());
  count_ = 0;
}

void Writer::write(const void* data, size_t bytes) {
  file_.write_at(data, bytes, size_bytes_);
  size_bytes_ += bytes;
}

}  // namespace embstore::checkpoint
