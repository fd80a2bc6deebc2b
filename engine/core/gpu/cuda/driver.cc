#include "gpu/cuda/driver.h"

#include "errors/error.h"
#include "platform/fork.h"

namespace embstore::gpu::cuda {

Driver::Driver(const std::string& library)
    : library_(library,
               {"install NVIDIA's driver, and in a container give it the GPU (docker run --gpus all); or "
                "try it without one: EMBSTORE_DEVICE=emulated"}) {
  library_.load(init, "cuInit");
  library_.load(driver_get_version, "cuDriverGetVersion");
  library_.load(get_error_name, "cuGetErrorName");
  library_.load(get_error_string, "cuGetErrorString");
  library_.load(device_get_count, "cuDeviceGetCount");
  library_.load(device_get, "cuDeviceGet");
  library_.load(device_get_name, "cuDeviceGetName");
  library_.load(device_get_attribute, "cuDeviceGetAttribute");
  library_.load(primary_context_retain, "cuDevicePrimaryCtxRetain");
  library_.load(primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  library_.load(context_push, "cuCtxPushCurrent_v2");
  library_.load(context_pop, "cuCtxPopCurrent_v2");
  library_.load(memory_info, "cuMemGetInfo_v2");
  library_.load(memory_allocate, "cuMemAlloc_v2");
  library_.load(memory_free, "cuMemFree_v2");
  library_.load(host_allocate, "cuMemHostAlloc");
  library_.load(host_free, "cuMemFreeHost");
  library_.load(host_register, "cuMemHostRegister_v2");
  library_.load(host_unregister, "cuMemHostUnregister");
  library_.load(host_device_pointer, "cuMemHostGetDevicePointer_v2");
  library_.load(pointer_attributes, "cuPointerGetAttributes");
  library_.load(stream_create, "cuStreamCreate");
  library_.load(stream_destroy, "cuStreamDestroy_v2");
  library_.load(stream_synchronize, "cuStreamSynchronize");
  library_.load(stream_wait_event, "cuStreamWaitEvent");
  library_.load(event_create, "cuEventCreate");
  library_.load(event_destroy, "cuEventDestroy_v2");
  library_.load(event_record, "cuEventRecord");
  library_.load(event_query, "cuEventQuery");
  library_.load(event_synchronize, "cuEventSynchronize");
  library_.load(copy_to_device, "cuMemcpyHtoDAsync_v2");
  library_.load(copy_to_host, "cuMemcpyDtoHAsync_v2");
  library_.load(copy_on_device, "cuMemcpyDtoDAsync_v2");
  library_.load(fill_bytes, "cuMemsetD8Async");
  library_.load(launch_host_function, "cuLaunchHostFunc");
  library_.load(launch_kernel, "cuLaunchKernel");
  library_.load(module_load, "cuModuleLoadData");
  library_.load(module_unload, "cuModuleUnload");
  library_.load(module_get_function, "cuModuleGetFunction");

  const Result result = init(0);
  if (result == kNotInitialised && fork_generation() != kFirstGeneration) {
    throw Error(ErrorKind::kForked,
                "CUDA was in use in the process that this one was forked from, and can't be used here; start "
                "workers by spawn");
  }
  if (result != kSuccess) {
    throw Error(ErrorKind::kMissingDevice,
                "no GPU can be used: " + named(result) +
                    "; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or try it without one: "
                    "EMBSTORE_DEVICE=emulated");
  }
}

std::string Driver::named(Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(result, &name) != kSuccess || name == nullptr) {
    return "CUDA error " + std::to_string(result);
  }
  if (get_error_string(result, &text) != kSuccess || text == nullptr) return name;
  return std::string(name) + " (" + text + ")";
}

}  // namespace embstore::gpu::cuda
