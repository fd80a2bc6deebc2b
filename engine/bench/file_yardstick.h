// How fast a file system's disk is, by kind of request, size and requests in flight.
#pragma once

#include <cstddef>
#include <string>

namespace embstore {

// A file that was written whole, and is gone when this is. Each thread has one request in flight.
class FileYardstick {
 public:
  // direct: past the page cache. Throws Error(kStorage), also where the file system can't do that.
  FileYardstick(size_t bytes, const std::string& directory, bool direct);
  ~FileYardstick();
  FileYardstick(const FileYardstick&) = delete;
  FileYardstick& operator=(const FileYardstick&) = delete;

  // MB (10^6 bytes) a second of all threads. random: each request is for any place, else each thread goes through a
  // part of its own. What was written through the page cache counts once it's on the disk.
  // Throws Error(kInvalidArgument) for requests that are no whole blocks of 512 bytes or don't fit, and Error(kStorage).
  double mb_per_s(bool write, bool random, size_t request_bytes, int threads, double seconds) const;

 private:
  const size_t bytes_;
  const bool direct_;
  std::string path_;
  int file_ = -1;
};

}  // namespace embstore
