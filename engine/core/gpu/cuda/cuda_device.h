// A GPU of NVIDIA's, driven through the driver API. Calls are made in the device's primary context, which
// PyTorch uses too; an error code of the driver becomes an Error.
#pragma once

#include <map>
#include <string>

#include "gpu/cuda/driver.h"
#include "gpu/device.h"
#include "threads/mutex.h"

namespace embstore::gpu {

class CudaDevice final : public Device {
 public:
  struct Options {
    int ordinal = 0;              // among the GPUs that CUDA_VISIBLE_DEVICES shows
    std::string nvrtc;            // path of libnvrtc.so.12
    std::string cache_directory;  // keeps compiled kernels; empty: each process compiles them
    std::string driver = "libcuda.so.1";
  };
  // Throws Error(kMissingLibrary) without a driver or NVRTC, Error(kMissingDevice) without the GPU.
  explicit CudaDevice(const Options& options);
  ~CudaDevice() override;

  std::string name() const override { return name_; }

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

 protected:
  void launch_kernel(const AnyKernel& kernel, Grid grid, const void* arguments, Stream stream) override;
  void wait_for(Event event) override;
  void wait_for(Stream stream) override;

 private:
  class InContext;

  // Throws an Error unless the result is success. Some results lose the device.
  void check(cuda::Result result, const std::string& what) EXCLUDES(mutex_);
  void check_not_lost() EXCLUDES(mutex_);
  bool is_pinned(const void* memory);
  cuda::Handle function(const char* kernel) EXCLUDES(mutex_);
  void load_kernels(const Options& options);

  cuda::Driver driver_;
  cuda::DeviceNumber device_ = 0;
  std::string name_;
  cuda::Handle context_ = nullptr;
  cuda::Handle module_ = nullptr;
  Mutex mutex_;
  std::string lost_ GUARDED_BY(mutex_);  // the reason; empty: the device is not lost
  std::map<std::string, cuda::Handle> functions_ GUARDED_BY(mutex_);
};

}  // namespace embstore::gpu
