#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "files/descriptor_cache.h"
#include "files/file_error.h"
#include "tiers/medium/batch_reader.h"

#if defined(EMBSTORE_HAS_LIBURING)

// liburing's inline functions don't compile cleanly with our warnings.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <liburing.h>
#pragma GCC diagnostic pop

namespace embstore::medium {
namespace {

constexpr unsigned kDepth = 128;

// A ring, which is closed while it's idle and its descriptor is needed elsewhere.
class Ring final : public files::CachedDescriptor {
 public:
  Ring() { open(); }
  ~Ring() { forget(); }

  // REQUIRES: pinned.
  io_uring* get() { return &ring_; }

 private:
  int open_descriptor() const override {
    const int result = io_uring_queue_init(kDepth, &ring_, 0);
    if (result < 0) {
      throw files::FileError(
          "io_uring",
          "can't be had here: the kernel is too old, kernel.io_uring_disabled is set, or a "
          "container's seccomp profile forbids it; choose the scheme auto or pread",
          -result);
    }
    return ring_.ring_fd;
  }
  void close_descriptor(int) const override { io_uring_queue_exit(&ring_); }
  bool must_sync_before_close() const override { return false; }
  void sync_before_close() const override {}

  mutable io_uring ring_;
};

class IoUringReader final : public BatchReader {
 public:
  IoUringReader() {  // reserves, since a read that ran out of memory would leave its files pinned
    pins_.reserve(kDepth);
    descriptors_.reserve(kDepth);
  }

  size_t rounds_of(size_t requests) const override { return (requests + kDepth - 1) / kDepth; }

  void read(std::span<ReadRequest> requests) override {
    for (size_t first = 0; first < requests.size();) {
      size_t count = 1;
      if (const files::CachedDescriptor::Pin ring = pin_ring()) {
        count = pin_files(requests.subspan(first));
        read_some(requests.subspan(first, count));
        pins_.clear();
      } else {
        requests[first].bytes_read = 0;
      }
      // pread completes what the ring left (the file's end, an error), and names the file in its errors.
      for (ReadRequest& request : requests.subspan(first, count)) {
        if (request.bytes_read < request.bytes) read_rest(request);
      }
      first += count;
    }
  }

 private:
  // Returns an empty pin if the ring isn't available, or broke.
  files::CachedDescriptor::Pin pin_ring() const {
    if (broken_) return {};
    try {
      return ring_.pin();
    } catch (const files::FileError&) {
      return {};
    }
  }

  // Pins the files of the first requests, as many as the ring takes and there are descriptors for. Returns
  // the number of requests: at least one, which pread gets if its file can't be opened.
  size_t pin_files(std::span<ReadRequest> requests) {
    size_t count = 0;
    const files::File* last = nullptr;
    descriptors_.clear();
    for (; count < requests.size() && count < kDepth; ++count) {
      const files::File* const file = requests[count].file;
      if (file != last) {
        files::File::Pin pin;
        try {
          pin = pins_.empty() ? file->pin() : file->try_pin();
        } catch (const files::FileError&) {
        }
        if (!pin) break;
        pins_.push_back(std::move(pin));
        last = file;
      }
      descriptors_.push_back(pins_.back().number());
    }
    return std::max<size_t>(count, 1);
  }

  // Reads the requests whose files are pinned. REQUIRES: none is under way.
  void read_some(std::span<ReadRequest> requests) {
    for (size_t i = 0; i < requests.size(); ++i) {
      ReadRequest& request = requests[i];
      request.bytes_read = 0;
      if (i >= descriptors_.size()) continue;
      io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
      io_uring_prep_read(entry, descriptors_[i], request.data, static_cast<unsigned>(request.bytes),
                         request.offset);
      io_uring_sqe_set_data(entry, &request);
    }
    // Waits for the last one, whatever happens: the kernel writes to the requests' memory.
    auto unsubmitted = static_cast<unsigned>(descriptors_.size());
    unsigned under_way = 0;
    while (unsubmitted + under_way > 0) {
      const int submitted = io_uring_submit_and_wait(ring_.get(), unsubmitted + under_way);
      if (submitted >= 0) {
        unsubmitted -= static_cast<unsigned>(submitted);
        under_way += static_cast<unsigned>(submitted);
      } else if (submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        // The ring holds requests that the kernel refuses: it isn't used again.
        broken_ = true;
        await(under_way);
        return;
      }
      under_way -= reap();
    }
  }

  void await(unsigned under_way) {
    while (under_way > 0) {
      io_uring_cqe* entry = nullptr;
      if (io_uring_wait_cqe(ring_.get(), &entry) == 0) under_way -= reap();
    }
  }

  unsigned reap() {
    io_uring_cqe* entries[kDepth];
    const unsigned count = io_uring_peek_batch_cqe(ring_.get(), entries, kDepth);
    for (unsigned i = 0; i < count; ++i) {
      auto* request = static_cast<ReadRequest*>(io_uring_cqe_get_data(entries[i]));
      if (entries[i]->res > 0) request->bytes_read = static_cast<size_t>(entries[i]->res);
    }
    io_uring_cq_advance(ring_.get(), count);
    return count;
  }

  Ring ring_;
  bool broken_ = false;
  std::vector<files::File::Pin> pins_;
  std::vector<int> descriptors_;  // of the requests' files
};

}  // namespace

std::unique_ptr<BatchReader> make_io_uring_reader() { return std::make_unique<IoUringReader>(); }

}  // namespace embstore::medium

#else

#include "errors/error.h"

namespace embstore::medium {

std::unique_ptr<BatchReader> make_io_uring_reader() {
  throw Error(ErrorKind::kStorage,
              "io_uring can't be had here: the engine was built without liburing; install liburing-dev "
              "and build it again, or choose the scheme auto or pread");
}

}  // namespace embstore::medium

#endif
