// Reads pieces of files in batches: by io_uring if the kernel has it, else one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "files/file.h"

namespace embstore::medium {

enum class IoScheme {
  kAuto,     // mapped pages for rows in the page cache; for others io_uring, or pread if the kernel has none
  kIoUring,  // for all rows, or an error
  kPread,    // for all rows
};

struct ReadRequest {
  const files::File* file;
  uint64_t offset;
  std::byte* data;
  size_t bytes;
  size_t bytes_read;    // set by read(); less than `bytes` only if the file ends or can't be read
  std::string failure;  // set by read(): why it can't be read; else empty
};

// One thread at a time may use a reader.
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  // Executes all requests; none is under way on return. An error of one file is stored in its requests, and
  // the others are read.
  virtual void read(std::span<ReadRequest> requests) = 0;
  // Returns how many rounds `requests` requests take: those of one round are in flight together.
  virtual size_t rounds_of(size_t requests) const = 0;

 protected:
  // Reads the rest of a request by pread, after its bytes_read bytes.
  static void read_rest(ReadRequest& request);
};

std::unique_ptr<BatchReader> make_pread_reader();

// Throws Error(kStorage), which says why, if this process can't have io_uring.
std::unique_ptr<BatchReader> make_io_uring_reader();

// The scheme that kAuto stands for in this process; the kernel is asked once.
struct ResolvedIoScheme {
  IoScheme scheme;
  std::string reason;  // why kAuto stands for kPread; else empty
};
const ResolvedIoScheme& resolve_auto_io_scheme();

}  // namespace embstore::medium
