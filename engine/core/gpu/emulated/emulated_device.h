// A GPU made of host memory. Whatever CUDA leaves open, this device draws from a seed.
//
// Work put on a stream waits there. At any call of the device some of it may run: how much, and of which
// stream, is drawn, within the order that streams and events demand. If the host waits, the work that it
// waits for runs, and perhaps more. Kernels and copies run in parts, between which other streams run. The
// same calls with the same seed run in the same order, so the schedule of a failed test can be repeated.
//
// A copy or kernel whose effect CUDA leaves undefined loses the device, with an error that says what
// happened. A free() of memory that isn't allocated throws Error(kInvalidArgument).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/device.h"
#include "gpu/emulated/draws.h"
#include "gpu/emulated/emulated_memory.h"
#include "gpu/emulated/operation.h"
#include "threads/mutex.h"

namespace embstore::gpu {

class EmulatedDevice : public Device {
 public:
  struct Options {
    size_t memory_bytes;
    uint64_t seed;
  };
  explicit EmulatedDevice(const Options& options);
  // Work that is still on streams is dropped.
  ~EmulatedDevice() override;

  std::string name() const override { return "emulated"; }

  DeviceAddress allocate(size_t bytes) override;
  void free(DeviceAddress address) override;
  MemorySize memory() override;
  void* allocate_pinned(size_t bytes) override;
  void free_pinned(void* memory) override;
  DeviceAddress address_of_pinned(void* memory) override;
  DeviceAddress try_pin(std::span<std::byte> memory) override;
  void unpin(std::span<std::byte> memory) override;

  Stream make_stream() override;
  void destroy(Stream stream) override;
  Event make_event() override;
  void destroy(Event event) override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool query(Event event) override;

  void copy_to_device(DeviceAddress to, const void* from, size_t bytes, Stream stream) override;
  void copy_to_host(void* to, DeviceAddress from, size_t bytes, Stream stream) override;
  void copy_on_device(DeviceAddress to, DeviceAddress from, size_t bytes, Stream stream) override;
  void fill(DeviceAddress to, uint8_t value, size_t bytes, Stream stream) override;
  void call_host(std::function<void()> function, Stream stream) override;

  // --- For tests

  // Returns the seed, and the operations that ran last with their streams, the newest at the end.
  std::string last_schedule() const;
  // Loses the device as if the GPU had failed by itself.
  void lose(const std::string& reason);

 protected:
  void launch_kernel(const AnyKernel& kernel, Grid grid, const void* arguments, Stream stream) override;
  void wait_for(Event event) override;
  void wait_for(Stream stream) override;

 private:
  class Call;
  struct Queue {
    std::deque<std::unique_ptr<emulated::Operation>> operations;
    uint64_t put = 0;   // number of operations that were ever put
    uint64_t done = 0;  // number of them that are done
    bool busy = false;  // in a function of the host
    bool destroyed = false;
  };
  struct Ran {
    uintptr_t stream;
    uint64_t number;
    std::string label;
    uint64_t parts;  // number of parts that ran one after the other
  };

  void check_usable() const REQUIRES(mutex_);
  Queue& queue_of(Stream stream) REQUIRES(mutex_);
  std::shared_ptr<emulated::Milestone>& milestone_of(Event event) REQUIRES(mutex_);
  void put(Stream stream, std::unique_ptr<emulated::Operation> operation) REQUIRES(mutex_);
  void copy(const char* what, emulated::CopyEnd to, emulated::CopyEnd from, size_t bytes, Stream stream)
      REQUIRES(mutex_);
  static emulated::CopyEnd on_device(DeviceAddress address);
  emulated::CopyEnd on_host(const void* memory) const REQUIRES(mutex_);

  bool can_run(const Queue& queue) const REQUIRES(mutex_);
  void run_part_of(Stream stream) REQUIRES(mutex_);
  void note_part(Stream stream, uint64_t number, const emulated::Operation& operation) REQUIRES(mutex_);
  // Runs a drawn number of parts, of drawn streams.
  void run_some() REQUIRES(mutex_);
  bool run_any() REQUIRES(mutex_);
  // Runs until the stream has done its first `done` operations.
  void run_until(Stream stream, uint64_t done) REQUIRES(mutex_);
  Stream first_in_the_way_of(Stream stream) REQUIRES(mutex_);
  bool is_done(Stream stream, uint64_t done) REQUIRES(mutex_);
  [[noreturn]] void fail(const std::string& reason) REQUIRES(mutex_);

  const uint64_t seed_;
  mutable Mutex mutex_;
  Condition host_function_ended_;
  emulated::Draws draws_ GUARDED_BY(mutex_);
  emulated::EmulatedMemory memory_ GUARDED_BY(mutex_);
  const uint64_t eagerness_;  // 0: nothing runs before it must; 3: most work runs soon
  uintptr_t next_handle_ GUARDED_BY(mutex_) = 1;
  std::map<uintptr_t, Queue> queues_ GUARDED_BY(mutex_);
  std::map<uintptr_t, std::shared_ptr<emulated::Milestone>> events_ GUARDED_BY(mutex_);
  std::map<std::string_view, uint64_t> launches_ GUARDED_BY(mutex_);  // by the kernel's name
  std::vector<Stream> can_run_ GUARDED_BY(mutex_);                    // used by run_any() alone
  std::deque<Ran> last_ran_ GUARDED_BY(mutex_);
  std::string lost_ GUARDED_BY(mutex_);  // the reason; empty: the device is not lost
};

}  // namespace embstore::gpu
