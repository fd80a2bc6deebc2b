// Reads records of one file, one after another. A chunk that can't be read is read record by record, so that
// an error of the medium affects no more records than it must.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tiers/log/log_shape.h"
#include "tiers/medium/aligned_bytes.h"

namespace embstore::log {

struct ScannedRecord {
  uint32_t number;
  const std::byte* bytes;  // null if they aren't all there
  std::string failure;     // why they can't be read; empty if the file ends
};

// Returns what is wrong with a record, worded for errors; empty if it is what was written. check(header)
// returns what is wrong with a record that could be read, or null.
template <class Check>
std::string fault_of(const ScannedRecord& record, const Check& check) {
  if (record.bytes == nullptr) {
    return record.failure.empty() ? "is cut off: the file was truncated" : "can't be read: " + record.failure;
  }
  const char* const fault = check(header_of(record.bytes));
  return fault == nullptr ? std::string() : std::string("is damaged: ") + fault;
}
inline std::string fault_of(const ScannedRecord& record, bool all_floats, const RecordShape& shape) {
  return fault_of(record, [&](const RecordHeader& header) {
    return fault_of(header, record.number, record.bytes + sizeof header, all_floats, shape);
  });
}

class RecordScan {
 public:
  RecordScan(const LogFile& file, const LogShape& shape, size_t chunk_bytes)
      : file_(file),
        shape_(shape),
        records_a_chunk_(static_cast<uint32_t>(std::max<size_t>(1, chunk_bytes / shape.record.stride))),
        chunk_(medium::round_up_to_block(records_a_chunk_ * shape.record.stride) + 2 * medium::kBlockBytes) {}

  uint32_t records_a_chunk() const { return records_a_chunk_; }

  // Calls visit(ScannedRecord) for each record from `first` to before `last` with wanted(number); its bytes
  // are valid until visit returns.
  template <class Wanted, class Visit>
  void visit(uint32_t first, uint32_t last, const Wanted& wanted, const Visit& visit_record) {
    while (first < last && !wanted(first)) ++first;
    while (first < last && !wanted(last - 1)) --last;
    while (first < last) {
      const uint32_t end = first + std::min(records_a_chunk_, last - first);
      visit_chunk(first, end, wanted, visit_record);
      first = end;
    }
  }

 private:
  template <class Wanted, class Visit>
  void visit_chunk(uint32_t first, uint32_t end, const Wanted& wanted, const Visit& visit_record) {
    const uint64_t begin = medium::round_down_to_block(shape_.record.offset(first));
    const uint64_t bytes = medium::round_up_to_block(shape_.record.offset(end)) - begin;
    std::string failure;
    size_t got = 0;
    try {
      got = file_.file().read_at(chunk_.data(), bytes, begin);
    } catch (const files::FileError& error) {
      if (end - first > 1) {
        for (uint32_t number = first; number < end; ++number) {
          if (wanted(number)) visit_chunk(number, number + 1, wanted, visit_record);
        }
        return;
      }
      failure = error.what();
    }
    for (uint32_t number = first; number < end; ++number) {
      if (!wanted(number)) continue;
      const uint64_t at = shape_.record.offset(number) - begin;
      const bool is_there = at + shape_.record.stride <= got;
      visit_record(ScannedRecord{number, is_there ? chunk_.data() + at : nullptr, failure});
    }
  }

  const LogFile& file_;
  const LogShape& shape_;
  const uint32_t records_a_chunk_;
  const medium::AlignedBytes chunk_;
};

}  // namespace embstore::log
