// Measures how fast a file system's disk is, by kind of request, size and requests in flight.
#pragma once

#include <cstddef>
#include <string>

namespace embstore {

// A file that was written as a whole, and that is removed with this object. Each thread has one request in
// flight.
class FileYardstick {
 public:
  // `direct`: past the page cache. Throws Error(kStorage), also if the file system can't do direct I/O.
  FileYardstick(size_t bytes, const std::string& directory, bool direct);
  ~FileYardstick();
  FileYardstick(const FileYardstick&) = delete;
  FileYardstick& operator=(const FileYardstick&) = delete;

  // Returns MB (10^6 bytes) per second of all threads together. With `random` each request is for any place
  // in the file; otherwise each thread goes through a part of its own. Bytes written through the page cache
  // count once they are on the disk. Throws Error(kInvalidArgument) for requests that aren't whole blocks of
  // 512 bytes or don't fit, and Error(kStorage).
  double mb_per_s(bool write, bool random, size_t request_bytes, int threads, double seconds) const;

 private:
  const size_t bytes_;
  const bool direct_;
  std::string path_;
  int file_ = -1;
};

}  // namespace embstore
