// Ranks of rows on the emulated device against the host's: what accesses make of them, and which rows are the coldest.
#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/operations/coldest_slots.h"
#include "gpu/operations/device_ranks.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/unique_batch.h"
#include "gpu/testing/scene.h"
#include "memory/memory.h"
#include "movement/coldest_rows.h"
#include "row/unique_ids.h"
#include "testing/tests.h"
#include "tiers/memory/memory_tier.h"
#include "tiers/memory/slot_ranks.h"
#include "update/gradient_batch.h"

namespace embstore::gpu {
namespace {

struct HostRanks {
  std::vector<RowMeta> metas;
  std::vector<uint64_t> served;
  std::vector<uint64_t> stamps;
};

void copy_to(const DeviceRanks& ranks, const HostRanks& of, Scene& scene) {
  const auto copy = [&](const auto& array, const auto& values) {
    scene.device.copy_to_device(array.address(), values.data(), values.size() * sizeof(values[0]),
                                scene.stream);
  };
  copy(ranks.metas(), of.metas);
  copy(ranks.served(), of.served);
  copy(ranks.stamps(), of.stamps);
}

// A batch whose first distinct ids have rows; its arrays live until the streams have got there.
struct RankedBatch {
  RankedBatch(Scene& scene, uint32_t rows)
      : ids(scene.ids(scene.batch_size())),
        count(static_cast<uint32_t>(ids.size())),
        slots(rows),
        device_ids(scene.on_device(ids)),
        device_slots(scene.device, count),
        unique(scene.device, count, scene.block_threads()),
        sums(scene.device, count, 1, scene.block_threads()) {
    std::iota(slots.begin(), slots.end(), 0u);
    std::shuffle(slots.begin(), slots.end(), scene.random);
    slots.resize(count, kNoSlot);
    for (uint32_t& slot : slots) {
      if (scene.below(10) == 0) slot = kNoSlot;
    }
    device_slots.copy_from(slots.data(), count, scene.stream);
    const UniqueIds distinct(ids);
    for (size_t i = 0; i < distinct.keys.size(); ++i) slot_of[distinct.keys[i]] = slots[i];
  }

