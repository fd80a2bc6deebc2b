// Opens a device by its name, once a process, whatever number of tables uses it.
#pragma once

#include <memory>
#include <string>

#include "gpu/device.h"

namespace embstore::gpu {

struct DeviceChoice {
  std::string name;             // "cuda" (the same as "cuda:0"), "cuda:N" or "emulated"
  std::string nvrtc;            // CUDA only: the path of libnvrtc.so.12; empty: it isn't installed
  std::string cache_directory;  // CUDA only: keeps compiled kernels; empty: each process compiles them
};

// Returns the device. It stays open as long as a caller holds it; a CUDA device stays open until the process
// ends. Throws Error(kInvalidArgument) for an unknown name or an invalid environment variable,
// Error(kMissingLibrary) or Error(kMissingDevice) if this computer has no such device. The emulated one has
// EMBSTORE_DEVICE_MEMORY bytes of memory (default: 4 GiB; the host gives only what is used) and the seed
// EMBSTORE_DEVICE_SEED (default: 0).
std::shared_ptr<Device> open_device(const DeviceChoice& choice);

}  // namespace embstore::gpu
