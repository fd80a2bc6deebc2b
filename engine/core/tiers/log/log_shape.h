// What every part of the tier knows of its files.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <string>

#include "files/file.h"
#include "row/place.h"
#include "tiers/log/identity.h"
#include "tiers/log/log_directory.h"
#include "tiers/log/log_file.h"
#include "tiers/log/record.h"

namespace embstore::log {

struct LogShape {
  TableIdentity table;  // its uuid is 0 where the files go with the process
  std::string directory;
  RecordShape record;
  size_t flush_bytes;         // gathered before they go out
  uint32_t records_per_file;  // of slots
  uint32_t max_files;
  bool keeps_checkpoints;
  bool direct;      // past the page cache
  bool maps_files;  // rows that the page cache has are read from there
  files::FileCalls* calls;
  TierMeter* meter;

  std::string path_of(uint64_t number) const { return directory + "/" + record_file_name(number); }
  int open_flags() const { return O_RDWR | (direct ? O_DIRECT : 0); }
  files::FileUse file_use() const {
    return {.pattern = files::AccessPattern::kRandom, .for_the_medium = keeps_checkpoints, .meter = meter};
  }
  Slot slot_of(const LogFile& file, uint64_t record_number) const {
    return static_cast<Slot>(file.index * records_per_file + record_number);
  }
  uint32_t index_of(Slot slot) const { return slot / records_per_file; }
  uint32_t record_of(Slot slot) const { return slot % records_per_file; }
  // "PATH: the record at OFFSET"
  std::string name_of(const LogFile& file, uint32_t record_number) const {
    return file.file().path() + ": the record at " + std::to_string(record.offset(record_number));
  }
};

}  // namespace embstore::log
