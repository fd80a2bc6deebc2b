// Several reads of files at once: by io_uring where the kernel has it, one after another elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "files/file.h"

namespace embstore::medium {

enum class IoScheme {
  kAuto,     // rows in the page cache from its pages; others by io_uring where the kernel has it, else pread
  kIoUring,  // all rows, or an error
  kPread,    // all rows
};

struct ReadRequest {
  const files::File* file;
  uint64_t offset;
  std::byte* data;
  size_t bytes;
  size_t bytes_read;    // set by read(); less than `bytes` only where the file ends, or can't be read
  std::string failure;  // set by read(): why it can't be read; else empty
};

// For one thread at a time.
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  // An error of one file is told in its requests; the others are read. None is under way on return.
  virtual void read(std::span<ReadRequest> requests) = 0;
  // Of how many rounds that is: what is in one is in flight together.
  virtual size_t rounds_of(size_t requests) const = 0;

 protected:
  // By pread, from what is read already.
  static void read_rest(ReadRequest& request);
};

std::unique_ptr<BatchReader> make_pread_reader();

// Throws Error(kStorage) that says why this process can't have io_uring.
std::unique_ptr<BatchReader> make_io_uring_reader();

// What kAuto comes to in this process, asked of the kernel once.
struct ResolvedIoScheme {
  IoScheme scheme;
  std::string reason;  // why kAuto came to kPread; else empty
};
const ResolvedIoScheme& resolve_auto_io_scheme();

}  // namespace embstore::medium
