// Tests the kernels on the emulated device against plain code of the host, with random batches and edge
// cases, one schedule for each seed.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/all.h"
#include "gpu/operations/device_rows.h"
#include "gpu/operations/finite_gradients.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/ids_by_partition.h"
#include "gpu/operations/mirror.h"
#include "gpu/operations/unique_batch.h"
#include "gpu/testing/scene.h"
#include "row/key_partition.h"
#include "row/unique_ids.h"
#include "testing/tests.h"
#include "update/gradient_batch.h"

namespace embstore::gpu {
namespace {

TEST(scan_counts_gives_the_sums_before) {
  for_each_seed([](Scene& scene) {
    std::vector<uint32_t> counts(scene.below(2) == 0 ? scene.batch_size() : scene.below(3000));
    for (uint32_t& count : counts) count = scene.below(10);
    DeviceArray<uint32_t> array = scene.on_device(counts);
    DeviceArray<uint32_t> total(scene.device, 1);
    scene.device.launch(scan_counts, {1, scene.block_threads()}, {array.global(), total.global()},
                        scene.stream);
    std::vector<uint32_t> expected(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), expected.begin(), 0u);
    check(scene.on_host(array, counts.size()) == expected, "the sums before each count");
    check(scene.number(total) == std::accumulate(counts.begin(), counts.end(), 0u), "the sum of all");
  });
}

// --- The mirror

// A mirror, and its expected contents.
struct MirrorScene {
  MirrorScene(Scene& of, uint32_t slots, uint64_t buckets)
      : scene(of), mirror(of.device, slots, buckets, of.stream), free_slots(slots) {
    std::iota(free_slots.begin(), free_slots.end(), 0u);
    std::shuffle(free_slots.begin(), free_slots.end(), of.random);
  }

  void insert(uint32_t most) {
    std::vector<int64_t> keys;
    std::vector<uint32_t> slots;
    while (keys.size() < most && !free_slots.empty()) {
      const int64_t key = scene.below(4) == 0 ? scene.ids(1).front() : scene.below(600);
      if (slot_of.contains(key)) continue;
      slot_of[key] = free_slots.back();
      keys.push_back(key);
      slots.push_back(free_slots.back());
      free_slots.pop_back();
    }
    const DeviceArray<int64_t> device_keys = scene.on_device(keys);
    const DeviceArray<uint32_t> device_slots = scene.on_device(slots);
    const DeviceArray<uint32_t> count = scene.on_device(keys.size());
    mirror.insert(device_keys.constant(), device_slots.constant(), count.constant(), scene.stream);
    scene.device.synchronise(scene.stream);
  }

  void erase(uint32_t most) {
    std::vector<int64_t> keys;
    std::vector<uint32_t> slots;
    for (const auto& [key, slot] : slot_of) {
      if (keys.size() < most && scene.below(2) == 0) keys.push_back(key);
    }
    if (scene.below(2) == 0) keys.push_back(1'000'000);  // a key that the mirror never has
    for (const int64_t key : keys) {
      const auto found = slot_of.find(key);
      slots.push_back(found == slot_of.end() ? kNoSlot : found->second);
      if (found == slot_of.end()) continue;
      free_slots.push_back(found->second);
      slot_of.erase(found);
    }
    const DeviceArray<int64_t> device_keys = scene.on_device(keys);
    DeviceArray<uint32_t> device_slots(scene.device, keys.size());
    const DeviceArray<uint32_t> count = scene.on_device(keys.size());
    mirror.erase(device_keys.constant(), device_slots.global(), count.constant(), scene.stream);
    check(scene.on_host(device_slots, keys.size()) == slots, "where erased rows were");
    scene.device.synchronise(scene.stream);  // the copy above waits, but there may be nothing to copy
  }

