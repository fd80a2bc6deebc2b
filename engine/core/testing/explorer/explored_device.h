// The emulated device, without the synchronisation that is left out if that is one of the device's.
#pragma once

#include <functional>
#include <utility>

#include "gpu/emulated/emulated_device.h"
#include "testing/explorer/left_out.h"

namespace embstore::explorer {

class ExploredDevice final : public gpu::EmulatedDevice {
 public:
  explicit ExploredDevice(uint64_t seed)
      : EmulatedDevice({.memory_bytes = 4 << 20, .seed = seed}), aside_(EmulatedDevice::make_stream()) {}

  void record(gpu::Event event, gpu::Stream stream) override {
    if (left_out().leaves_out(Synchronisation::kRecord, __builtin_return_address(0))) return;
    EmulatedDevice::record(event, stream);
  }
  void wait(gpu::Stream stream, gpu::Event event) override {
    if (left_out().leaves_out(Synchronisation::kStreamWait, __builtin_return_address(0))) return;
    EmulatedDevice::wait(stream, event);
  }
  bool query(gpu::Event event) override {
    if (left_out().leaves_out(Synchronisation::kQuery, __builtin_return_address(0))) return true;
    return EmulatedDevice::query(event);
  }
  void call_host(std::function<void()> function, gpu::Stream stream) override {
    const bool is_aside = left_out().leaves_out(Synchronisation::kFunction, __builtin_return_address(0));
    if (!is_aside) return EmulatedDevice::call_host(std::move(function), stream);
    // Runs the function after what is on the stream now, but nothing on the stream waits for it.
    const gpu::Event before = EmulatedDevice::make_event();
    EmulatedDevice::record(before, stream);
    EmulatedDevice::wait(aside_, before);
    EmulatedDevice::call_host(std::move(function), aside_);
    EmulatedDevice::destroy(before);
  }

 private:
  void wait_for(gpu::Event event) override {
    if (left_out().leaves_out(Synchronisation::kHostWait, __builtin_return_address(0))) return;
    EmulatedDevice::wait_for(event);
  }
  void wait_for(gpu::Stream stream) override {
    if (left_out().leaves_out(Synchronisation::kHostWait, __builtin_return_address(0))) return;
    EmulatedDevice::wait_for(stream);
  }

  const gpu::Stream aside_;
};

}  // namespace embstore::explorer
