#include "tiers/medium/batch_reader.h"

#include "errors/error.h"
#include "platform/process_local.h"

namespace embstore::medium {
namespace {

class PreadReader final : public BatchReader {
 public:
  void read(std::span<ReadRequest> requests) override {
    for (ReadRequest& request : requests) {
      request.bytes_read = 0;
      read_rest(request);
    }
  }

  size_t rounds_of(size_t requests) const override { return requests; }
};

ResolvedIoScheme try_io_uring() {
  try {
    make_io_uring_reader();
    return {IoScheme::kIoUring, ""};
  } catch (const Error& error) {
    return {IoScheme::kPread, error.what()};
  }
}

}  // namespace

void BatchReader::read_rest(ReadRequest& request) {
  const size_t done = request.bytes_read;
  try {
    request.bytes_read +=
        request.file->read_uncounted(request.data + done, request.bytes - done, request.offset + done);
  } catch (const files::FileError& error) {
    request.failure = error.what();
  }
}

std::unique_ptr<BatchReader> make_pread_reader() { return std::make_unique<PreadReader>(); }

const ResolvedIoScheme& resolve_auto_io_scheme() {
  struct Resolved : ResolvedIoScheme {
    Resolved() : ResolvedIoScheme(try_io_uring()) {}
  };
  return ProcessLocal<Resolved>::get();
}

}  // namespace embstore::medium