  void find() {
    std::vector<int64_t> ids = scene.ids(scene.batch_size());
    for (int64_t& id : ids) {
      if (scene.below(2) == 0) id = scene.below(600);
    }
    // There is room for more ids than there are: only the device knows their number.
    const auto count = static_cast<uint32_t>(ids.empty() ? 0 : ids.size() - scene.below(ids.size()) / 2);
    const DeviceArray<int64_t> device_ids = scene.on_device(ids);
    const DeviceArray<uint32_t> id_count = scene.on_device(size_t{count});
    FoundBatch found(scene.device, static_cast<uint32_t>(ids.size()), scene.block_threads());
    const DeviceArray<int64_t> missing_ids(scene.device, ids.size());
    const DeviceArray<uint32_t> places_too(scene.device, ids.size()),
        misses_too = scene.on_device(std::vector<uint32_t>{7, 7});
    const FoundBatch::Input input{.to = &found,
                                  .mirrors = {&mirror},
                                  .ids = device_ids.constant(),
                                  .id_count = id_count.constant(),
                                  .missing_ids = missing_ids.global(),
                                  .positions_on_host = places_too.global(),
                                  .miss_bounds_on_host = misses_too.global()};
    FoundBatch::find({&input, 1}, scene.stream);
    std::vector<uint32_t> slots, places;
    std::vector<int64_t> missing;
    for (uint32_t i = 0; i < count; ++i) {
      const auto at = slot_of.find(ids[i]);
      slots.push_back(at == slot_of.end() ? kNoSlot : at->second);
      if (at != slot_of.end()) continue;
      missing.push_back(ids[i]);
      places.push_back(i);
    }
    check(scene.on_host(misses_too, 2) == std::vector<uint32_t>{7, static_cast<uint32_t>(missing.size())},
          "how many ids are missing, for the host");
    check(scene.on_host(places_too, missing.size()) == places, "where they are, for the host");
    check(scene.on_host(found.slots(), count) == slots, "the slots of ids");
    check(scene.number(found.miss_count()) == missing.size(), "how many ids are missing");
    check(scene.on_host(missing_ids, missing.size()) == missing, "the missing ids in order");
    check(scene.on_host(found.missing_places(), missing.size()) == places, "the places of missing ids");
  }

  // Finds all keys that the mirror has, in their slots.
  void find_all() {
    std::vector<int64_t> ids;
    std::vector<uint32_t> slots;
    for (const auto& [key, slot] : slot_of) {
      ids.push_back(key);
      slots.push_back(slot);
    }
    const DeviceArray<int64_t> device_ids = scene.on_device(ids);
    DeviceArray<uint32_t> found(scene.device, ids.size());
    const DeviceArray<uint32_t> count = scene.on_device(ids.size());
    scene.device.launch(locate, Grid::of(ids.size(), 64),
                        {mirror.arrays(), device_ids.constant(), found.global(), count.constant()},
                        scene.stream);
    check(scene.on_host(found, ids.size()) == slots, "the slot of every key");
    scene.device.synchronise(scene.stream);
  }

  // Checks that each bucket says how many keys passed it: one too few would hide a key, and one too many
  // makes finds look further than necessary.
  void check_buckets() {
    const Global<Bucket> array = mirror.arrays().buckets;
    std::vector<Bucket> buckets(array.count);
    scene.device.copy_to_host(buckets.data(), array.address, array.count * sizeof(Bucket), scene.stream);
    std::unordered_map<uint32_t, int64_t> key_of;
    for (const auto& [key, slot] : slot_of) key_of[slot] = key;
    std::vector<uint32_t> passed_by(buckets.size());
    size_t entries = 0;
    for (uint64_t at = 0; at < buckets.size(); ++at) {
      for (uint32_t i = 0; i < kBucketEntries; ++i) {
        if (buckets[at].slots[i] == kNoSlot) continue;
        ++entries;
        check(key_of.contains(buckets[at].slots[i]), "an entry has a slot that no key has");
        const KeyHash hash = hash_key(key_of[buckets[at].slots[i]]);
        check(buckets[at].tags[i] == tag_of(hash), "the tag of an entry");
        for (uint64_t passed = home_bucket(hash, buckets.size()); passed != at;
             passed = (passed + 1) % buckets.size()) {
          ++passed_by[passed];
        }
      }
    }
    check(entries == slot_of.size(), "the number of entries");
    for (uint64_t at = 0; at < buckets.size(); ++at) {
      check(buckets[at].passed_by == passed_by[at], "how many keys passed a bucket");
    }
  }

  uint32_t refused() {
    uint32_t count = 0;
    scene.device.copy_to_host(&count, mirror.refused().address, sizeof(count), scene.stream);
    return count;
  }

