// Owners of a device's resources: device memory, pinned memory, streams and events. Their destructors give
// the resource back; if the device is lost by then, the resource is gone anyway.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "errors/error.h"
#include "gpu/device.h"
#include "gpu/kernels/language.h"

namespace embstore::gpu {

// Calls `call` and drops its Error, for destructors: they can't throw, and nothing can be done about a device
// that doesn't take its memory back.
template <class Call>
void ignoring_a_lost_device(Call call) noexcept {
  try {
    call();
  } catch (const Error&) {
  }
}

// An array in device memory, uninitialised at first.
template <class T>
class DeviceArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceArray(Device& device, uint64_t count)
      : device_(&device),
        count_(count),
        address_(device.allocate(std::max<uint64_t>(1, count) * sizeof(T))) {}
  ~DeviceArray() {
    if (address_) ignoring_a_lost_device([&] { device_->free(address_); });
  }
  DeviceArray(DeviceArray&& other) noexcept
      : device_(other.device_), count_(other.count_), address_(std::exchange(other.address_, {})) {}
  DeviceArray& operator=(DeviceArray&&) = delete;

  uint64_t count() const { return count_; }
  uint64_t bytes() const { return count_ * sizeof(T); }
  DeviceAddress address() const { return address_; }
  // The array as kernels take it; first() is the part of its first `count` elements.
  Global<T> global() const { return {address_, count_}; }
  Global<T> first(uint64_t count) const { return {address_, count}; }
  Global<const T> constant() const { return {address_, count_}; }

  void copy_from(const T* host, uint64_t count, Stream stream) {
    if (count > 0) device_->copy_to_device(address_, host, count * sizeof(T), stream);
  }
  void copy_to(T* host, uint64_t count, Stream stream) const {
    if (count > 0) device_->copy_to_host(host, address_, count * sizeof(T), stream);
  }
  void fill(uint8_t value, Stream stream) {
    if (count_ > 0) device_->fill(address_, value, bytes(), stream);
  }

 private:
  Device* device_;
  uint64_t count_;
  DeviceAddress address_;
};

// An array in pinned host memory.
template <class T>
class PinnedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  PinnedArray(Device& device, uint64_t count)
      : device_(device),
        array_(static_cast<T*>(device.allocate_pinned(std::max<uint64_t>(1, count) * sizeof(T))), count) {}
  ~PinnedArray() {
    ignoring_a_lost_device([&] { device_.free_pinned(array_.data()); });
  }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  T* data() const { return array_.data(); }
  uint64_t count() const { return array_.size(); }
  T& operator[](uint64_t i) const { return array_[i]; }
  // The array as kernels take it.
  Global<T> global() const { return {device_.address_of_pinned(array_.data()), array_.size()}; }

 private:
  Device& device_;
  std::span<T> array_;
};

// Host memory that isn't the device's own, pinned as long as this object exists, so that the device can reach
// it.
class PinnedRange {
 public:
  PinnedRange(std::shared_ptr<Device> device, std::span<std::byte> memory)
      : device_(std::move(device)), memory_(memory), address_(device_->try_pin(memory)) {}
  ~PinnedRange() {
    if (address_) ignoring_a_lost_device([&] { device_->unpin(memory_); });
  }
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;

  // No address if the system refused to pin the memory.
  DeviceAddress address() const { return address_; }

 private:
  const std::shared_ptr<Device> device_;
  const std::span<std::byte> memory_;
  const DeviceAddress address_;
};

template <class Handle, Handle (Device::*make)()>
class Owned {
 public:
  explicit Owned(Device& device) : device_(device), handle_((device.*make)()) {}
  ~Owned() {
    ignoring_a_lost_device([&] { device_.destroy(handle_); });
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  operator Handle() const { return handle_; }  // NOLINT(google-explicit-constructor): it is the handle

 private:
  Device& device_;
  Handle handle_;
};
using OwnedStream = Owned<Stream, &Device::make_stream>;
using OwnedEvent = Owned<Event, &Device::make_event>;

}  // namespace embstore::gpu
