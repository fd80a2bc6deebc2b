// Files as the tier uses them, and the one seam through which every system call on them goes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace embstore::ssd_hash {

// Arguments, results and errno as of the system calls of these names. Tests replace them to inject faults.
class FileCalls {
 public:
  virtual ~FileCalls() = default;

  virtual int open(const char* path, int flags, mode_t mode);
  virtual int close(int descriptor);
  virtual ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset);
  virtual ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset);
  virtual int fdatasync(int descriptor);
  virtual int fsync(int descriptor);
  virtual int unlink(const char* path);
  virtual int rename(const char* from, const char* to);
};

FileCalls& system_file_calls();

// Every method throws Error(kStorage) that names the file, what was wanted, and the system's reason.
class File {
 public:
  File(FileCalls& calls, std::string path, int flags);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Reads until `bytes` are there or the file ends, and says how many there were.
  size_t read_at(void* data, size_t bytes, uint64_t offset) const;
  // All of it, or an error; then any part may have been written.
  void write_at(const void* data, size_t bytes, uint64_t offset);
  void sync();
  void rename_to(std::string path);
  void remove();

  uint64_t size_bytes() const;
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

 private:
  FileCalls& calls_;
  std::string path_;
  int descriptor_;
};

// Makes names in `directory` last through a power cut.
void sync_directory(FileCalls& calls, const std::string& directory);

}  // namespace embstore::ssd_hash
