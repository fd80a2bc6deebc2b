// The properties of its files that all parts of the tier know: the options, and what follows from them.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "files/file.h"
#include "row/place.h"
#include "tiers/log/identity.h"
#include "tiers/log/log_directory.h"
#include "tiers/log/log_file.h"
#include "tiers/log/record.h"
#include "tiers/log/ssd_hash_options.h"

namespace embstore::log {

struct LogShape {
  SsdHashOptions options;
  TableIdentity table;  // its uuid is 0 if the files go with the process
  std::string directory;
  RecordShape record;
  size_t flush_bytes;         // bytes gathered before they are written
  uint32_t records_per_file;  // slots that each file has
  TierMeter* meter;

  uint32_t max_files() const { return RowRef::kMaxSlots / records_per_file; }
  // Returns whether rows in the page cache are read from mapped pages. They aren't with O_DIRECT, which is
  // there to bypass the page cache, nor if the user chose a scheme.
  bool maps_files() const { return options.io_scheme == medium::IoScheme::kAuto && !options.direct; }
  std::string path_of(uint64_t number) const { return directory + "/" + record_file_name(number); }
  int open_flags() const { return O_RDWR | (options.direct ? O_DIRECT : 0); }
  std::unique_ptr<files::File> open(const std::string& path, int more_flags = 0) const {
    return std::make_unique<files::File>(*options.file_calls, path, open_flags() | more_flags,
                                         files::FileUse{.pattern = files::AccessPattern::kRandom,
                                                        .for_the_medium = options.keeps_checkpoints,
                                                        .meter = meter});
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
