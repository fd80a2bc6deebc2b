// Records of one file, one after another. What can't be read in one piece is read record by record, so that
// an error of the medium concerns no more records than it must.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tiers/ssd_hash/aligned_bytes.h"
#include "tiers/ssd_hash/log_shape.h"

namespace embstore::ssd_hash {

struct ScannedRecord {
  uint32_t number;
  const std::byte* bytes;
  size_t available;     // of its bytes; fewer where the file ends, or can't be read
  std::string failure;  // why it can't be read; else empty
};

class RecordScan {
 public:
  RecordScan(const LogFile& file, const LogShape& shape, size_t chunk_bytes)
      : file_(file),
        shape_(shape),
        records_a_chunk_(static_cast<uint32_t>(std::max<size_t>(1, chunk_bytes / shape.record.bytes))),
        chunk_(round_up_to_block(records_a_chunk_ * shape.record.bytes) + 2 * kBlockBytes) {}

  uint32_t records_a_chunk() const { return records_a_chunk_; }
  uint64_t bytes_read() const { return bytes_read_; }

  // visit(ScannedRecord) for the records from `first` to before `last`; its bytes are valid until it returns.
  template <class Visit>
  void visit(uint32_t first, uint32_t last, const Visit& visit_record) {
    while (first < last) {
      const uint32_t end = first + std::min(records_a_chunk_, last - first);
      std::string failure;
      size_t got = 0;
      try {
        got = read(first, end);
      } catch (const files::FileError& error) {
        failure = error.what();
      }
      if (failure.empty()) {
        const uint64_t begin = round_down_to_block(shape_.offset_of(first));
        for (uint32_t number = first; number < end; ++number) visit_record(record(number, begin, got, {}));
      } else if (end - first == 1) {
        visit_record(ScannedRecord{first, chunk_.data(), 0, failure});
      } else {
        for (uint32_t number = first; number < end; ++number) visit_one(number, visit_record);
      }
      first = end;
    }
  }

 private:
  template <class Visit>
  void visit_one(uint32_t number, const Visit& visit_record) {
    size_t got = 0;
    std::string failure;
    try {
      got = read(number, number + 1);
    } catch (const files::FileError& error) {
      failure = error.what();
    }
    visit_record(record(number, round_down_to_block(shape_.offset_of(number)), got, std::move(failure)));
  }
  size_t read(uint32_t first, uint32_t last) {
    const uint64_t begin = round_down_to_block(shape_.offset_of(first));
    const uint64_t end = round_up_to_block(shape_.offset_of(last));
    const size_t got = file_.file().read_at(chunk_.data(), end - begin, begin);
    bytes_read_ += got;
    return got;
  }
  ScannedRecord record(uint32_t number, uint64_t begin, size_t got, std::string failure) const {
    const uint64_t position = shape_.offset_of(number) - begin;
    return {number, chunk_.data() + position,
            got > position ? std::min<size_t>(shape_.record.bytes, got - position) : 0, std::move(failure)};
  }

  const LogFile& file_;
  const LogShape& shape_;
  const uint32_t records_a_chunk_;
  const AlignedBytes chunk_;
  uint64_t bytes_read_ = 0;
};

}  // namespace embstore::ssd_hash
