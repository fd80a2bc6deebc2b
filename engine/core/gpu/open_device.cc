#include "gpu/open_device.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "access/process_registry.h"
#include "errors/error.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/emulated/emulated_device.h"
#include "platform/process_local.h"
#include "threads/mutex.h"

namespace embstore::gpu {
namespace {

constexpr std::string_view kEmulated = "emulated";
constexpr std::string_view kCuda = "cuda";
constexpr uint64_t kEmulatedMemoryBytes = uint64_t{4} << 30;
constexpr uint64_t kMinMemoryBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxMemoryBytes = uint64_t{1} << 40;

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

uint64_t of_environment(const char* variable, uint64_t usual, uint64_t least, uint64_t most) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return usual;
  const std::optional<uint64_t> number = number_of<uint64_t>(text);
  if (number && *number >= least && *number <= most) return *number;
  throw Error(ErrorKind::kInvalidArgument, std::string(variable) + " must be a number from " +
                                               std::to_string(least) + " to " + std::to_string(most) +
                                               ", got " + text);
}

// Returns the number of a GPU among the visible ones; nothing if the name isn't one of CUDA's.
std::optional<int> ordinal_of(std::string_view name) {
  if (name == kCuda) return 0;
  if (!name.starts_with(std::string(kCuda) + ":")) return std::nullopt;
  const std::optional<int> ordinal = number_of<int>(name.substr(kCuda.size() + 1));
  return ordinal && *ordinal >= 0 ? ordinal : std::nullopt;
}

// Keeps GPUs open until the process ends, as PyTorch does: making a context takes some tenths of a second.
struct KeptDevices {
  Mutex mutex;
  std::vector<std::shared_ptr<Device>> devices GUARDED_BY(mutex);
};

std::shared_ptr<Device> open(const std::string& key, std::shared_ptr<Device> (*make)(const DeviceChoice&),
                             const DeviceChoice& choice) {
  return ProcessRegistry<std::string, Device>::get(key, [&] { return make(choice); });
}

}  // namespace

std::shared_ptr<Device> open_device(const DeviceChoice& choice) {
  if (choice.name == kEmulated) {
    return open(
        choice.name,
        [](const DeviceChoice&) -> std::shared_ptr<Device> {
          return std::make_shared<EmulatedDevice>(EmulatedDevice::Options{
              .memory_bytes = of_environment("EMBSTORE_DEVICE_MEMORY", kEmulatedMemoryBytes, kMinMemoryBytes,
                                             kMaxMemoryBytes),
              .seed = of_environment("EMBSTORE_DEVICE_SEED", 0, 0, UINT64_MAX)});
        },
        choice);
  }
  const std::optional<int> ordinal = ordinal_of(choice.name);
  if (!ordinal) {
    throw Error(ErrorKind::kInvalidArgument,
                "device: must be cuda, cuda:N (the number of a GPU) or emulated, got " + choice.name);
  }
  return open(
      "cuda:" + std::to_string(*ordinal),
      [](const DeviceChoice& chosen) -> std::shared_ptr<Device> {
        auto device =
            std::make_shared<CudaDevice>(CudaDevice::Options{.ordinal = *ordinal_of(chosen.name),
                                                             .nvrtc = chosen.nvrtc,
                                                             .cache_directory = chosen.cache_directory});
        KeptDevices& kept = ProcessLocal<KeptDevices>::get();
        const MutexLock lock(kept.mutex);
        kept.devices.push_back(device);
        return device;
      },
      choice);
}

}  // namespace embstore::gpu
