#include "bindings/device_memory.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/array_arguments.h"
#include "bindings/gil_released.h"
#include "errors/error.h"
#include "gpu/buffers.h"
#include "platform/fork.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embstore {
namespace {

using Bytes = Array<const uint8_t, 1>;
using MutableBytes = Array<uint8_t, 1>;

// Device memory whose copies run on the device's default stream.
class DeviceMemory {
 public:
  DeviceMemory(const GpuTuple& gpu, size_t bytes)
      : device_(gpu::open_device(to_device_choice(gpu))), bytes_(*device_, bytes) {}
  ~DeviceMemory() {
    // Work on the stream may still use the memory.
    gpu::ignoring_a_lost_device([this] { device_->synchronise(gpu::Stream{}); });
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  uint64_t address() const { return bytes_.address().value; }
  void write(const uint8_t* from, size_t bytes) {
    check_size(bytes);
    bytes_.copy_from(reinterpret_cast<const std::byte*>(from), bytes, {});
  }
  void read(uint8_t* to, size_t bytes) const {
    check_size(bytes);
    bytes_.copy_to(reinterpret_cast<std::byte*>(to), bytes, {});
  }
  // Makes later work on `stream` wait for all work that is now on the default stream.
  void come_before(gpu::Stream stream) const {
    const gpu::OwnedEvent end(*device_);
    device_->record(end, {});
    device_->wait(stream, end);
  }

 private:
  void check_size(size_t bytes) const {
    if (bytes == bytes_.count()) return;
    throw Error(ErrorKind::kInvalidArgument,
                "array: has " + std::to_string(bytes) + " bytes, expected " + std::to_string(bytes_.count()));
  }

  const std::shared_ptr<gpu::Device> device_;
  gpu::DeviceArray<std::byte> bytes_;
};

// Device memory that Python owns. It is freed without the interpreter's lock, since freeing waits for a
// stream. A forked child does not free it, since the device and its threads belong to the parent.
struct MemoryHandle {
  explicit MemoryHandle(std::unique_ptr<DeviceMemory> owned) : memory(std::move(owned)) {}
  ~MemoryHandle() {
    if (inherited(made_in)) {
      static_cast<void>(memory.release());
      return;
    }
    const GilReleased release;
    memory.reset();
  }
  MemoryHandle(const MemoryHandle&) = delete;
  MemoryHandle& operator=(const MemoryHandle&) = delete;

  std::unique_ptr<DeviceMemory> memory;
  const ForkGeneration made_in = fork_generation();
};

// Returns the address, shape, dtype letter, dtype bits, device type and device number of an array that
// supports DLPack.
nb::tuple described(const nb::ndarray<nb::c_contig>& array) {
  nb::list shape;
  for (size_t i = 0; i < array.ndim(); ++i) shape.append(array.shape(i));
  const nb::dlpack::dtype type = array.dtype();
  const char* const letters[] = {"i", "u", "f"};
  const char* const letter = type.lanes == 1 && type.code < 3 ? letters[type.code] : "?";
  return nb::make_tuple(reinterpret_cast<uintptr_t>(array.data()), nb::tuple(shape), letter,
                        static_cast<int>(type.bits), array.device_type(), array.device_id());
}

// Returns a DLPack capsule of an array. `owner` lives as long as the capsule and everything made from it.
nb::object to_dlpack(nb::object owner, uint64_t address, const std::vector<size_t>& shape, bool is_float,
                     int device_type, int device_id) {
  const nb::dlpack::dtype type = is_float ? nb::dtype<float>() : nb::dtype<int64_t>();
  return nb::ndarray<>(reinterpret_cast<void*>(address), shape.size(), shape.data(), std::move(owner),
                       nullptr, type, device_type, device_id)
      .cast();
}

}  // namespace

void bind_device_memory(nb::module_& module) {
  nb::class_<MemoryHandle>(module, "DeviceMemory")
      .def(
          "__init__",
          [](MemoryHandle* self, const GpuTuple& gpu, size_t bytes) {
            std::unique_ptr<DeviceMemory> memory = [&] {
              const GilReleased release;
              return std::make_unique<DeviceMemory>(gpu, bytes);
            }();
            new (self) MemoryHandle(std::move(memory));
          },
          "gpu"_a, "bytes"_a)
      .def("address", [](const MemoryHandle& handle) { return handle.memory->address(); })
      .def(
          "write",
          [](const MemoryHandle& handle, const Bytes& array) {
            const GilReleased release;
            handle.memory->write(array.data(), array.size());
          },
          "array"_a.noconvert())
      .def(
          "read",
          [](const MemoryHandle& handle, const MutableBytes& array) {
            const GilReleased release;
            handle.memory->read(array.data(), array.size());
          },
          "array"_a.noconvert())
      .def(
          "come_before",
          [](const MemoryHandle& handle, uintptr_t stream) { handle.memory->come_before({stream}); },
          "stream"_a, nb::call_guard<GilReleased>());
  module.def("described", &described, "array"_a.noconvert());
  module.def("to_dlpack", &to_dlpack, "owner"_a, "address"_a, "shape"_a, "is_float"_a, "device_type"_a,
             "device_id"_a);
}

}  // namespace embstore