  const std::vector<int64_t> ids;
  const uint32_t count;
  std::vector<uint32_t> slots;
  std::unordered_map<int64_t, uint32_t> slot_of;
  const DeviceArray<int64_t> device_ids;
  DeviceArray<uint32_t> device_slots;
  UniqueBatch unique;
  GradientSums sums;
};

// Updates follow each other on one stream, beside look-ups on others.
TEST(accesses_are_counted_as_in_the_hosts_first_tier) {
  for_each_seed([](Scene& scene) {
    const uint32_t rows = 1 + scene.below(60);
    HostRanks wanted;
    SlotRanks ranks(rows, rows, /*accessed=*/true);
    for (uint32_t slot = 0; slot < rows; ++slot) {
      wanted.metas.push_back(RowMeta::of(
          scene.below(3) == 0 ? RowMeta::kFrequencyBits - 1 : scene.below(1000), RowMeta::kNeverUpdated, 7));
      wanted.served.push_back(scene.below(1000));
      // Some were used by a batch that began later.
      wanted.stamps.push_back(1 + scene.below(2000));
      ranks.fill(slot, slot, wanted.metas[slot].frequency, wanted.served[slot], wanted.stamps[slot]);
    }
    DeviceRanks on_device(scene.device, rows, scene.stream);
    copy_to(on_device, wanted, scene);

    std::deque<RankedBatch> batches;
    const uint32_t batch_count = 1 + scene.below(3);
    while (batches.size() < batch_count) batches.emplace_back(scene, rows);
    scene.device.synchronise(scene.stream);
    const OwnedStream look_ups(scene.device);
    for (RankedBatch& batch : batches) {
      const uint64_t first_stamp = 1 + scene.below(1000);
      if (scene.below(2) == 0) {
        const Stream stream = scene.below(2) == 0 ? scene.stream : look_ups;
        batch.unique.make_unique(batch.device_ids.constant(), stream);
        on_device.count_hits(batch.device_slots.constant(), batch.unique, batch.count, first_stamp, stream);
        for (uint32_t i = 0; i < batch.count; ++i) {
          const uint32_t slot = batch.slot_of.at(batch.ids[i]);
          if (slot != kNoSlot) ranks.count_served(slot, slot, first_stamp + i);
        }
        continue;
      }
      const CountedUpdate update{.global_step = static_cast<int64_t>(scene.random() >> 1),
                                 .first_stamp = first_stamp,
                                 .save_span = static_cast<uint16_t>(scene.below(1 << 16))};
      batch.unique.make_unique(batch.device_ids.constant(), scene.stream);
      batch.sums.sort(batch.unique, batch.count, scene.stream);
      on_device.count_update(batch.device_slots.constant(), batch.unique, batch.sums, update, scene.stream);
      GradientBatch gradients;
      gradients.group(batch.ids, std::vector<float>(batch.count).data(), 1);
      for (const KeyGradient& key : gradients.keys()) {
        const uint32_t slot = batch.slot_of.at(key.key);
        if (slot == kNoSlot) continue;
        RowMeta& meta = wanted.metas[slot];
        meta.count(key.occurrences, update.global_step, update.save_span);
        ranks.pin(slot);
        ranks.count_update_and_unpin(slot, meta.frequency, first_stamp + key.last_position);
      }
    }
    for (uint32_t slot = 0; slot < rows; ++slot) {
      wanted.served[slot] = ranks.served(slot);
      wanted.stamps[slot] = ranks.stamp(slot);
    }
    scene.device.synchronise(look_ups);
    check(equal_bits(scene.on_host(on_device.metas(), rows), wanted.metas), "what is kept beside rows");
    check(scene.on_host(on_device.served(), rows) == wanted.served, "accesses by look-ups");
    check(scene.on_host(on_device.stamps(), rows) == wanted.stamps, "the stamps");
  });
}

// Of few values, of many, and of such as differ in high digits.
std::vector<uint64_t> some_words(Scene& scene, size_t count, uint32_t bits) {
  const uint64_t distinct = std::array<uint64_t, 5>{1, 3, 300, 70'000, uint64_t{1} << bits}[scene.below(5)];
  const uint64_t from = scene.below(2) == 0
                            ? 0
                            : scene.random() % ((uint64_t{1} << bits) - std::min(distinct, uint64_t{70'000}));
  std::vector<uint64_t> words(count);
  for (uint64_t& word : words) word = (from + scene.random() % distinct) & ((uint64_t{1} << bits) - 1);
  return words;
}

// The host's tier, some of whose slots have rows.
struct TierScene {
  TierScene(Scene& of, CacheStrategy by)
      : scene(of),
        slots(1 + of.below(400)),
        strategy(by),
        tier("DRAM", layout, MemoryRole::kFirst, slots, slots,
             allocate_heap_memory(MemoryTier::bytes_for(layout, MemoryRole::kFirst, slots))),
        coldest(tier, by) {
    std::vector<Slot> taken(slots);
    check(tier.slots().try_claim(slots), "there is no slot for a row");
    tier.slots().take(taken);
    const std::vector<float> row(layout.row_floats());
    const std::vector<uint64_t> frequencies = some_words(scene, slots, 48);
    const std::vector<uint64_t> served = some_words(scene, slots, 62);
    const std::vector<uint64_t> stamps = some_words(scene, slots, 63);
    const uint32_t empty_in_five = scene.below(6);
    on_device.stamps.resize(slots);
    for (uint32_t slot = 0; slot < slots; ++slot) {
      // A slot that a row has left still has its count.
      on_device.metas.push_back(RowMeta::of(frequencies[slot], 0, 0));
      on_device.served.push_back(served[slot]);
      if (scene.below(5) < empty_in_five) continue;
      tier.put(slot,
               {.key = slot,
                .frequency = frequencies[slot],
                .version = 0,
                .served = served[slot],
                .stamp = stamps[slot]},
               row.data());
      on_device.stamps[slot] = tier.ranks().stamp(slot);
    }
  }

  // The coldest first.
  std::vector<ColdestRows::Candidate> sorted(uint32_t among) const {
    std::vector<ColdestRows::Candidate> rows;
    for (Slot slot = 0; slot < among; ++slot) {
      if (tier.ranks().is_filled(slot)) rows.push_back({tier.ranks().rank(slot, strategy), slot});
    }
    std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    return rows;
  }

  Scene& scene;
  const RowLayout layout{4, 0};
  const uint32_t slots;
  const CacheStrategy strategy;
  MemoryTier tier;
  ColdestRows coldest;
  HostRanks on_device;
};

TEST(the_coldest_rows_are_those_of_the_host) {
  for_each_seed([](Scene& scene) {
    TierScene host(scene, scene.below(2) == 0 ? CacheStrategy::kLfu : CacheStrategy::kLru);
    DeviceRanks ranks(scene.device, host.slots, scene.stream);
    copy_to(ranks, host.on_device, scene);
    const uint32_t most = scene.below(3) == 0 ? scene.below(host.slots + 1) : host.slots + 5;
    ColdestSlots coldest(scene.device, host.slots, most, scene.block_threads(), 1 + scene.below(5));
    for (int search = 0; search < 2; ++search) {
      const uint32_t among = scene.below(3) == 0 ? scene.below(host.slots + 1) : host.slots;
      std::vector<ColdestRows::Candidate> rows = host.sorted(among);
      const auto filled = static_cast<uint32_t>(rows.size());
      const uint32_t wanted = std::array<uint32_t, 6>{0,      1,          scene.below(filled + 1),
                                                      filled, filled + 1, 0xffffffff}[scene.below(6)];
      const DeviceArray<uint32_t> count = scene.on_device(wanted);
      coldest.find(ranks, among, host.strategy, count.constant(), scene.stream);

      const uint32_t chosen = std::min({wanted, filled, most});
      check(scene.number(coldest.count()) == chosen, "how many rows are chosen");
      const std::vector<uint32_t> slots = scene.on_host(coldest.slots(), chosen);
      // Rows that rank the same go in the order of slots.
      rows.resize(chosen);
      std::vector<uint32_t> expected;
      for (const auto& row : rows) expected.push_back(row.slot);
      std::sort(expected.begin(), expected.end());
      check(slots == expected, "which rows are chosen");
      if (among < host.slots) continue;
      const std::vector<ColdestRows::Candidate>& given = host.coldest.next(chosen);
      check(given.size() <= chosen && given.empty() == (chosen == 0), "the host gives some of them");
      for (size_t i = 0; i < given.size(); ++i)
        check(given[i].rank == rows[i].rank, "the host's rows are as cold");
    }
  });
}

}  // namespace
}  // namespace embstore::gpu
