// The common part of the tests of kernels: a device whose schedule is drawn from a seed, and batches that
// include edge cases.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/unique_batch.h"
#include "testing/tests.h"

namespace embstore::gpu {

inline constexpr uint64_t kSeeds = 500;

// A device and a stream of the test's own, and random numbers from the same seed.
struct Scene {
  explicit Scene(uint64_t seed)
      : device({.memory_bytes = 4 << 20, .seed = seed}), stream(device), random(seed) {}

  uint32_t below(uint64_t count) { return static_cast<uint32_t>(random() % count); }

  template <class T>
  DeviceArray<T> on_device(const std::vector<T>& values) {
    DeviceArray<T> array(device, values.size());
    array.copy_from(values.data(), values.size(), stream);
    return array;
  }
  template <class T>
  std::vector<T> on_host(const DeviceArray<T>& array, uint64_t count) {
    std::vector<T> values(count);
    array.copy_to(values.data(), count, stream);
    return values;
  }
  template <class T>
  std::vector<T> on_host(const DeviceArray<T>& array) {
    return on_host(array, array.count());
  }
  template <class T>
  std::vector<T> on_host(const Global<const T>& array) {
    std::vector<T> values(array.count);
    if (array.count > 0) device.copy_to_host(values.data(), array.address, array.count * sizeof(T), stream);
    return values;
  }
  DeviceArray<uint32_t> on_device(size_t number) {
    return on_device(std::vector<uint32_t>{static_cast<uint32_t>(number)});
  }
  uint32_t number(const DeviceArray<uint32_t>& array) { return on_host(array, 1).front(); }

  // Small blocks, so that a batch has many of them.
  uint32_t block_threads() { return 1 + below(3) == 1 ? 64 : 32; }

  // A size near a multiple of a block's size, or 0, or any size.
  uint32_t batch_size() {
    constexpr std::array<uint32_t, 12> kEdges = {0, 1, 2, 31, 32, 33, 63, 64, 65, 128, 129, 257};
    return below(2) == 0 ? kEdges[below(kEdges.size())] : below(300);
  }

  // Ids that are all equal, or few distinct ones, or nearly all distinct; some are at the ends of the range
  // of keys.
  std::vector<int64_t> ids(uint32_t count) {
    const uint64_t distinct = std::array<uint64_t, 4>{1, 5, 100, uint64_t{1} << 40}[below(4)];
    std::vector<int64_t> result(count);
    for (int64_t& id : result) {
      id = static_cast<int64_t>(random() % distinct) - static_cast<int64_t>(distinct / 2);
      if (below(50) == 0) id = std::numeric_limits<int64_t>::min() + below(2);
      if (below(50) == 0) id = std::numeric_limits<int64_t>::max() - below(2);
    }
    return result;
  }

  // A mask for the ids of a batch, in which 0 leaves an id out: few ids, many, or all.
  std::vector<int64_t> kept(uint32_t count) {
    const uint32_t one_in = 1 + below(8);
    std::vector<int64_t> result(count);
    for (int64_t& one : result) one = below(one_in) == 0 ? 0 : -1 - int64_t{below(100)};  // any number but 0
    return result;
  }

  // Floats of very different sizes, so that another order of additions gives other bits; and zeros of both
  // signs.
  std::vector<float> floats(size_t count) {
    std::normal_distribution<float> value;
    std::uniform_int_distribution<int> exponent(-40, 8);
    std::vector<float> result(count);
    for (float& number : result)
      number = below(20) == 0 ? -0.0f : std::ldexp(value(random), exponent(random));
    return result;
  }

  EmulatedDevice device;
  OwnedStream stream;
  std::mt19937_64 random;
};

// The gradients of a batch in device memory; in half of the scenes they are rows of bags.
class GradientsOnDevice {
 public:
  // of_ids: `dim` floats for each id.
  GradientsOnDevice(Scene& scene, const std::vector<float>& of_ids, uint32_t dim)
      : bags_(scene.on_device(scene.below(2) == 0 ? some_bags(scene, of_ids.size() / dim)
                                                  : std::vector<int64_t>())),
        row_count_((bags_.count() == 0 ? 1 : kBagsForEachId) * of_ids.size() / dim),
        shift_(scene.below(2)),
        floats_(scene.device, shift_ + row_count_ * dim) {
    if (of_ids.empty()) return;
    std::vector<float> rows = of_ids;
    if (bags_.count() != 0) {
      rows.assign(row_count_ * dim, std::numeric_limits<float>::quiet_NaN());  // in bags without ids
      const std::vector<int64_t> bags = scene.on_host(bags_);
      for (size_t i = 0; i < bags.size(); ++i) {
        std::copy_n(&of_ids[i * dim], dim, &rows[static_cast<size_t>(bags[i]) * dim]);
      }
    }
    scene.device.copy_to_device(this->rows().floats, rows.data(), rows.size() * sizeof(float), scene.stream);
  }
  GradientRows rows() const {
    return {floats_.address() + shift_ * sizeof(float), row_count_,
            bags_.count() == 0 ? DeviceAddress{} : bags_.address()};
  }

 private:
  static constexpr size_t kBagsForEachId = 2;

  // Returns the number of each id's bag, in any order; no two ids share one.
  static std::vector<int64_t> some_bags(Scene& scene, size_t ids) {
    std::vector<int64_t> bags(kBagsForEachId * ids);
    std::iota(bags.begin(), bags.end(), 0);
    std::shuffle(bags.begin(), bags.end(), scene.random);
    bags.resize(ids);
    return bags;
  }

  DeviceArray<int64_t> bags_;
  size_t row_count_;
  uint32_t shift_;  // PyTorch's tensors may begin at any float
  DeviceArray<float> floats_;
};

// make_unique() makes one batch unique; sort() sorts the positions of its ids.
inline void make_unique(UniqueBatch& to, Global<const int64_t> ids, Stream stream) {
  const UniqueBatch::Input only{&to, ids};
  UniqueBatch::make_unique({&only, 1}, stream);
}
inline void sort(GradientSums& to, const UniqueBatch& unique, uint32_t ids, Stream stream) {
  const GradientSums::Input only{&to, &unique, ids};
  GradientSums::sort({&only, 1}, stream);
}

template <class Test>
void for_each_seed(const Test& test) {
  for (uint64_t seed = 0; seed < scaled_count(kSeeds); ++seed) {
    Scene scene(seed);
    tested_case() = "seed " + std::to_string(seed);
    try {
      test(scene);
    } catch (const Error& error) {
      fail(std::string(error.what()) + "; " + scene.device.last_schedule());
    }
  }
  tested_case().clear();
}

template <class T>
bool equal_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace embstore::gpu
