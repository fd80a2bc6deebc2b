// A file as the engine uses it, whose descriptor is open only while it's needed.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "files/descriptor_cache.h"
#include "files/file_calls.h"
#include "files/file_error.h"
#include "threads/mutex.h"

namespace embstore {
class TierMeter;
}

namespace embstore::files {

enum class AccessPattern { kAny, kRandom, kSequential };

struct FileUse {
  AccessPattern pattern = AccessPattern::kAny;
  // True if writes must reach the medium before anything relies on them.
  bool for_the_medium = false;
  mode_t mode = 0600;  // of a file that is created
  // Counts the file's reads and writes; null: not counted.
  TierMeter* meter = nullptr;
};

// Every method throws FileError, which names the file, what was wanted, and the system's reason. Thread-safe
// except for rename_to(), which is called before other threads know the file.
class File final : public CachedDescriptor {
 public:
  // `flags` are those of open(2).
  File(FileCalls& calls, std::string path, int flags, const FileUse& use = {});
  ~File();

  // Reads until `bytes` are there or the file ends. Returns how many bytes it read.
  size_t read_at(void* data, size_t bytes, uint64_t offset) const;
  // The same for callers who read several places and count these reads together.
  size_t read_uncounted(void* data, size_t bytes, uint64_t offset) const;
  // Writes all bytes, or throws; then any part may have been written.
  void write_at(const void* data, size_t bytes, uint64_t offset);
  // Brings what was written to the medium. If that failed once, the system has dropped what it couldn't write
  // and calls the next try a success: so the file is in doubt from then on, and takes neither writes nor
  // another sync. Its contents have to be written to a new file.
  void sync();
  // The same, if something was written through this object since it was last synced.
  void sync_if_written();
  bool sync_failed() const { return sync_errno_.load(std::memory_order_acquire) != 0; }

  void rename_to(std::string path);
  void remove();

  uint64_t size_bytes() const;
  const std::string& path() const { return path_; }

 private:
  int open_descriptor() const override;
  void close_descriptor(int number) const override;
  bool must_sync_before_close() const override;
  void sync_before_close() const override;

  void check_sync_succeeded() const;
  int sync_descriptor(int number) const EXCLUDES(sync_mutex_);  // 0, or an errno; then the file is in doubt
  int sync_locked(int number) const REQUIRES(sync_mutex_);

  FileCalls& calls_;
  std::string path_;
  mutable int flags_;  // without those that create a file, once it is created
  const FileUse use_;
  mutable std::atomic<bool> unsynced_{false};
  mutable std::atomic<int> sync_errno_{0};  // the errno of the sync that failed
  mutable Mutex sync_mutex_;  // of two syncs at once, one alone is told of an error that concerns both
};

// Makes names in `directory` last through a power cut. May be tried again: if a file system can't write its
// names, its journal refuses everything after.
void sync_directory(FileCalls& calls, const std::string& directory);

// Removes a name. Throws FileError if the name is still there then.
void remove_file(FileCalls& calls, const std::string& path);

}  // namespace embstore::files
