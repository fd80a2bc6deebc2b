// Tests that keys are spread evenly over partitions, and each partition's keys over all of its index and
// filters.
#include "row/key_partition.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "row/key_hash.h"
#include "row/keys_by_partition.h"
#include "store/index/bucket_array.h"
#include "testing/tests.h"

namespace embstore {
namespace {

constexpr size_t kKeys = 400'000;

using PartitionOf = std::function<size_t(int64_t key, size_t count)>;

std::vector<int64_t> keys_of_stride(int64_t stride) {
  std::vector<int64_t> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = (static_cast<int64_t>(i) - 1000) * stride;
  return keys;
}

std::vector<int64_t> random_keys() {
  std::mt19937_64 random(1);
  std::vector<int64_t> keys(kKeys);
  for (int64_t& key : keys) key = static_cast<int64_t>(random());
  return keys;
}

// Returns the chi-square of how often each place was chosen, in standard deviations above its expected value.
double unevenness(const std::vector<size_t>& chosen) {
  size_t all = 0;
  for (const size_t count : chosen) all += count;
  const double expected = static_cast<double>(all) / static_cast<double>(chosen.size());
  double chi_square = 0;
  for (const size_t count : chosen) {
    const double off = static_cast<double>(count) - expected;
    chi_square += off * off / expected;
  }
  const auto freedom = static_cast<double>(chosen.size() - 1);
  return (chi_square - freedom) / std::sqrt(2 * freedom);
}

// Returns the greatest unevenness of all that a table with one partition's keys chooses by their hashes.
double worst_within_partitions(const std::vector<int64_t>& keys, size_t partitions,
                               const PartitionOf& partition) {
  constexpr uint64_t kBuckets = 61;
  constexpr size_t kBytes = 256;
  double worst = 0;
  for (size_t p = 0; p < partitions; ++p) {
    std::vector<size_t> shards(kShards);
    std::vector<size_t> buckets(kShards * kBuckets);  // of each shard
    std::vector<std::vector<size_t>> bytes(8, std::vector<size_t>(kBytes));
    for (const int64_t key : keys) {
      if (partition(key, partitions) != p) continue;
      const KeyHash hash = hash_key(key);
      const auto shard = static_cast<size_t>(shard_of_key(key));
      ++shards[shard];
      ++buckets[shard * kBuckets + home_bucket(key, kBuckets)];
      for (size_t b = 0; b < bytes.size(); ++b) ++bytes[b][hash >> (8 * b) & 0xff];
    }
    worst = std::max({worst, unevenness(shards), unevenness(buckets)});
    for (const auto& byte : bytes) worst = std::max(worst, unevenness(byte));
  }
  return worst;
}

TEST(the_keys_of_one_partition_use_all_of_its_index) {
  const std::vector<std::vector<int64_t>> streams = {keys_of_stride(1), keys_of_stride(2), keys_of_stride(60),
                                                     keys_of_stride(int64_t{1} << 32), random_keys()};
  for (const size_t partitions : {1, 2, 3, 4, 5, 8, 16, 17}) {
    for (size_t s = 0; s < streams.size(); ++s) {
      tested_case() = std::to_string(partitions) + " partitions, stream " + std::to_string(s);
      check(worst_within_partitions(streams[s], partitions, partition_of) < 6, "places are chosen unevenly");
    }
  }
  tested_case().clear();
}

// Checks that the test above detects partitions by the index's own hash, whichever of its bits they use.
TEST(partitions_by_the_indexs_own_hash_would_be_detected) {
  const std::vector<int64_t> keys = keys_of_stride(1);
  const PartitionOf by_remainder = [](int64_t key, size_t count) { return hash_key(key) % count; };
  const PartitionOf by_range = [](int64_t key, size_t count) { return (hash_key(key) >> 32) * count >> 32; };
  const PartitionOf by_low_half = [](int64_t key, size_t count) {
    return (hash_key(key) & 0xffffffff) * count >> 32;
  };
  for (const PartitionOf& partition : {by_remainder, by_range, by_low_half}) {
    check(worst_within_partitions(keys, 4, partition) > 100, "a hash that isn't independent wasn't told");
  }
}

TEST(the_hash_is_the_published_one) {
  check(partition_hash(0) == 0xe220a8397b1dcdafULL, "SplitMix64 of 0");
  check(partition_hash(1234567) == 6457827717110365317ULL, "SplitMix64 of 1234567");
}

// Compares with the whole product; kernels compute its halves.
TEST(a_partition_is_a_range_of_hashes) {
  __extension__ using Product = unsigned __int128;
  std::mt19937_64 random(2);
  for (int i = 0; i < 200'000; ++i) {
    const auto key = static_cast<int64_t>(random());
    const uint64_t count =
        i % 4 == 0 ? (uint64_t{1} << 32) - random() % 3 : 1 + random() % (uint64_t{1} << i % 32);
    const auto wanted = static_cast<uint64_t>(Product{partition_hash(key)} * count >> 64);
    check(partition_of(key, count) == wanted, "another range");
  }
}

TEST(a_batch_is_taken_apart_in_order) {
  const std::vector<int64_t> keys = {7, 7, -1, 0, 7, INT64_MIN, INT64_MAX, -1};
  for (size_t partitions = 1; partitions <= 20; ++partitions) {
    const KeysByPartition parts(keys, partitions);
    PageVector<int64_t> wanted;
    for (size_t p = 0; p < partitions; ++p) {
      check(parts.begins[p] == wanted.size(), "a partition begins elsewhere");
      for (size_t i = 0; i < keys.size(); ++i) {
        if (partition_of(keys[i], partitions) == p) wanted.push_back(static_cast<int64_t>(i));
      }
    }
    check(parts.begins.back() == keys.size() && parts.positions == wanted, "positions are others");
  }
  const KeysByPartition nothing({}, 3);
  check(nothing.positions.empty() && nothing.begins == std::vector<size_t>(4), "an empty batch");
}

}  // namespace
}  // namespace embstore
