#include "tiers/ssd_hash/recovery.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "errors/error.h"
#include "tiers/ssd_hash/file_header.h"
#include "tiers/ssd_hash/record_scan.h"

namespace embstore::ssd_hash {
namespace {

constexpr size_t kScanBytes = 1 << 20;

// What one record says of one key.
struct KeyRecord {
  int64_t key;
  uint64_t sequence;
  Slot slot;
  bool is_row;
};

bool is_all_zero(const std::byte* bytes, size_t count) {
  return std::all_of(bytes, bytes + count, [](std::byte b) { return b == std::byte{0}; });
}

void check_read(const ScannedRecord& record) {
  if (!record.failure.empty()) throw Error(ErrorKind::kStorage, record.failure);
}

void add_key_records(const ScannedRecord& record, Slot slot, std::vector<KeyRecord>& key_records) {
  const RecordHeader header = header_of(record.bytes);
  if (header.kind == kRow) {
    key_records.push_back({header.key, header.sequence, slot, true});
  } else if (header.kind == kTombstones) {
    for (uint16_t i = 0; i < header.count; ++i) {
      int64_t key;
      std::memcpy(&key, record.bytes + sizeof header + i * sizeof key, sizeof key);
      key_records.push_back({key, header.sequence, 0, false});
    }
  }
}

void read_file_back(LogFile& file, uint32_t expected, const LogShape& shape, RecoveredLog& log,
                    std::vector<KeyRecord>& key_records) {
  RecoveryReport& report = log.report;
  uint32_t damaged_since_whole = 0;
  uint32_t zeros_since_whole = 0;  // blocks are filled up with zeros at the end of what was written
  RecordScan scan(file, shape, kScanBytes);
  scan.visit(0, expected, [&](const ScannedRecord& record) {
    check_read(record);
    if (record.available < shape.record.bytes || !is_whole(record.bytes, shape.record)) {
      if (!file.sealed && is_all_zero(record.bytes, record.available)) {
        ++zeros_since_whole;
        return;
      }
      ++(file.sealed ? report.damaged : report.torn);
      if (report.first_damage.empty()) report.first_damage = shape.name_of(file, record.number);
      ++damaged_since_whole;
      // A torn end isn't sealed into the file: it would count as damage from then on.
      if (file.sealed) file.records = record.number + 1;
      return;
    }
    if (!file.sealed) {
      // Not the end of what a killed process wrote after all.
      report.torn -= damaged_since_whole;
      report.damaged += damaged_since_whole + zeros_since_whole;
    }
    damaged_since_whole = 0;
    zeros_since_whole = 0;
    file.records = record.number + 1;
    log.last_sequence = std::max(log.last_sequence, header_of(record.bytes).sequence);
    add_key_records(record, shape.slot_of(file, record.number), key_records);
  });
}

// Of a row and its copy by compaction, which have one sequence number, the copy counts.
void choose_newest_rows(std::vector<KeyRecord>& key_records, const LogShape& shape, RecoveredLog& log) {
  std::sort(key_records.begin(), key_records.end(), [](const KeyRecord& a, const KeyRecord& b) {
    if (a.key != b.key) return a.key < b.key;
    if (a.sequence != b.sequence) return a.sequence < b.sequence;
    return a.slot < b.slot;
  });
  for (size_t i = 0; i < key_records.size(); ++i) {
    if (!key_records[i].is_row) continue;
    if (i + 1 < key_records.size() && key_records[i + 1].key == key_records[i].key) {
      ++log.report.superseded;
      continue;
    }
    const Slot slot = key_records[i].slot;
    log.files[slot / shape.records_per_file]->set_live(shape.record_of(slot));
    ++log.report.rows;
  }
}

}  // namespace

RecoveredLog read_back(std::span<const OldFile> old_files, const LogShape& shape) {
  if (old_files.size() > shape.max_files) {
    throw Error(ErrorKind::kStoreFull, shape.directory + ": holds more files than can be addressed");
  }
  RecoveredLog log;
  std::vector<KeyRecord> key_records;
  for (const OldFile& old : old_files) {
    auto file = std::make_shared<LogFile>(
        std::make_unique<files::File>(*shape.calls, old.path, shape.open_flags(), shape.file_use()),
        old.header.file_number, static_cast<uint32_t>(log.files.size()), old.header.record_capacity);
    const uint64_t size = file->file().size_bytes();
    file->written_bytes = round_up_to_block(size);
    file->sealed = old.header.sealed != 0;
    const uint64_t begun = (size - kHeaderBytes + shape.record.bytes - 1) / shape.record.bytes;
    const uint64_t expected = file->sealed ? old.header.sealed_records : begun;
    read_file_back(*file, static_cast<uint32_t>(std::min<uint64_t>(expected, file->capacity)), shape, log,
                   key_records);
    log.files.push_back(std::move(file));
  }
  choose_newest_rows(key_records, shape, log);
  log.report.files = log.files.size();
  return log;
}

void tell_rows(const RecoveredLog& log, const LogShape& shape, const Tier::Found& found) {
  RowBatch rows(shape.layout);
  std::vector<Slot> slots;
  std::vector<std::byte> batch;
  const auto tell = [&] {
    if (slots.empty()) return;
    rows.resize(slots.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      const std::byte* at = batch.data() + i * shape.record.bytes;
      rows.header(i) = header_of(at).row();
      std::memcpy(rows.row(i), at + sizeof(RecordHeader), shape.layout.row_bytes());
    }
    found(rows, slots);
    slots.clear();
    batch.clear();
  };
  for (const auto& file : log.files) {
    if (file->live_rows() == 0) continue;
    RecordScan scan(*file, shape, kScanBytes);
    scan.visit(0, file->records, [&](const ScannedRecord& record) {
      if (!file->is_live(record.number)) return;
      check_read(record);
      batch.insert(batch.end(), record.bytes, record.bytes + shape.record.bytes);
      slots.push_back(shape.slot_of(*file, record.number));
      if (batch.size() >= kScanBytes) tell();
    });
    tell();
  }
}

void finish_files(const RecoveredLog& log, const LogShape& shape) {
  for (const auto& file : log.files) {
    if (!file->sealed) {
      file->sealed = true;
      write_file_header(file->file(), *file, shape);
    }
    if (!shape.maps_files) continue;
    const uint64_t size = file->file().size_bytes();
    file->map(size);
    file->mapped_bytes.store(size, std::memory_order_release);
  }
}

}  // namespace embstore::ssd_hash
