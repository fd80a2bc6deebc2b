// Opens a device by its name: once a process, however many tables use it.
#pragma once

#include <memory>
#include <string>

#include "gpu/device.h"

namespace embstore::gpu {

struct DeviceChoice {
  std::string name;             // "cuda", which is "cuda:0", "cuda:N" or "emulated"
  std::string nvrtc;            // of CUDA: the path of libnvrtc.so.12; empty: it isn't installed
  std::string cache_directory;  // of CUDA: of compiled kernels; empty: they are compiled each time
};

// The device stays open as long as anybody holds it. Throws Error(kInvalidArgument) for a name, or a variable of the
// environment, that means nothing; Error(kMissingLibrary) or Error(kMissingDevice) where there is no such device here. The emulated
// one has EMBSTORE_DEVICE_MEMORY bytes of memory (4 GiB, of which the host gives what is used) and the seed
// EMBSTORE_DEVICE_SEED (0).
std::shared_ptr<Device> open_device(const DeviceChoice& choice);

}  // namespace embstore::gpu
