#include "gpu/cuda/cuda_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "errors/error.h"
#include "gpu/cuda/kernel_sources.h"
#include "gpu/cuda/nvrtc.h"
#include "gpu/cuda/ptx_cache.h"
#include "memory/huge_pages.h"
#include "threads/shared_work.h"

namespace embstore::gpu {

using cuda::DevicePointer;
using cuda::Handle;
using cuda::kSuccess;
using cuda::Result;

namespace {

// Numbers of the driver API.
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;
constexpr unsigned kPortable = 1;     // pinned memory: for all contexts
constexpr unsigned kMapped = 2;       // pinned memory: kernels reach it
constexpr unsigned kNonBlocking = 1;  // a stream: doesn't wait for the default stream
// An event: a thread that waits for it sleeps, and leaves the processor to the threads that it waits for.
constexpr unsigned kBlockingSync = 1;
constexpr unsigned kDisableTiming = 2;
constexpr int kMemoryType = 2;  // attribute of a pointer
constexpr unsigned kHostMemory = 1;

// After these errors the context can't be used any more, and every later call returns them again.
bool loses_the_device(Result result) {
  switch (result) {
    case 4:    // deinitialized
    case 201:  // the context is invalid although the device holds it: another process has reset the GPU
    case 214:  // uncorrectable ECC error
    case 220:  // uncorrectable NVLink error
    case 226:  // a contained error of the hardware, or of access to another GPU
    case 700:  // illegal address
    case 702:  // launch timeout
    case 709:  // context is destroyed
    case 710:  // assert
    case 714:  // hardware stack error
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // launch failed
    case 721:  // tensor memory leak
    case 810:  // the server through which processes share a GPU has ended this client
    case 911:  // an error of a device outside CUDA
    case 999:  // unknown
      return true;
    default: return false;
  }
}

Handle handle_of(Stream stream) { return reinterpret_cast<Handle>(stream.handle); }
Handle handle_of(Event event) { return reinterpret_cast<Handle>(event.handle); }

// Backs memory with pages, by several threads: pinning would have the system do that page by page, which
// takes seconds for some ten gigabytes.
void back_pages_together(std::span<std::byte> memory) {
  constexpr size_t kAPiece = size_t{64} << 20;
  const size_t pieces = (memory.size() + kAPiece - 1) / kAPiece;
  for_each_piece(pieces, HelpingThreads::max_threads(), [&](size_t piece) {
    const std::span<std::byte> part = memory.subspan(piece * kAPiece);
    back_pages(part.data(), std::min(part.size(), kAPiece));
  });
}

void call_and_delete(void* function) {
  const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(function));
  (*owned)();
}

}  // namespace

