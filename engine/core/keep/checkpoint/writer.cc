#include "keep/checkpoint/writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors/error.h"
#include "platform/crc32c.h"

namespace embstore::checkpoint {

namespace {

FileHeader header_of(const RowLayout& layout, const FileIdentity& identity) {
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
  return header;
}

}  // namespace

Writer::Writer(std::string path, const RowLayout& layout, const FileIdentity& identity,
               files::FileCalls& calls)
    : layout_(layout),
      incremental_(identity.incremental),
      is_first_(identity.partition == 0),
      output_(std::move(path), calls, header_of(layout, identity)) {}

void Writer::add_initial_rows(std::span<const float> values) {
  const auto dim = static_cast<size_t>(layout_.dim());
  for (size_t at = 0; at < values.size(); at += dim) {
    std::memcpy(extend(kInitialRows, dim * sizeof(float)), values.data() + at, dim * sizeof(float));
  }
}

size_t Writer::make_room_for_rows() {
  if (is_given_up_.load(std::memory_order_relaxed)) throw Error(ErrorKind::kStorage, "the save was given up");
  const size_t each =
      record_bytes(static_cast<size_t>(layout_.dim()), static_cast<size_t>(layout_.slot_count()));
  if (block_ != nullptr && (block_->kind != kRows || block_->payload_bytes() + each > kBlockBytes)) flush();
  if (block_ == nullptr) block_ = output_.take();
  block_->kind = kRows;
  return std::max<size_t>((kBlockBytes - block_->payload_bytes()) / each, 1);
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
  if (dim_bytes == layout_.block_floats() * sizeof(float)) {
    std::memcpy(to, row, blocks * dim_bytes);
  } else {
    for (size_t b = 0; b < blocks; ++b, to += dim_bytes) {
      std::memcpy(to, row + b * layout_.block_floats(), dim_bytes);
    }
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
  output_.finish();
  return {.size_bytes = output_.size_bytes(), .checksum = output_.checksum(), .totals = totals_};
}

std::byte* Writer::extend(BlockKind kind, size_t bytes) {
  const bool goes_on =
      block_ != nullptr &&
      (block_->count == 0 || (block_->kind == kind && block_->payload_bytes() + bytes <= kBlockBytes));
  if (!goes_on) flush();
  if (block_ == nullptr) block_ = output_.take();
  block_->kind = kind;
  ++block_->count;
  return block_->extend(bytes);
}

void Writer::flush() {
  if (block_ != nullptr && block_->count != 0) output_.put(std::move(block_));
}

}  // namespace embstore::checkpoint
