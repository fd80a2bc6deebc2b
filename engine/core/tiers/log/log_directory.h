// The directory of one tier: its lock, and the files in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/file_calls.h"
#include "files/path_lock.h"
#include "tiers/log/identity.h"

namespace embstore::log {

std::string record_file_name(uint64_t number);

class LogDirectory {
 public:
  // Creates the directory if it's missing, and locks it. Throws Error(kStorage) if it can't be used, or
  // InUseError.
  LogDirectory(std::string path, files::FileCalls& calls);

  struct Leftovers {
    std::vector<std::string> paths;
    uint64_t last_number = 0;  // the highest number of a file of records; 0 if there is none
  };
  // Returns the files that earlier tiers left. Changes nothing. Throws, naming the file, if one isn't this
  // tier's to remove: it's another program's, version's or table's, or may belong to a checkpoint of a table
  // that isn't this tier's.
  Leftovers find(const TableIdentity& table, bool keeps_checkpoints) const;
  // Throws Error(kStorage) if one can't be removed.
  void remove(const std::vector<std::string>& paths);

  // Throws Error(kStorage) if the file system has no O_DIRECT, so that the error comes before the first row
  // leaves memory.
  void check_direct_io(int open_flags) const;

  // Unlocks the directory; removes it if it's empty and was created by this tier or by one that left files
  // behind.
  void close();

 private:
  // Throws as find() does, unless no checkpoint needs the file of this header, other than perhaps one of this
  // table.
  void check_is_leftover(const std::string& path, const FileHeader& header, const TableIdentity& table,
                         bool keeps_checkpoints) const;

  const std::string path_;
  files::FileCalls& calls_;
  bool made_ = false;
  std::optional<files::PathLock> lock_;
};

}  // namespace embstore::log
