// The one seam to a GPU: its memory, streams, events, copies and kernels. Two devices stand behind it: cuda/
// is a GPU, emulated/ is host memory that behaves as a GPU does.
//
// Work that is put on a stream may run at any later time. It runs in the order of its stream, and streams are
// ordered among themselves only by events. Only synchronise() and copies from or to pageable host memory make
// the host wait. Every call may be made from any thread; work that several threads put on one stream runs in
// the order of their calls.
//
// Every call throws Error(kDeviceLost) once the device is lost: its memory, and the work on its streams, is
// gone. In a child of the process that opened the device, every call throws Error(kForked).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>

#include "errors/error.h"
#include "gpu/device_address.h"
#include "gpu/kernel.h"
#include "platform/fork.h"

namespace embstore::gpu {

// A stream's handle as the device's library knows it. So a stream that another library made (PyTorch's
// current one) can be used: Stream{its handle}. Zero is the default stream.
struct Stream {
  uintptr_t handle = 0;
  bool operator==(const Stream&) const = default;
};

// A point in a stream's work that other streams and the host can wait for. An event that was never recorded
// counts as reached.
struct Event {
  uintptr_t handle = 0;
  bool operator==(const Event&) const = default;
};

struct MemorySize {
  uint64_t total_bytes;
  uint64_t free_bytes;
};

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // The name as people use it: "NVIDIA H200", "emulated".
  virtual std::string name() const = 0;

  // --- Memory

  // Allocates uninitialised memory, aligned to 256 bytes. Throws Error(kStoreFull), which says how much
  // memory is free, and changes nothing. REQUIRES: bytes > 0.
  virtual DeviceAddress allocate(size_t bytes) = 0;
  // REQUIRES: nothing on a stream uses the memory any more.
  virtual void free(DeviceAddress address) = 0;
  virtual MemorySize memory() = 0;

  // Allocates pinned host memory: the device copies from and to it by itself, while the host goes on. Data
  // that a stream reads from it must stay until the stream has read it.
  virtual void* allocate_pinned(size_t bytes) = 0;
  virtual void free_pinned(void* memory) = 0;
  // Returns the address at which kernels reach pinned memory. They read it across the bus: use it for lists
  // and counts, and for rows whose number the host doesn't know.
  virtual DeviceAddress address_of_pinned(void* memory) = 0;

  // Pins host memory that isn't the device's own until unpin(), and returns the address at which kernels
  // reach it; returns no address if the system refuses. Pinned memory is backed by physical memory as a
  // whole, and a child process doesn't inherit it. REQUIRES: whole pages, none of which is given back to the
  // system meanwhile.
  virtual DeviceAddress try_pin(std::span<std::byte> memory) = 0;
  // REQUIRES: nothing on a stream uses the memory any more.
  virtual void unpin(std::span<std::byte> memory) = 0;

  // --- Streams and events

  virtual Stream make_stream() = 0;
  // Work on the stream still runs to its end.
  virtual void destroy(Stream stream) = 0;
  virtual Event make_event() = 0;
  virtual void destroy(Event event) = 0;

  // The event is reached when all work that is on the stream now is done.
  virtual void record(Event event, Stream stream) = 0;
  // Makes work put on the stream later wait for the event, as it was last recorded. The host does not wait.
  virtual void wait(Stream stream, Event event) = 0;
  virtual bool query(Event event) = 0;

  // Makes the host wait until the event is reached, or until all work of the stream is done.
  void synchronise(Event event) {
    count_host_wait();
    wait_for(event);
  }
  void synchronise(Stream stream) {
    count_host_wait();
    wait_for(stream);
  }
  // Returns how often the host waited, or may have: counts synchronise(), copies from and to pageable memory,
  // and allocations and frees, which CUDA may do only when all streams have ended. A step that is to be quick
  // does none of these.
  uint64_t host_waits() const { return host_waits_.load(std::memory_order_relaxed); }

  // --- Work on streams

  // A copy reads or writes pinned memory when the stream gets there. It no longer needs pageable memory when
  // the call returns, for which the host may have to wait.
  virtual void copy_to_device(DeviceAddress to, const void* from, size_t bytes, Stream stream) = 0;
  virtual void copy_to_host(void* to, DeviceAddress from, size_t bytes, Stream stream) = 0;
  virtual void copy_on_device(DeviceAddress to, DeviceAddress from, size_t bytes, Stream stream) = 0;
  virtual void fill(DeviceAddress to, uint8_t value, size_t bytes, Stream stream) = 0;
  // Runs a function of the host when the stream gets there; the stream goes on when it returns. The function
  // must neither use the device, nor wait for a thread that does, nor throw. It is never called if the device
  // is lost before.
  virtual void call_host(std::function<void()> function, Stream stream) = 0;
  template <class Arguments>
  void launch(const Kernel<Arguments>& kernel, Grid grid, const std::type_identity_t<Arguments>& arguments,
              Stream stream) {
    launch_runs(kernel, grid.block_threads, {&grid.blocks, 1}, &arguments, stream);
  }
  // A kernel with its type of arguments erased: their size in bytes, the most runs in a launch, and the size
  // of a launch's parameter.
  struct AnyKernel {
    template <class Arguments>
    AnyKernel(const Kernel<Arguments>& kernel)
        : name(kernel.name),
          run(kernel.run),
          argument_bytes(sizeof(Arguments)),
          max_runs(Runs<Arguments>::kMax),
          launch_bytes(sizeof(Runs<Arguments>)) {
      static_assert(std::is_trivially_copyable_v<Arguments>);
      static_assert(alignof(Arguments) >= alignof(uint32_t));  // so blocks follow arguments without padding
    }

    const char* name;
    void (*run)(const void* runs);
    uint32_t argument_bytes;
    uint32_t max_runs;
    uint32_t launch_bytes;
  };
  // Launches runs of a kernel that don't depend on each other, as few launches as possible. Run r has
  // blocks[r] blocks; `arguments` has the arguments of all runs, one after the other.
  void launch_runs(const AnyKernel& kernel, uint32_t block_threads, std::span<const uint32_t> blocks,
                   const void* arguments, Stream stream);

 protected:
  // Copies the arguments before it returns.
  virtual void launch_kernel(const AnyKernel& kernel, Grid grid, const void* arguments, Stream stream) = 0;
  virtual void wait_for(Event event) = 0;
  virtual void wait_for(Stream stream) = 0;
  bool is_inherited() const { return inherited(made_in_); }
  void check_not_inherited() const {
    if (!is_inherited()) return;
    throw Error(ErrorKind::kForked,
                "the GPU was opened by the process that this one was forked from; start workers by spawn");
  }
  void count_host_wait() { host_waits_.fetch_add(1, std::memory_order_relaxed); }

 private:
  const ForkGeneration made_in_ = fork_generation();
  std::atomic<uint64_t> host_waits_{0};
};

}  // namespace embstore::gpu
