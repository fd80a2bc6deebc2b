// What every part of the tier knows of its files: settled before the first is opened.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <string>

#include "files/file.h"
#include "row/place.h"
#include "row/row_layout.h"
#include "tiers/ssd_hash/file_names.h"
#include "tiers/ssd_hash/format.h"
#include "tiers/ssd_hash/log_file.h"
#include "tiers/ssd_hash/options.h"

namespace embstore::ssd_hash {

struct LogShape {
  std::string variable_name;
  std::string directory;
  RowLayout layout;
  RecordShape record;
  size_t flush_bytes;         // gathered before they go out
  uint64_t records_per_file;  // of slots
  uint32_t max_files;
  Keeps keeps;
  bool syncs;       // older copies of rows go only once the newer ones are on the medium
  bool direct;      // past the page cache
  bool maps_files;  // rows that the page cache has are read from there
  files::FileCalls* calls;
  TierMeter* meter;

  std::string path_of(uint64_t number) const {
    return directory + "/" + file_name(kRecordFilePrefix, number);
  }
  std::string checkpoint_path(uint64_t number) const {
    return directory + "/" + file_name(kCheckpointPrefix, number);
  }
  int open_flags() const { return O_RDWR | (direct ? O_DIRECT : 0); }
  files::FileUse file_use() const {
    return {.pattern = files::AccessPattern::kRandom,
            .for_the_medium = syncs || keeps != Keeps::kNothing,
            .meter = meter};
  }
  uint64_t offset_of(uint64_t record_number) const { return record_offset(record_number, record.bytes); }
  Slot slot_of(const LogFile& file, uint32_t record_number) const {
    return static_cast<Slot>(file.index * records_per_file + record_number);
  }
  uint32_t record_of(Slot slot) const { return static_cast<uint32_t>(slot % records_per_file); }
  // "PATH: the record at OFFSET"
  std::string name_of(const LogFile& file, uint32_t record_number) const {
    return file.file().path() + ": the record at " + std::to_string(offset_of(record_number));
  }
};

}  // namespace embstore::ssd_hash