// Makes the context current for the calling thread, and restores the thread's previous context at its end, as
// PyTorch expects.
class CudaDevice::InContext {
 public:
  explicit InContext(CudaDevice& device) : driver_(device.driver_) {
    device.check_not_inherited();
    device.check_not_lost();
    device.check(driver_.context_push(device.context_), "make its context current");
  }
  ~InContext() {
    Handle popped = nullptr;
    driver_.context_pop(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const cuda::Driver& driver_;
};

CudaDevice::CudaDevice(const Options& options) : driver_(options.driver) {
  int count = 0;
  check(driver_.device_get_count(&count), "count the GPUs");
  if (options.ordinal < 0 || options.ordinal >= count) {
    throw Error(ErrorKind::kMissingDevice, "there is no GPU " + std::to_string(options.ordinal) + ": " +
                                               std::to_string(count) +
                                               " can be seen; look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  check(driver_.device_get(&device_, options.ordinal), "open the GPU");
  char name[256] = {};
  check(driver_.device_get_name(name, sizeof(name), device_), "tell its name");
  name_ = name;
  check(driver_.primary_context_retain(&context_, device_), "get its context");
  try {
    load_kernels(options);
  } catch (const Error&) {
    driver_.primary_context_release(device_);
    throw;
  }
}

CudaDevice::~CudaDevice() {
  if (is_inherited()) return;
  // If the device is lost, these calls fail, and nothing is left to free.
  if (driver_.context_push(context_) == kSuccess) {
    driver_.module_unload(module_);
    Handle popped = nullptr;
    driver_.context_pop(&popped);
  }
  driver_.primary_context_release(device_);
}

void CudaDevice::load_kernels(const Options& options) {
  if (options.nvrtc.empty()) {
    throw Error(
        ErrorKind::kMissingLibrary,
        "the GPU's kernels are compiled by NVRTC, which isn't installed: pip install 'embstore[gpu]'");
  }
  int major = 0;
  int minor = 0;
  check(driver_.device_get_attribute(&major, kCapabilityMajor, device_), "tell its compute capability");
  check(driver_.device_get_attribute(&minor, kCapabilityMinor, device_), "tell its compute capability");
  const cuda::Nvrtc nvrtc(options.nvrtc);
  const std::string ptx = cuda::PtxCache(options.cache_directory)
                              .compiled(nvrtc, kernel_sources(), nvrtc.architecture_for(10 * major + minor));
  const InContext in_context(*this);
  const Result loaded = driver_.module_load(&module_, ptx.c_str());
  if (loaded == cuda::kUnsupportedPtxVersion) {
    throw Error(ErrorKind::kMissingLibrary,
                "the driver is older than NVRTC " + nvrtc.version() + " (" + driver_.named(loaded) +
                    "); update the driver, or install an older nvidia-cuda-nvrtc-cu12");
  }
  check(loaded, "load the kernels");
}

void CudaDevice::check_not_lost() {
  const MutexLock lock(mutex_);
  if (!lost_.empty()) throw Error(ErrorKind::kDeviceLost, lost_);
}

void CudaDevice::check(Result result, const std::string& what) {
  if (result == kSuccess) return;
  const std::string message =
      (name_.empty() ? "the GPU" : name_) + " can't " + what + ": " + driver_.named(result);
  if (!loses_the_device(result)) throw Error(ErrorKind::kInvalidArgument, message);
  const MutexLock lock(mutex_);
  if (lost_.empty()) {
    lost_ = message +
            "; it is lost to this process, and what its memory held is gone: start the process again, and "
            "restore the last checkpoint";
  }
  throw Error(ErrorKind::kDeviceLost, lost_);
}

// --- Memory

DeviceAddress CudaDevice::allocate(size_t bytes) {
  const InContext in_context(*this);
  count_host_wait();
  DevicePointer address = 0;
  const Result result = driver_.memory_allocate(&address, bytes);
  if (result == cuda::kOutOfMemory) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    driver_.memory_info(&free_bytes, &total_bytes);
    throw Error(ErrorKind::kStoreFull, name_ + " is out of memory: " + std::to_string(bytes) +
                                           " bytes were asked for, and " + std::to_string(free_bytes) +
                                           " of " + std::to_string(total_bytes) +
                                           " are free; give the tier less, or end what else uses the GPU");
  }
  check(result, "allocate " + std::to_string(bytes) + " bytes");
  return {address};
}

void CudaDevice::free(DeviceAddress address) {
  const InContext in_context(*this);
  count_host_wait();
  check(driver_.memory_free(address.value), "free memory");
}

MemorySize CudaDevice::memory() {
  const InContext in_context(*this);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(driver_.memory_info(&free_bytes, &total_bytes), "tell how much memory is free");
  return {total_bytes, free_bytes};
}

void* CudaDevice::allocate_pinned(size_t bytes) {
  const InContext in_context(*this);
  count_host_wait();
  void* memory = nullptr;
  const Result result = driver_.host_allocate(&memory, bytes, kPortable | kMapped);
  if (result == cuda::kOutOfMemory) {
    throw Error(ErrorKind::kStoreFull, "the system can't pin " + std::to_string(bytes) +
                                           " bytes of memory for " + name_ +
                                           "; give the tier smaller batches");
  }
  check(result, "pin " + std::to_string(bytes) + " bytes");
  return memory;
}

void CudaDevice::free_pinned(void* memory) {
  const InContext in_context(*this);
  count_host_wait();
  check(driver_.host_free(memory), "free pinned memory");
}

DeviceAddress CudaDevice::address_of_pinned(void* memory) {
  const InContext in_context(*this);
  DevicePointer address = 0;
  check(driver_.host_device_pointer(&address, memory, 0), "reach pinned memory");
  return {address};
}

DeviceAddress CudaDevice::try_pin(std::span<std::byte> memory) {
  const InContext in_context(*this);
  count_host_wait();
  // After a fork, a process writes to copies of shared pages, which the device doesn't see, unless the child
  // doesn't get the pages.
  if (madvise(memory.data(), memory.size(), MADV_DONTFORK) != 0) return {};
  back_pages_together(memory);
  const Result result = driver_.host_register(memory.data(), memory.size(), kPortable | kMapped);
  if (result == kSuccess) return address_of_pinned(memory.data());
  madvise(memory.data(), memory.size(), MADV_DOFORK);
  if (loses_the_device(result)) check(result, "pin " + std::to_string(memory.size()) + " bytes");
  return {};
}

void CudaDevice::unpin(std::span<std::byte> memory) {
  const InContext in_context(*this);
  count_host_wait();
  check(driver_.host_unregister(memory.data()), "unpin memory");
  madvise(memory.data(), memory.size(), MADV_DOFORK);
}

// Memory that PyTorch or another library pinned counts too. For other host memory the driver has no type and
// returns an error, which is expected.
bool CudaDevice::is_pinned(const void* memory) {
  unsigned type = 0;
  int attribute = kMemoryType;
  void* value = &type;
  const auto address = reinterpret_cast<DevicePointer>(memory);
  return driver_.pointer_attributes(1, &attribute, &value, address) == kSuccess && type == kHostMemory;
}

// --- Streams and events

Stream CudaDevice::make_stream() {
  const InContext in_context(*this);
  Handle stream = nullptr;
  check(driver_.stream_create(&stream, kNonBlocking), "make a stream");
  return {reinterpret_cast<uintptr_t>(stream)};
}

void CudaDevice::destroy(Stream stream) {
  const InContext in_context(*this);
  check(driver_.stream_destroy(handle_of(stream)), "destroy a stream");
}

Event CudaDevice::make_event() {
  const InContext in_context(*this);
  Handle event = nullptr;
  check(driver_.event_create(&event, kBlockingSync | kDisableTiming), "make an event");
  return {reinterpret_cast<uintptr_t>(event)};
}

void CudaDevice::destroy(Event event) {
  const InContext in_context(*this);
  check(driver_.event_destroy(handle_of(event)), "destroy an event");
}

void CudaDevice::record(Event event, Stream stream) {
  const InContext in_context(*this);
  check(driver_.event_record(handle_of(event), handle_of(stream)), "record an event");
}

void CudaDevice::wait(Stream stream, Event event) {
  const InContext in_context(*this);
  check(driver_.stream_wait_event(handle_of(stream), handle_of(event), 0), "let a stream wait for an event");
}

bool CudaDevice::query(Event event) {
  const InContext in_context(*this);
  const Result result = driver_.event_query(handle_of(event));
  if (result == cuda::kNotReady) return false;
  check(result, "tell whether an event was reached");
  return true;
}

void CudaDevice::wait_for(Event event) {
  const InContext in_context(*this);
  check(driver_.event_synchronize(handle_of(event)), "reach an event");
}

void CudaDevice::wait_for(Stream stream) {
  const InContext in_context(*this);
  check(driver_.stream_synchronize(handle_of(stream)), "end what is on a stream");
}

// --- Work on streams

void CudaDevice::copy_to_device(DeviceAddress to, const void* from, size_t bytes, Stream stream) {
  const InContext in_context(*this);
  if (!is_pinned(from)) count_host_wait();
  check(driver_.copy_to_device(to.value, from, bytes, handle_of(stream)), "copy from the host");
}

void CudaDevice::copy_to_host(void* to, DeviceAddress from, size_t bytes, Stream stream) {
  const InContext in_context(*this);
  if (!is_pinned(to)) count_host_wait();
  check(driver_.copy_to_host(to, from.value, bytes, handle_of(stream)), "copy to the host");
}

void CudaDevice::copy_on_device(DeviceAddress to, DeviceAddress from, size_t bytes, Stream stream) {
  const InContext in_context(*this);
  check(driver_.copy_on_device(to.value, from.value, bytes, handle_of(stream)), "copy its memory");
}

void CudaDevice::fill(DeviceAddress to, uint8_t value, size_t bytes, Stream stream) {
  const InContext in_context(*this);
  check(driver_.fill_bytes(to.value, value, bytes, handle_of(stream)), "fill its memory");
}

void CudaDevice::call_host(std::function<void()> function, Stream stream) {
  const InContext in_context(*this);
  auto owned = std::make_unique<std::function<void()>>(std::move(function));
  check(driver_.launch_host_function(handle_of(stream), &call_and_delete, owned.get()), "call the host");
  static_cast<void>(owned.release());  // the call deletes it
}

void CudaDevice::launch_kernel(const AnyKernel& kernel, Grid grid, const void* arguments, Stream stream) {
  const InContext in_context(*this);
  void* parameters[] = {const_cast<void*>(arguments)};  // the driver copies them
  check(driver_.launch_kernel(function(kernel.name), grid.blocks, grid.runs, 1, grid.block_threads, 1, 1, 0,
                              handle_of(stream), parameters, nullptr),
        std::string("launch ") + kernel.name);
}

Handle CudaDevice::function(const char* kernel) {
  {
    const MutexLock lock(mutex_);
    const auto found = functions_.find(kernel);
    if (found != functions_.end()) return found->second;
  }
  Handle function = nullptr;
  check(driver_.module_get_function(&function, module_, kernel), std::string("find ") + kernel);
  const MutexLock lock(mutex_);
  functions_.emplace(kernel, function);
  return function;
}

}  // namespace embstore::gpu
