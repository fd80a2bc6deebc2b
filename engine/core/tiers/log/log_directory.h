// The directory of one tier: taken for itself alone, and what lies in it.
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
  // Makes it where it's missing, and locks it. Throws Error(kStorage) where it can't be used, InUseError.
  LogDirectory(std::string path, files::FileCalls& calls);

  struct Leftovers {
    std::vector<std::string> paths;
    uint64_t last_number = 0;  // of a file of records; 0 where there's none
  };
  // The files of tiers that were here before. Changes nothing. Throws, naming the file, where one isn't this tier's to
  // remove: it's of another program, version or table, or may belong to a checkpoint of a table that this tier isn't of.
  Leftovers find(const TableIdentity& table, bool keeps_checkpoints) const;
  // Throws Error(kStorage) where one can't be removed.
  void remove(const std::vector<std::string>& paths);

  // Throws Error(kStorage) where the file system has no O_DIRECT: rather here than when the first row leaves
  // memory.
  void check_direct_io(int open_flags) const;

  // Gives it up; it goes if this tier, or one that left files behind, had made it and it's empty.
  void close();

 private:
  // Throws as find(), unless nobody needs the file of this header any more, but perhaps a checkpoint of this table.
  void check_is_leftover(const std::string& path, const FileHeader& header, const TableIdentity& table,
                         bool keeps_checkpoints) const;

  const std::string path_;
  files::FileCalls& calls_;
  bool made_ = false;
  std::optional<files::PathLock> lock_;
};

}  // namespace embstore::log
