// The directory of one tier: taken for itself alone, and what lies in it.
#pragma once

#include <string>
#include <vector>

#include "files/file_calls.h"
#include "tiers/ssd_hash/format.h"

namespace embstore::ssd_hash {

struct OldFile {
  std::string path;
  FileHeader header;
};

class TierDirectory {
 public:
  // Makes it where it's missing, and locks it. Throws Error(kStorage) where it can't be used, InUseError.
  TierDirectory(std::string path, files::FileCalls& calls);
  ~TierDirectory();
  TierDirectory(const TierDirectory&) = delete;
  TierDirectory& operator=(const TierDirectory&) = delete;

  // Removes what a killed process left that wasn't to be kept, and finds the files that were, the oldest
  // first. check(OldFile) runs before anything is removed, and may throw.
  template <class Check>
  std::vector<OldFile> take_over(const Check& check) {
    std::vector<std::string> leftovers;
    std::vector<OldFile> kept = list(leftovers);
    for (const OldFile& file : kept) check(file);
    remove(leftovers);
    return kept;
  }

  // What a tier that keeps checkpoints finds there.
  struct OfCheckpoints {
    std::vector<std::string> paths;  // all that such a tier makes, whatever is in it
    uint64_t last_file_number = 0;   // 0 where there are no files with records
    uint32_t most_records = 0;       // that one of them may hold, as far as their headers are whole
  };
  // Changes nothing. Throws Error(kStorage), naming the file, where one is another variable's, or was kept by a tier
  // that keeps files.
  OfCheckpoints find_checkpoints(const std::string& variable_name) const;

  // Throws Error(kStorage) where the file system has no O_DIRECT: rather here than when the first row leaves
  // memory.
  void check_direct_io(const std::string& scratch_path, int open_flags) const;

  // Throws Error(kStorage) where one can't be removed.
  void remove(const std::vector<std::string>& leftovers);

  // Gives it up; it goes if this tier, or one that left files behind, had made it and it's empty.
  void close(bool keep);

 private:
  std::vector<OldFile> list(std::vector<std::string>& leftovers) const;
  void unlock();

  const std::string path_;
  files::FileCalls& calls_;
  bool made_ = false;
  int descriptor_ = -1;  // holds the lock
};

}  // namespace embstore::ssd_hash
