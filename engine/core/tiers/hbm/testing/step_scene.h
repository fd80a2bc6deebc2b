// The common part of scenes with steps on the emulated device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "access/process_registry.h"
#include "gpu/buffers.h"
#include "gpu/emulated/emulated_device.h"
#include "testing/tests.h"
#include "tiers/hbm/ids_on_device.h"

namespace embstore {

// Ids in a device's memory, and a row of floats for each: the result of a look-up, or the gradients of an
// update.
struct BatchOnDevice {
  BatchOnDevice(gpu::Device& on, const std::vector<int64_t>& batch_ids, int dim, gpu::Stream put_on)
      : stream(put_on), ids(on, batch_ids.size()), rows(on, batch_ids.size() * static_cast<size_t>(dim)) {
    ids.copy_from(batch_ids.data(), batch_ids.size(), stream);
  }
  BatchOnDevice(gpu::Device& on, const std::vector<int64_t>& batch_ids, const std::vector<float>& by,
                gpu::Stream put_on)
      : stream(put_on), ids(on, batch_ids.size()), rows(on, by.size()) {
    ids.copy_from(batch_ids.data(), batch_ids.size(), stream);
    rows.copy_from(by.data(), by.size(), stream);
  }
  IdsOnDevice on_device() const { return {ids.address(), static_cast<uint32_t>(ids.count()), stream}; }

  gpu::Stream stream;
  gpu::DeviceArray<int64_t> ids;
  gpu::DeviceArray<float> rows;
};

// A device that tables open as the emulated one, with two streams, and batches that are drawn from a seed.
template <class OfDevice>
class StepScene {
 public:
  StepScene(uint64_t seed, std::shared_ptr<OfDevice> opened, int64_t keys, int dim)
      : random(seed), keys_(keys), dim_(dim) {
    open(std::move(opened));
  }

  uint64_t below(uint64_t n) { return random() % n; }
  // Some keys occur often, and batches have duplicates.
  std::vector<int64_t> some_ids(size_t most) {
    std::vector<int64_t> ids(1 + below(most));
    const auto keys = static_cast<uint64_t>(keys_);
    for (int64_t& id : ids) id = static_cast<int64_t>(std::min(below(keys), below(keys)));
    return ids;
  }
  std::vector<float> some_gradients(size_t ids) {
    std::normal_distribution<float> value;
    std::vector<float> gradients(ids * static_cast<size_t>(dim_));
    for (float& gradient : gradients) gradient = value(random);
    return gradients;
  }

  TemporaryDirectory directory;
  std::shared_ptr<OfDevice> device;
  std::mt19937_64 random;
  std::vector<std::unique_ptr<gpu::OwnedStream>> streams;

 protected:
  // Makes this the device that opening the emulated device returns from now on. REQUIRES: the previous device
  // is no longer in use.
  void open(std::shared_ptr<OfDevice> opened) {
    opened_.reset();
    device = std::move(opened);
    opened_ = ProcessRegistry<std::string, gpu::Device>::get("emulated", [this] { return device; });
    check(opened_ == device, "another device is open");
    for (int i = 0; i < 2; ++i) streams.push_back(std::make_unique<gpu::OwnedStream>(*device));
  }

 private:
  std::shared_ptr<gpu::Device> opened_;
  const int64_t keys_;
  const int dim_;
};

}  // namespace embstore
