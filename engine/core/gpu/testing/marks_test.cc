// Tests marks of slots on the emulated device against a plain array of marks.
#include <algorithm>
#include <numeric>
#include <vector>

#include "gpu/kernels/mirror.h"
#include "gpu/operations/slot_marks.h"
#include "gpu/testing/scene.h"
#include "testing/tests.h"

namespace embstore::gpu {
namespace {

// Returns some of the slots, none twice, with kNoSlot among them.
std::vector<uint32_t> some_slots(Scene& scene, uint32_t slots) {
  std::vector<uint32_t> some(slots);
  std::iota(some.begin(), some.end(), 0u);
  std::shuffle(some.begin(), some.end(), scene.random);
  some.resize(scene.below(slots + 1));
  for (uint32_t& slot : some) {
    if (scene.below(6) == 0) slot = kNoSlot;
  }
  return some;
}

// Some places of a batch that tables share.
struct SomePlaces {
  SomePlaces(Scene& scene, size_t most)
      : first(scene.below(most + 1)),
        end(first + scene.below(most + 1 - first)),
        tables(1 + 30 * scene.below(2)),
        first_on_device(scene.on_device(size_t{first})),
        end_on_device(scene.on_device(size_t{end})) {}
  Places on_device() const { return {first_on_device.constant(), end_on_device.constant(), tables}; }

  uint32_t first;
  uint32_t end;
  uint32_t tables;
  DeviceArray<uint32_t> first_on_device;
  DeviceArray<uint32_t> end_on_device;
};

TEST(the_marked_slots_of_a_batch_are_listed) {
  for_each_seed([](Scene& scene) {
    const uint32_t slots = 1 + scene.batch_size();
    SlotMarks marks(scene.device, slots, scene.stream);
    std::vector<bool> is_marked(slots);
    DeviceArray<uint32_t> listed(scene.device, slots);
    DeviceArray<uint32_t> listed_count(scene.device, 1);
    for (int round = 0; round < 3; ++round) {
      const std::vector<uint32_t> set = some_slots(scene, slots);
      const SomePlaces to_set(scene, set.size());  // other slots keep their marks
      const bool mark = round == 0 || scene.below(2) == 0;
      const DeviceArray<uint32_t> set_slots = scene.on_device(set);
      marks.set(mark, set_slots.first(set.size()).as_const(), to_set.on_device(), scene.stream);
      for (uint32_t i = to_set.first; i < to_set.end; ++i) {
        if (set[i] != kNoSlot) is_marked[set[i]] = mark;
      }
      const std::vector<uint32_t> asked = some_slots(scene, slots);
      const SomePlaces to_list(scene, asked.size());
      const DeviceArray<uint32_t> asked_slots = scene.on_device(asked);
      listed_count.fill(0, scene.stream);
      Launches launches;
      marks.add_list(asked_slots.first(asked.size()).as_const(), to_list.on_device(), listed.global(),
                     listed_count.global(), launches);
      launches.put(scene.device, scene.stream);
      std::vector<uint32_t> wanted;
      for (uint32_t i = to_list.first; i < to_list.end; ++i) {
        if (asked[i] != kNoSlot && is_marked[asked[i]]) wanted.push_back(asked[i]);
      }
      check(scene.number(listed_count) == wanted.size(), "another number of slots is listed");
      std::vector<uint32_t> found = scene.on_host(listed, to_list.first + wanted.size());
      found.erase(found.begin(), found.begin() + to_list.first);
      std::sort(found.begin(), found.end());
      std::sort(wanted.begin(), wanted.end());
      check(found == wanted, "other slots are listed");
    }
  });
}

}  // namespace
}  // namespace embstore::gpu
