// Tests how accesses change the ranks of rows on the emulated device, against the host's ranks.
#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/operations/device_ranks.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/unique_batch.h"
#include "gpu/testing/scene.h"
#include "row/unique_ids.h"
#include "testing/tests.h"
#include "tiers/memory/slot_ranks.h"
#include "update/gradient_batch.h"

namespace embstore::gpu {
namespace {

// Copies the headers of all slots to and from a device.
class AllHeaders {
 public:
  AllHeaders(Scene& scene, uint32_t rows) : scene_(scene), headers_(scene.device, rows) {
    std::vector<uint32_t> slots(rows);
    std::iota(slots.begin(), slots.end(), 0u);
    slots_.emplace(scene.on_device(slots));
    count_.emplace(scene.on_device(rows));
  }
  void put(const std::vector<RowHeader>& headers, DeviceRanks& ranks) {
    headers_.copy_from(headers.data(), headers.size(), scene_.stream);
    ranks.put(batch(), scene_.stream);
  }
  std::vector<RowHeader> take(const DeviceRanks& ranks) {
    ranks.take(batch(), scene_.stream);
    return scene_.on_host(headers_, static_cast<uint32_t>(headers_.count()));
  }

 private:
  DeviceRanks::Batch batch() const { return {headers_.global(), slots_->constant(), count_->constant()}; }

  Scene& scene_;
  DeviceArray<RowHeader> headers_;
  std::optional<DeviceArray<uint32_t>> slots_;
  std::optional<DeviceArray<uint32_t>> count_;
};

// A batch whose first distinct ids have rows. It keeps its arrays until the streams have used them.
struct RankedBatch {
  RankedBatch(Scene& scene, uint32_t rows)
      : ids(scene.ids(scene.batch_size())),
        count(static_cast<uint32_t>(ids.size())),
        slots(rows),
        device_ids(scene.on_device(ids)),
        device_slots(scene.device, count),
        slots_of_ids(scene.device, count),
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
    std::vector<uint32_t> by_id;
    for (const int64_t id : ids) by_id.push_back(slot_of.at(id));
    slots_of_ids.copy_from(by_id.data(), count, scene.stream);
  }

  const std::vector<int64_t> ids;
  const uint32_t count;
  std::vector<uint32_t> slots;
  std::unordered_map<int64_t, uint32_t> slot_of;
  const DeviceArray<int64_t> device_ids;
  DeviceArray<uint32_t> device_slots;  // slots of distinct ids
  DeviceArray<uint32_t> slots_of_ids;
  UniqueBatch unique;
  GradientSums sums;
};

// Updates follow each other on one stream; look-ups may run beside them on another.
TEST(accesses_are_counted_as_in_the_hosts_first_tier) {
  for_each_seed([](Scene& scene) {
    const uint32_t rows = 1 + scene.below(60);
    std::vector<RowHeader> wanted(rows);
    SlotRanks ranks(rows, rows, /*accessed=*/true);
    for (uint32_t slot = 0; slot < rows; ++slot) {
      wanted[slot] = {.key = 0,
                      .frequency = scene.below(3) == 0 ? RowMeta::kFrequencyBits - 1 : scene.below(1000),
                      .version = RowMeta::kNeverUpdated,
                      .served = scene.below(1000),
                      .stamp = 1 + scene.below(2000),  // some are of a batch that began later
                      .save_span = 7};
      ranks.fill(slot, slot, wanted[slot].frequency, wanted[slot].served, wanted[slot].stamp);
    }
    DeviceRanks on_device(scene.device, rows);
    AllHeaders headers(scene, rows);
    headers.put(wanted, on_device);

    std::deque<RankedBatch> batches;
    const uint32_t batch_count = 1 + scene.below(3);
    while (batches.size() < batch_count) batches.emplace_back(scene, rows);
    scene.device.synchronise(scene.stream);
    const OwnedStream look_ups(scene.device);
    Launches launches;
    for (RankedBatch& batch : batches) {
      const uint64_t first_stamp = 1 + scene.below(1000);
      if (scene.below(2) == 0) {
        const Stream stream = scene.below(2) == 0 ? scene.stream : look_ups;
        on_device.add_hits(batch.slots_of_ids.constant(), {}, {}, first_stamp, launches);
        launches.put(scene.device, stream);
        for (uint32_t i = 0; i < batch.count; ++i) {
          const uint32_t slot = batch.slot_of.at(batch.ids[i]);
          if (slot != kNoSlot) ranks.count_served(slot, slot, {first_stamp + i, 1});
        }
        continue;
      }
      const CountedUpdate update{.global_step = static_cast<int64_t>(scene.random() >> 1),
                                 .first_stamp = first_stamp,
                                 .save_span = static_cast<uint16_t>(scene.below(1 << 16))};
      make_unique(batch.unique, batch.device_ids.constant(), scene.stream);
      sort(batch.sums, batch.unique, batch.count, scene.stream);
      on_device.add_update(batch.device_slots.constant(), {.end = batch.unique.count().constant()},
                           batch.sums, update, launches);
      launches.put(scene.device, scene.stream);
      GradientBatch gradients;
      gradients.group(batch.ids, std::vector<float>(batch.count).data(), 1);
      for (const KeyGradient& key : gradients.keys()) {
        const uint32_t slot = batch.slot_of.at(key.key);
        if (slot == kNoSlot) continue;
        RowHeader& header = wanted[slot];
        RowMeta meta = RowMeta::of(header.frequency, 0, 0);
        meta.count(key.occurrences, update.global_step, update.save_span);
        header.frequency = meta.frequency;
        header.version = meta.version;
        header.save_span = meta.save_span;
        ranks.pin(slot);
        ranks.count_update_and_unpin(slot, meta.frequency, first_stamp + key.last_position);
      }
    }
    for (uint32_t slot = 0; slot < rows; ++slot) {
      wanted[slot].served = ranks.served(slot);
      wanted[slot].stamp = ranks.stamp(slot);
    }
    scene.device.synchronise(look_ups);
    check(equal_bits(headers.take(on_device), wanted), "what is kept beside rows");
  });
}

}  // namespace
}  // namespace embstore::gpu