  Scene& scene;
  Mirror mirror;
  std::vector<uint32_t> free_slots;
  std::unordered_map<int64_t, uint32_t> slot_of;
};

TEST(a_mirror_has_what_was_inserted_and_not_erased) {
  for_each_seed([](Scene& scene) {
    const uint32_t slots = std::array<uint32_t, 5>{1, 11, 12, 60, 300}[scene.below(5)];
    // There are between one and four times as many entries as slots.
    const uint64_t buckets = (slots + kBucketEntries - 1) / kBucketEntries * (1 + scene.below(4));
    MirrorScene mirror(scene, slots, buckets);
    mirror.find();
    for (int step = 0; step < 4; ++step) {
      mirror.insert(scene.below(2 * slots) + 1);
      mirror.check_buckets();
      mirror.find();
      mirror.erase(scene.below(slots + 1));
      mirror.check_buckets();
      mirror.find_all();
    }
    check(mirror.refused() == 0, "a key found no entry");
  });
}

TEST(a_full_mirror_finds_all_of_its_keys) {
  for_each_seed([](Scene& scene) {
    const uint32_t slots = kBucketEntries * (1 + scene.below(6));
    MirrorScene mirror(scene, slots, slots / kBucketEntries);
    for (int round = 0; round < 2; ++round) {
      mirror.insert(slots);
      check(mirror.free_slots.empty(), "the mirror is full");
      mirror.find_all();
      mirror.check_buckets();
      mirror.find();
      mirror.erase(slots);
      mirror.check_buckets();
      mirror.find();
    }
    check(mirror.refused() == 0, "a key found no entry");
  });
}

TEST(a_mirror_counts_a_key_that_finds_no_entry) {
  for_each_seed([](Scene& scene) {
    constexpr uint32_t kKeys = kBucketEntries + 1;
    MirrorScene scene_of(scene, kKeys, 1);
    std::vector<int64_t> keys = keys_from(0, kKeys);
    const DeviceArray<int64_t> device_keys = scene.on_device(keys);
    const DeviceArray<uint32_t> slots = scene.on_device(scene_of.free_slots);
    const DeviceArray<uint32_t> count = scene.on_device(size_t{kKeys});
    DeviceArray<uint32_t> erased(scene.device, kKeys);
    scene_of.mirror.insert(device_keys.constant(), slots.constant(), count.constant(), scene.stream);
    check(scene_of.refused() == 1, "one key of 13 finds no entry among 12");
    scene_of.mirror.erase(device_keys.constant(), erased.global(), count.constant(), scene.stream);
    const std::vector<uint32_t> were_at = scene.on_host(erased, kKeys);
    check(std::count(were_at.begin(), were_at.end(), kNoSlot) == 1, "12 keys were there");
    Bucket bucket;
    scene.device.copy_to_host(&bucket, scene_of.mirror.arrays().buckets.address, sizeof(bucket),
                              scene.stream);
    check(bucket.passed_by == 0, "finds would go past an empty bucket");
  });
}

// --- Distinct ids

void check_unique(Scene& scene, const std::vector<int64_t>& ids) {
  const DeviceArray<int64_t> device_ids = scene.on_device(ids);
  UniqueBatch unique(scene.device, static_cast<uint32_t>(ids.size()), scene.block_threads());
  const UniqueIds expected(ids);
  for (int time = 0; time < 2; ++time) {  // the second time uses its memory again
    make_unique(unique, device_ids.constant(), scene.stream);
    check(scene.number(unique.count()) == expected.keys.size(), "how many ids are distinct");
    check(scene.on_host(unique.keys(), expected.keys.size()) == expected.keys,
          "in order of first occurrence");
    check(scene.on_host(unique.inverse(), ids.size()) == expected.positions, "which one each id is");
  }
}

TEST(ids_are_made_distinct_in_the_order_of_their_first_occurrence) {
  for_each_seed([](Scene& scene) { check_unique(scene, scene.ids(scene.batch_size())); });
}

// Left-out ids count as if they weren't in the batch, even if their key is also that of a kept id.
TEST(left_out_ids_belong_to_no_distinct_id) {
  for_each_seed([](Scene& scene) {
    const std::vector<int64_t> ids = scene.ids(scene.batch_size());
    const auto count = static_cast<uint32_t>(ids.size());
    const std::vector<int64_t> kept = scene.kept(count);
    // Ids from `end` on don't count either; only the device may know that.
    const uint32_t end = count - scene.below(count + 1) / 2;
    std::vector<int64_t> left;
    std::vector<uint32_t> positions;
    for (uint32_t i = 0; i < end; ++i) {
      if (kept[i] == 0) continue;
      left.push_back(ids[i]);
      positions.push_back(i);
    }
    const DeviceArray<int64_t> device_ids = scene.on_device(ids);
    const DeviceArray<int64_t> device_kept = scene.on_device(kept);
    const DeviceArray<uint32_t> id_count = scene.on_device(size_t{end});
    UniqueBatch unique(scene.device, count, scene.block_threads());
    GradientSums sums(scene.device, count, 1, scene.block_threads());
    const UniqueBatch::Input input{&unique, device_ids.constant(), device_kept.constant(),
                                   id_count.constant()};
    UniqueBatch::make_unique({&input, 1}, scene.stream);
    sort(sums, unique, count, scene.stream);
    const UniqueIds expected(left);
    const size_t distinct = expected.keys.size();
    check(scene.number(unique.count()) == distinct, "how many ids are distinct");
    check(scene.on_host(unique.keys(), distinct) == expected.keys, "in order of first occurrence");
    // The sorted positions of each distinct id, in order, are those at which it occurs in the batch.
    const std::vector<uint32_t> begins = scene.on_host(sums.begins(), distinct);
    const std::vector<uint32_t> ends = scene.on_host(sums.ends(), distinct);
    for (size_t i = 0; i < distinct; ++i) {
      check(ends[i] - begins[i] == expected.occurrences[i], "how often an id occurs");
    }
    const std::vector<uint32_t> sorted = scene.on_host(sums.positions());
    std::vector<uint32_t> next = begins;
    for (size_t i = 0; i < left.size(); ++i) {
      check(sorted[next[expected.positions[i]]++] == positions[i], "where an id occurs");
    }
  });
}

TEST(a_batch_may_be_larger_than_what_a_block_scans_at_once) {
  Scene scene(1);
  check_unique(scene, scene.ids(20'000));
}

// --- Gradients

struct GradientScene {
  GradientScene(Scene& scene, uint32_t of_dim)
      : dim(of_dim), ids(scene.ids(scene.batch_size())), gradients(scene.floats(ids.size() * dim)) {}

  struct Expected {
    std::vector<float> sums;
    std::vector<uint32_t> occurrences;
    std::vector<uint32_t> last_positions;
  };
  // Returns what the CPU gives for the distinct ids with these numbers, in the order of first occurrence.
  Expected expected(const std::vector<uint32_t>& chosen) const {
    const UniqueIds unique(ids);
    std::vector<int64_t> keys;
    for (const uint32_t number : chosen) keys.push_back(unique.keys[number]);
    return expected(keys, std::vector<int64_t>(ids.size(), 1));
  }
  // The same for these keys, in a batch without the ids that have a 0 in `kept`.
  Expected expected(const std::vector<int64_t>& keys, const std::vector<int64_t>& kept) const {
    std::vector<int64_t> left;
    std::vector<float> left_gradients;
    std::vector<uint32_t> positions;
    for (uint32_t i = 0; i < ids.size(); ++i) {
      if (kept[i] == 0) continue;
      left.push_back(ids[i]);
      positions.push_back(i);
      left_gradients.insert(left_gradients.end(), &gradients[i * dim], &gradients[i * dim] + dim);
    }
    GradientBatch batch;
    batch.group(left, left_gradients.data(), static_cast<int>(dim));
    std::unordered_map<int64_t, const KeyGradient*> of;
    for (const KeyGradient& key : batch.keys()) of[key.key] = &key;
    Expected expected;
    for (const int64_t chosen : keys) {
      const KeyGradient& key = *of.at(chosen);
      expected.sums.insert(expected.sums.end(), key.gradient, key.gradient + dim);
      expected.occurrences.push_back(static_cast<uint32_t>(key.occurrences));
      expected.last_positions.push_back(positions[key.last_position]);
    }
    return expected;
  }
  std::vector<uint32_t> all_distinct() const {
    std::vector<uint32_t> all(UniqueIds(ids).keys.size());
    std::iota(all.begin(), all.end(), 0u);
    return all;
  }
  std::vector<float> all_sums() const { return expected(all_distinct()).sums; }

  uint32_t dim;
  std::vector<int64_t> ids;
  std::vector<float> gradients;
};

// Sums the gradients of some distinct ids on the device, and checks that the sums have the CPU's bits.
void check_sums(Scene& scene, const GradientScene& batch, const std::vector<uint32_t>& chosen,
                uint32_t unique_threads = kMaxBlockThreads, uint32_t sort_threads = kSortThreads) {
  const auto count = static_cast<uint32_t>(batch.ids.size());
  const DeviceArray<int64_t> ids = scene.on_device(batch.ids);
  const GradientsOnDevice gradients(scene, batch.gradients, batch.dim);
  UniqueBatch unique(scene.device, count, unique_threads);
  GradientSums sums(scene.device, count, batch.dim, sort_threads);
  make_unique(unique, ids.constant(), scene.stream);
  sort(sums, unique, count, scene.stream);
  const DeviceArray<uint32_t> numbers = scene.on_device(chosen);
  const DeviceArray<uint32_t> chosen_count = scene.on_device(chosen.size());
  const DeviceArray<float> to(scene.device, chosen.size() * batch.dim);
  const DeviceArray<uint32_t> occurrences(scene.device, chosen.size());
  const DeviceArray<uint32_t> last_positions(scene.device, chosen.size());
  const GradientSums::Summed only{{&sums, &unique, count},
                                  gradients.rows(),
                                  {numbers.constant(), chosen_count.constant()},
                                  {to.global(), occurrences.global(), last_positions.global()}};
  GradientSums::sum({&only, 1}, scene.stream);
  scene.device.synchronise(scene.stream);  // none may be chosen, and the arrays are freed
  const GradientScene::Expected expected = batch.expected(chosen);
  check(equal_bits(scene.on_host(to, expected.sums.size()), expected.sums), "the bits of the sums");
  check(scene.on_host(occurrences, chosen.size()) == expected.occurrences, "how often ids occur");
  check(scene.on_host(last_positions, chosen.size()) == expected.last_positions, "where ids occur last");
}

uint32_t some_dim(Scene& scene) { return std::array<uint32_t, 6>{1, 3, 4, 8, 12, 17}[scene.below(6)]; }

TEST(gradients_are_summed_in_the_order_of_the_batch) {
  for_each_seed([](Scene& scene) {
    const GradientScene batch(scene, some_dim(scene));
    // Chooses no distinct ids, some of them, or all.
    std::vector<uint32_t> chosen;
    const uint32_t one_in = 1 + scene.below(4);
    const auto distinct = static_cast<uint32_t>(UniqueIds(batch.ids).keys.size());
    for (uint32_t number = 0; number < distinct; ++number) {
      if (scene.below(one_in) == 0) chosen.push_back(number);
    }
    check_sums(scene, batch, chosen, scene.block_threads(), scene.block_threads());
  });
}

// Around the length from which a block sums a run, and around the length that it loads at once, in batches
// with and without other ids.
TEST(gradients_of_an_id_that_occurs_often_are_summed_in_the_order_of_the_batch) {
  uint64_t seed = 0;
  for (const uint32_t run : {kLongRun, kLongRun + 1, kTileRows, kTileRows + 1, 2 * kTileRows + 3, 1000u}) {
    for (const uint32_t dim : {1u, 6u, 32u, 36u, 65u}) {
      for (const uint32_t others : {0u, 1u, 700u}) {
        Scene scene(++seed);
        tested_case() = std::to_string(run) + " times, dim " + std::to_string(dim);
        GradientScene batch(scene, dim);
        batch.ids.assign(run, 7);
        for (uint32_t i = 0; i < others; ++i)
          batch.ids.push_back(scene.below(3));  // three distinct ids, if many
        std::shuffle(batch.ids.begin(), batch.ids.end(), scene.random);
        batch.gradients = scene.floats(batch.ids.size() * dim);
        check_sums(scene, batch, batch.all_distinct());
      }
    }
  }
  tested_case().clear();
}

TEST(the_first_kept_gradient_that_is_not_finite_is_found) {
  for_each_seed([](Scene& scene) {
    const uint32_t dim = some_dim(scene);
    const uint32_t count = scene.batch_size();
    std::vector<float> gradients = scene.floats(uint64_t{count} * dim);
    for (float& gradient : gradients) {
      if (scene.below(30) == 0) gradient = std::numeric_limits<float>::max();
      if (scene.below(gradients.size()) != 0) continue;
      gradient = std::array{std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}[scene.below(3)];
    }
    const std::vector<int64_t> kept = scene.below(2) == 0 ? std::vector<int64_t>() : scene.kept(count);
    uint32_t expected = kAllFinite;
    for (uint32_t i = count; i-- != 0;) {
      const auto row = gradients.begin() + ptrdiff_t{i} * dim;
      const bool is_kept = kept.empty() || kept[i] != 0;
      if (is_kept && !std::all_of(row, row + dim, [](float value) { return std::isfinite(value); }))
        expected = i;
    }
    const GradientsOnDevice on_device(scene, gradients, dim);
    const DeviceArray<int64_t> kept_on_device = scene.on_device(kept);
    const PinnedArray<uint32_t> first(scene.device, 1);
    first[0] = kAllFinite;
    Launches launches;
    add_find_not_finite(on_device.rows(), count, dim, kept_on_device.constant(), first.global(), launches);
    launches.put(scene.device, scene.stream);
    scene.device.synchronise(scene.stream);
    check(first[0] == expected,
          "the first is " + std::to_string(first[0]) + ", not " + std::to_string(expected));
  });
}

TEST(the_order_of_additions_shows_in_the_bits) {
  // Otherwise the test above would prove little.
  uint64_t other_bits = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Scene scene(seed);
    GradientScene batch(scene, 4);
    batch.ids.assign(batch.ids.size(), 1);
    const std::vector<float> sums = batch.all_sums();
    for (size_t i = 0; i < batch.ids.size() / 2; ++i) {
      std::swap_ranges(&batch.gradients[i * 4], &batch.gradients[i * 4] + 4,
                       &batch.gradients[(batch.ids.size() - 1 - i) * 4]);
    }
    other_bits += !equal_bits(batch.all_sums(), sums);
  }
  check(other_bits > 50, "the reverse order gave the same bits");
}

// A batch for a variable with some partitions, each with a mirror that has some of its ids. With a single
// partition it is a batch for one table.
struct PartedBatch {
  PartedBatch(Scene& scene, uint32_t dim, const std::vector<std::unique_ptr<Mirror>>& of)
      : batch(scene, dim),
        count(static_cast<uint32_t>(batch.ids.size())),
        kept(scene.kept(count)),
        ids(scene.on_device(batch.ids)),
        kept_on_device(scene.on_device(kept)),
        gradients(scene, batch.gradients, dim),
        unique(scene.device, count, scene.block_threads()),
        sums(scene.device, count, dim, scene.block_threads()),
        found(scene.device, count, scene.block_threads()),
        bounds(scene.device, of.size() + 1),
        bounds_on_host(scene.device, of.size() + 1),
        miss_bounds(scene.device, of.size() + 1),
        sum(scene.device, uint64_t{count} * dim),
        occurrences(scene.device, count),
        last_positions(scene.device, count) {
    if (of.size() > 1)
      apart.emplace(scene.device, count, static_cast<uint32_t>(of.size()), scene.block_threads());
    for (const auto& mirror : of) mirrors.push_back(mirror.get());
    for (const DeviceArray<uint32_t>* array : {&bounds_on_host, &miss_bounds}) {
      scene.device.fill(array->address(), 0, array->bytes(), scene.stream);
    }
  }

  UniqueBatch::Input to_be_unique() {
    if (!apart) {
      return {.to = &unique,
              .ids = ids.constant(),
              .kept = kept_on_device.constant(),
              .count_on_host = {bounds_on_host.address() + sizeof(uint32_t), 1}};
    }
    return {.to = &unique, .ids = apart->ids().first(count).as_const(), .id_count = apart->count()};
  }
  GradientSums::Input to_be_sorted() {
    return {&sums, &unique, count, apart ? apart->order() : Global<const uint32_t>{}};
  }
  FoundBatch::Input to_be_found() {
    return {.to = &found,
            .mirrors = mirrors,
            .ids = unique.keys().first(count).as_const(),
            .id_count = unique.count().constant(),
            .bounds = apart ? bounds.constant() : Global<const uint32_t>{},
            .miss_bounds_on_host = miss_bounds.global()};
  }

  GradientScene batch;
  uint32_t count;
  std::vector<int64_t> kept;
  DeviceArray<int64_t> ids;
  DeviceArray<int64_t> kept_on_device;
  GradientsOnDevice gradients;
  std::vector<const Mirror*> mirrors;
  std::optional<IdsByPartition> apart;
  UniqueBatch unique;
  GradientSums sums;
  FoundBatch found;
  DeviceArray<uint32_t> bounds;
  DeviceArray<uint32_t> bounds_on_host;
  DeviceArray<uint32_t> miss_bounds;
  DeviceArray<float> sum;
  DeviceArray<uint32_t> occurrences;
  DeviceArray<uint32_t> last_positions;
};

// Batches of different sizes, for variables with different numbers of partitions.
TEST(several_batches_at_once_give_what_each_gives_alone) {
  for (uint64_t seed = 0; seed < scaled_count(200); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    Scene scene(seed);
    const uint32_t dim = some_dim(scene);
    // The mirrors of the partitions; each has slots for some of the keys.
    const uint32_t partitions = std::array<uint32_t, 5>{1, 2, 3, 7, 70}[scene.below(5)];
    std::unordered_map<int64_t, uint32_t> slot_of;
    std::vector<std::unique_ptr<Mirror>> mirrors;
    std::vector<DeviceArray<int64_t>> keys;
    std::vector<DeviceArray<uint32_t>> slots;
    std::vector<DeviceArray<uint32_t>> counts;
    for (uint32_t p = 0; p < partitions; ++p) {
      std::vector<int64_t> own;
      std::vector<uint32_t> own_slots;
      for (int64_t key = -50; key < 50; ++key) {
        if (partition_of(key, partitions) != p || scene.below(2) == 0) continue;
        slot_of[key] = static_cast<uint32_t>(own.size());
        own_slots.push_back(slot_of[key]);
        own.push_back(key);
      }
      mirrors.push_back(std::make_unique<Mirror>(scene.device, 100, scene.stream));
      mirrors.back()->insert(keys.emplace_back(scene.on_device(own)).constant(),
                             slots.emplace_back(scene.on_device(own_slots)).constant(),
                             counts.emplace_back(scene.on_device(own.size())).constant(), scene.stream);
    }
    std::vector<std::unique_ptr<PartedBatch>> batches;
    for (uint32_t left = 1 + scene.below(6); left != 0; --left)
      batches.push_back(std::make_unique<PartedBatch>(scene, dim, mirrors));
    std::vector<IdsByPartition::Input> apart;
    std::vector<UniqueBatch::Input> unique;
    std::vector<GradientSums::Input> sorted;
    std::vector<GradientSums::Bounds> bounds;
    std::vector<FoundBatch::Input> found;
    std::vector<GradientSums::Summed> summed;
    for (const auto& one : batches) {
      if (one->apart)
        apart.push_back({&*one->apart, one->ids.constant(), one->kept_on_device.constant(), {}});
      unique.push_back(one->to_be_unique());
    }
    IdsByPartition::partition(apart, scene.stream);
    UniqueBatch::make_unique(unique, scene.stream);
    for (const auto& one : batches) sorted.push_back(one->to_be_sorted());
    GradientSums::sort(sorted, scene.stream);
    for (size_t i = 0; i < batches.size(); ++i) {
      PartedBatch& one = *batches[i];
      if (one.apart && one.count != 0) {
        bounds.push_back({&sorted[i], one.apart->bounds(), one.bounds.global(), one.bounds_on_host.global()});
      }
      if (one.count == 0) continue;  // an empty batch has no bounds
      found.push_back(one.to_be_found());
      summed.push_back({sorted[i],
                        one.gradients.rows(),
                        {one.found.missing_places().constant(), one.found.miss_count().constant()},
                        {one.sum.global(), one.occurrences.global(), one.last_positions.global()}});
    }
    GradientSums::find_bounds(bounds, scene.stream);
    FoundBatch::find(found, scene.stream);
    GradientSums::sum(summed, scene.stream);
    for (const auto& one : batches) {
      // Sorted by partition, and then by first occurrence.
      std::vector<int64_t> ids;
      for (uint32_t i = 0; i < one->count; ++i) {
        if (one->kept[i] != 0) ids.push_back(one->batch.ids[i]);
      }
      const std::vector<int64_t> distinct = UniqueIds(ids).keys;
      std::vector<uint32_t> expected_bounds{0}, expected_miss_bounds{0};
      std::vector<int64_t> in_order, missing;
      std::vector<uint32_t> expected_slots;
      for (uint32_t p = 0; p < partitions; ++p) {
        for (const int64_t key : distinct) {
          if (partition_of(key, partitions) != p) continue;
          in_order.push_back(key);
          const auto slot = slot_of.find(key);
          expected_slots.push_back(slot == slot_of.end() ? kNoSlot : slot->second);
          if (slot == slot_of.end()) missing.push_back(key);
        }
        expected_bounds.push_back(static_cast<uint32_t>(in_order.size()));
        expected_miss_bounds.push_back(static_cast<uint32_t>(missing.size()));
      }
      check(scene.on_host(one->bounds_on_host) == expected_bounds, "where the ids of tables begin");
      check(scene.on_host(one->miss_bounds) == expected_miss_bounds, "where the missing ids of tables begin");
      check(scene.on_host(one->unique.keys(), in_order.size()) == in_order, "the distinct ids");
      check(scene.on_host(one->found.slots(), in_order.size()) == expected_slots, "where they have rows");
      check(scene.on_host(one->found.missing_ids(), missing.size()) == missing, "which ids are missing");
      const GradientScene::Expected expected = one->batch.expected(missing, one->kept);
      check(equal_bits(scene.on_host(one->sum, expected.sums.size()), expected.sums), "the bits of the sums");
      check(scene.on_host(one->occurrences, missing.size()) == expected.occurrences, "how often ids occur");
      check(scene.on_host(one->last_positions, missing.size()) == expected.last_positions,
            "where they do last");
    }
    scene.device.synchronise(scene.stream);
  }
}

// --- Rows

// All rows of a batch, or the places of one of several tables; in the batch's order, or in another.
TEST(rows_are_gathered_and_scattered) {
  for_each_seed([](Scene& scene) {
    const uint32_t row_floats = 4 * (1 + scene.below(6));
    const uint32_t floats = scene.below(2) == 0 ? row_floats : 1 + scene.below(row_floats);
    const uint32_t rows = 1 + scene.below(60);
    const uint32_t most = scene.below(rows + 1);
    const uint32_t end = most - scene.below(most + 1) / 2;
    const uint32_t first = scene.below(end + 1) / 2;
    const uint32_t tables = 1 + scene.below(3) * 20;
    const bool in_order = scene.below(2) == 0;

    std::vector<float> values = scene.floats(size_t{rows} * row_floats);
    DeviceRows device_rows(scene.device, rows, row_floats);
    scene.device.copy_to_device(device_rows.floats().address(), values.data(), values.size() * sizeof(float),
                                scene.stream);
    std::vector<uint32_t> slots(rows), order(most);
    std::iota(slots.begin(), slots.end(), 0u);
    std::shuffle(slots.begin(), slots.end(), scene.random);
    slots.resize(most);
    std::iota(order.begin(), order.end(), 0u);
    if (!in_order) std::shuffle(order.begin(), order.end(), scene.random);
    for (uint32_t& slot : slots) {
      if (scene.below(10) == 0) slot = kNoSlot;
    }
    const DeviceArray<uint32_t> device_slots = scene.on_device(slots);
    const DeviceArray<uint32_t> device_order = scene.on_device(order);
    const DeviceArray<uint32_t> device_first = scene.on_device(size_t{first});
    const DeviceArray<uint32_t> device_end = scene.on_device(size_t{end});
    std::vector<float> batch = scene.floats(size_t{most} * floats);
    const uint32_t shift = scene.below(2);
    DeviceArray<float> device_batch(scene.device, shift + batch.size());
    const DeviceAddress batch_address = device_batch.address() + shift * sizeof(float);
    const DeviceRows::Batch described{batch_address,
                                      most,
                                      device_slots.constant(),
                                      {device_first.constant(), device_end.constant(), tables},
                                      in_order ? Global<const uint32_t>{} : device_order.constant()};
    const auto put_batch = [&] {
      if (most == 0) return;
      scene.device.copy_to_device(batch_address, batch.data(), batch.size() * sizeof(float), scene.stream);
    };
    const auto copy_each = [&](const auto& copy) {
      for (uint32_t i = first; i < end; ++i) {
        if (slots[i] != kNoSlot) copy(&values[slots[i] * row_floats], &batch[order[i] * floats]);
      }
    };
    put_batch();
    device_rows.gather(described, floats, scene.stream);
    copy_each([&](const float* row, float* of_batch) { std::copy_n(row, floats, of_batch); });
    std::vector<float> gathered(batch.size());
    if (most > 0) {
      scene.device.copy_to_host(gathered.data(), batch_address, batch.size() * sizeof(float), scene.stream);
    }
    check(equal_bits(gathered, batch), "the gathered rows");

    batch = scene.floats(batch.size());
    put_batch();
    device_rows.scatter(described, floats, scene.stream);
    copy_each([&](float* row, const float* of_batch) { std::copy_n(of_batch, floats, row); });
    check(equal_bits(scene.on_host(device_rows.floats(), values.size()), values),
          "the rows after the scatter");
  });
}

// --- Streams

// Finds ids on two streams, and moves rows between the finds on a third, as a tier does.
bool moves_between_finds(uint64_t seed, bool moves_wait, bool finds_wait) {
  constexpr uint32_t kSlots = 48, kIds = 96;
  Scene scene(seed);
  Device& device = scene.device;
  OwnedStream first(device), second(device), moves(device);
  OwnedEvent found_first(device), moved(device);
  std::vector<int64_t> ids = keys_from(0, kIds);
  std::vector<uint32_t> slots(kSlots);
  std::iota(slots.begin(), slots.end(), 0u);
  const DeviceArray<int64_t> keys = scene.on_device(ids);
  const DeviceArray<uint32_t> device_slots = scene.on_device(slots);
  const DeviceArray<uint32_t> id_count = scene.on_device(size_t{kIds}),
                              half = scene.on_device(size_t{kSlots});
  Mirror mirror(device, kSlots, kSlots / kBucketEntries, scene.stream);
  mirror.insert(keys.first(kSlots).as_const(), device_slots.constant(), half.constant(), scene.stream);
  FoundBatch before(device, kIds, 32), after(device, kIds, 32);
  DeviceArray<uint32_t> erased(device, kSlots);
  device.synchronise(scene.stream);

  before.find(mirror, keys.constant(), id_count.constant(), first);
  device.record(found_first, first);
  if (moves_wait) device.wait(moves, found_first);
  // The second half of the ids takes the slots of the first.
  mirror.erase(keys.first(kSlots).as_const(), erased.global(), half.constant(), moves);
  mirror.insert({keys.address() + kSlots * sizeof(int64_t), kSlots}, device_slots.constant(), half.constant(),
                moves);
  device.record(moved, moves);
  if (finds_wait) device.wait(second, moved);
  after.find(mirror, keys.constant(), id_count.constant(), second);
  device.synchronise(second);
  device.synchronise(first);
  device.synchronise(moves);
  std::vector<uint32_t> expected_before(kIds, kNoSlot), expected_after(kIds, kNoSlot);
  std::iota(expected_before.begin(), expected_before.begin() + kSlots, 0u);
  std::iota(expected_after.begin() + kSlots, expected_after.end(), 0u);
  return scene.on_host(before.slots(), kIds) == expected_before &&
         scene.on_host(after.slots(), kIds) == expected_after;
}

TEST(finds_before_and_after_a_move_on_another_stream_are_exact) {
  for (uint64_t seed = 0; seed < scaled_count(kSeeds); ++seed) {
    check(moves_between_finds(seed, true, true),
          [&] { return "seed " + std::to_string(seed) + ": another slot was found"; });
  }
}

TEST(a_wait_that_is_left_out_between_moves_and_finds_is_noticed) {
  for (const bool moves_wait : {false, true}) {
    uint64_t right = 0;
    for (uint64_t seed = 0; seed < scaled_count(kSeeds); ++seed)
      right += moves_between_finds(seed, moves_wait, !moves_wait);
    check(right < scaled_count(kSeeds) * 9 / 10,
          moves_wait ? "finds that don't wait for moves" : "moves that don't wait for finds");
  }
}

}  // namespace
}  // namespace embstore::gpu
