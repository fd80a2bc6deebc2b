// The part of CUDA's driver API that the engine uses, loaded from libcuda.so.1 when a device is opened.
// Names, numbers and parameters are those of NVIDIA's documentation; building the engine needs no header of
// CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "platform/shared_library.h"

namespace embstore::gpu::cuda {

using Result = int;
using DeviceNumber = int;
using DevicePointer = unsigned long long;
using Handle = struct Opaque*;  // a context, module, function, stream or event

inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialised = 3;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kUnsupportedPtxVersion = 222;
inline constexpr Result kNotReady = 600;

class Driver {
 public:
  // Throws Error(kMissingLibrary) if there is no driver, Error(kMissingDevice) if the driver finds no GPU.
  explicit Driver(const std::string& library);

  // Returns the result's name and text: "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was
  // encountered)".
  std::string named(Result result) const;

  Result (*init)(unsigned flags);
  Result (*driver_get_version)(int* version);
  Result (*get_error_name)(Result, const char** name);
  Result (*get_error_string)(Result, const char** text);

  Result (*device_get_count)(int* count);
  Result (*device_get)(DeviceNumber*, int ordinal);
  Result (*device_get_name)(char* name, int bytes, DeviceNumber);
  Result (*device_get_attribute)(int* value, int attribute, DeviceNumber);
  Result (*primary_context_retain)(Handle* context, DeviceNumber);
  Result (*primary_context_release)(DeviceNumber);
  Result (*context_push)(Handle context);
  Result (*context_pop)(Handle* context);

  Result (*memory_info)(size_t* free, size_t* total);
  Result (*memory_allocate)(DevicePointer*, size_t bytes);
  Result (*memory_free)(DevicePointer);
  Result (*host_allocate)(void** memory, size_t bytes, unsigned flags);
  Result (*host_free)(void* memory);
  Result (*host_register)(void* memory, size_t bytes, unsigned flags);
  Result (*host_unregister)(void* memory);
  Result (*host_device_pointer)(DevicePointer*, void* memory, unsigned flags);
  Result (*pointer_attributes)(unsigned count, int* attributes, void** values, DevicePointer);

  Result (*stream_create)(Handle*, unsigned flags);
  Result (*stream_destroy)(Handle);
  Result (*stream_synchronize)(Handle);
  Result (*stream_wait_event)(Handle stream, Handle event, unsigned flags);
  Result (*event_create)(Handle*, unsigned flags);
  Result (*event_destroy)(Handle);
  Result (*event_record)(Handle event, Handle stream);
  Result (*event_query)(Handle);
  Result (*event_synchronize)(Handle);

  Result (*copy_to_device)(DevicePointer to, const void* from, size_t bytes, Handle stream);
  Result (*copy_to_host)(void* to, DevicePointer from, size_t bytes, Handle stream);
  Result (*copy_on_device)(DevicePointer to, DevicePointer from, size_t bytes, Handle stream);
  Result (*fill_bytes)(DevicePointer to, unsigned char value, size_t bytes, Handle stream);
  Result (*launch_host_function)(Handle stream, void (*function)(void*), void* argument);
  Result (*launch_kernel)(Handle function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                          unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                          Handle stream, void** parameters, void** extra);

  Result (*module_load)(Handle* module, const void* image);
  Result (*module_unload)(Handle module);
  Result (*module_get_function)(Handle* function, Handle module, const char* name);

 private:
  const SharedLibrary library_;
};

}  // namespace embstore::gpu::cuda
