// The first block of a record file, written and read back.
#pragma once

#include <string>

#include "files/file.h"
#include "tiers/ssd_hash/log_shape.h"

namespace embstore::ssd_hash {

// Says what `file` is now: open, or sealed with so many records.
void write_file_header(files::File& to, const LogFile& file, const LogShape& shape);

// Throws Error(kStorage), which names the file, where it's no file of SSDHASH rows of this version.
FileHeader read_file_header(files::FileCalls& calls, const std::string& path);

// Throws Error(kStorage) where the file has rows of another variable or layout.
void check_file_header(const std::string& path, const FileHeader& header, const LogShape& shape);

}  // namespace embstore::ssd_hash
