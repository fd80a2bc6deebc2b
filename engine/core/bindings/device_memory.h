// Arrays in a GPU's memory that Python owns, and their exchange by DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <tuple>

#include "gpu/open_device.h"

namespace embstore {

// The name of the GPU, the path of NVRTC, and the folder of compiled kernels; see gpu::DeviceChoice.
using GpuTuple = std::tuple<std::string, std::string, std::string>;

inline gpu::DeviceChoice to_device_choice(const GpuTuple& tuple) {
  const auto& [name, nvrtc, cache_directory] = tuple;
  return {.name = name, .nvrtc = nvrtc, .cache_directory = cache_directory};
}

void bind_device_memory(nanobind::module_& module);

}  // namespace embstore
