// Tests what the emulated device shows of programs that forget to wait, and that it leaves right programs
// alone.
#include "gpu/emulated/emulated_device.h"

#include <unistd.h>

#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/kernels/language.h"
#include "gpu/operations/launches.h"
#include "memory/huge_pages.h"
#include "testing/child.h"
#include "testing/tests.h"

namespace embstore::gpu {
namespace {

constexpr uint64_t kSeeds = 1000;

struct AddArguments {
  Global<uint32_t> values;
  uint32_t addend;
};

EMBSTORE_KERNEL(add, AddArguments) {
  const uint32_t i = global_thread();
  if (i < arguments.values.count) arguments.values[i] += arguments.addend;
}

struct ReverseArguments {
  Global<const uint32_t> values;
  Global<uint32_t> reversed;  // within each block
};

// Each thread writes its own element of the shared array and reads another's.
inline void reverse(const ReverseArguments& arguments, bool with_barrier) {
  EMBSTORE_SHARED(uint32_t, shared, kMaxBlockThreads);
  shared[thread_index()] = arguments.values[global_thread()];
  if (with_barrier) sync_block();
  arguments.reversed[global_thread()] = shared[block_threads() - 1 - thread_index()];
}

EMBSTORE_KERNEL(reverse_in_block, ReverseArguments) { reverse(arguments, true); }
EMBSTORE_KERNEL(reverse_without_barrier, ReverseArguments) { reverse(arguments, false); }

EMBSTORE_KERNEL(half_come_to_the_barrier, AddArguments) {
  if (thread_index() < block_threads() / 2) sync_block();
  arguments.values[global_thread()] = 0;
}

EMBSTORE_KERNEL(add_up, AddArguments) { atomic_add(arguments.values[0], arguments.addend); }
EMBSTORE_KERNEL(add_up_unatomically, AddArguments) { arguments.values[0] += arguments.addend; }
// Adds as if no other thread could change the sum meanwhile.
EMBSTORE_KERNEL(add_up_by_one_try, AddArguments) {
  const uint32_t before = atomic_add(arguments.values[0], 0);
  atomic_exchange_if(arguments.values[0], before, before + arguments.addend);
}

EMBSTORE_KERNEL(write_own_element_twice, AddArguments) {
  arguments.values[global_thread()] = arguments.addend;
  arguments.values[global_thread()] += arguments.addend;
}
EMBSTORE_KERNEL(all_write_one_element, AddArguments) { arguments.values[0] = arguments.addend; }
EMBSTORE_KERNEL(read_what_another_block_writes, AddArguments) {
  if (thread_index() == 0 && block_index() == 0) arguments.values[0] = arguments.addend;
  sync_block();
  arguments.values[1 + global_thread()] = arguments.values[0];
}
EMBSTORE_KERNEL(read_what_is_changed_atomically, AddArguments) {
  atomic_add(arguments.values[0], 1);
  arguments.values[1 + global_thread()] = arguments.values[0];
}

EMBSTORE_KERNEL(read_past_the_end, AddArguments) { arguments.values[global_thread() + 1] = arguments.addend; }

std::vector<uint32_t> ascending(uint32_t count, uint32_t first = 0) {
  std::vector<uint32_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::vector<uint32_t> read(const DeviceArray<uint32_t>& array, Stream stream) {
  std::vector<uint32_t> values(array.count());
  array.copy_to(values.data(), values.size(), stream);
  return values;
}

// Counts the schedules in which scene(device) is true.
template <class Scene>
uint64_t count_schedules(const Scene& scene) {
  uint64_t count = 0;
  for (uint64_t seed = 0; seed < scaled_count(kSeeds); ++seed) {
    EmulatedDevice device({.memory_bytes = 1 << 20, .seed = seed});
    count += scene(device);
  }
  return count;
}

template <class Scene>
void check_always_right(const Scene& scene, const std::string& what) {
  count_schedules([&](EmulatedDevice& device) {
    check(scene(device), [&] { return what + "; " + device.last_schedule(); });
    return true;
  });
}

// A wrong program may give the right result in some schedules, and lose no device, but not in many.
template <class Scene>
void check_noticed(const Scene& scene, const std::string& what) {
  const uint64_t noticed = count_schedules([&](EmulatedDevice& device) {
    try {
      return !scene(device);
    } catch (const Error& error) {
      check(error.kind() == ErrorKind::kDeviceLost, error.what());
      return true;
    }
  });
  check(noticed > scaled_count(kSeeds) / 8, what + ": noticed in " + std::to_string(noticed) + " of " +
                                                std::to_string(scaled_count(kSeeds)) + " schedules only");
}

// --- Streams and events

// One stream makes numbers, and another stream uses them.
bool numbers_pass_between_streams(EmulatedDevice& device, bool waits) {
  constexpr uint32_t kCount = 300;
  OwnedStream makes(device), uses(device);
  OwnedEvent made(device);
  DeviceArray<uint32_t> numbers(device, kCount), used(device, kCount);
  const std::vector<uint32_t> values = ascending(kCount);
  numbers.copy_from(values.data(), kCount, makes);
  device.launch(add, Grid::of(kCount, 64), {numbers.global(), 5}, makes);
  device.record(made, makes);
  if (waits) device.wait(uses, made);
  device.copy_on_device(used.address(), numbers.address(), numbers.bytes(), uses);
  device.synchronise(uses);
  const bool right = read(used, uses) == ascending(kCount, 5);
  device.synchronise(makes);
  return right;
}

TEST(an_event_orders_two_streams) {
  check_always_right([](EmulatedDevice& device) { return numbers_pass_between_streams(device, true); },
                     "numbers were used before they were made");
}

TEST(a_wait_that_is_left_out_is_noticed) {
  check_noticed([](EmulatedDevice& device) { return numbers_pass_between_streams(device, false); },
                "a stream that doesn't wait for another");
}

TEST(a_wait_is_for_the_last_record_before_it) {
  const auto scene = [](EmulatedDevice& device) {
    OwnedStream first(device), second(device), third(device);
    OwnedEvent event(device);
    DeviceArray<uint32_t> a(device, 1), b(device, 1), seen(device, 2);
    device.wait(third, event);  // never recorded: it waits for nothing
    a.fill(1, first);
    device.record(event, first);
    b.fill(2, second);
    device.record(event, second);
    device.wait(third, event);
    device.copy_on_device(seen.address(), b.address(), 4, third);
    device.record(event, first);
    device.wait(third, event);
    device.copy_on_device(seen.address() + 4, a.address(), 4, third);
    const bool right = read(seen, third) == std::vector<uint32_t>{0x02020202, 0x01010101};
    device.synchronise(second);
    return right;
  };
  check_always_right(scene, "a stream waited for another record of the event");
}

TEST(a_query_becomes_true_only_once_the_stream_has_got_there) {
  const auto scene = [](EmulatedDevice& device) {
    OwnedStream stream(device);
    OwnedEvent event(device);
    check(device.query(event), "an event that was never recorded has been reached");
    PinnedArray<uint32_t> result(device, 1);
    DeviceArray<uint32_t> value(device, 1);
    value.fill(7, stream);
    value.copy_to(result.data(), 1, stream);
    device.record(event, stream);
    const uint64_t waits = device.host_waits();
    while (!device.query(event)) {
    }
    check(device.host_waits() == waits, "a query was counted as a wait");
    return result[0] == 0x07070707;
  };
  check_always_right(scene, "an event was reached before its stream");
}

TEST(only_waits_of_the_host_are_counted) {
  EmulatedDevice device({.memory_bytes = 1 << 20, .seed = 3});
  OwnedStream stream(device);
  OwnedEvent event(device);
  DeviceArray<uint32_t> values(device, 8);
  PinnedArray<uint32_t> pinned(device, 8);
  std::vector<uint32_t> pageable(8);
  const uint64_t before = device.host_waits();
  std::fill_n(pinned.data(), 8, 1u);
  values.copy_from(pinned.data(), 8, stream);
  device.launch(add, {1, 8}, {values.global(), 1}, stream);
  values.copy_to(pinned.data(), 8, stream);
  device.record(event, stream);
  device.wait(stream, event);
  check(device.host_waits() == before, "work on streams made the host wait");
  values.copy_to(pageable.data(), 8, stream);
  check(device.host_waits() == before + 1, "a copy to pageable memory waits");
  values.copy_from(pageable.data(), 8, stream);
  check(device.host_waits() == before + 2, "a copy from pageable memory may wait");
  device.synchronise(stream);
  device.synchronise(event);
  check(device.host_waits() == before + 4, "each synchronise() is a wait");
  {
    const DeviceArray<uint32_t> another(device, 8);
  }
  {
    const PinnedArray<uint32_t> another(device, 8);
  }
  check(device.host_waits() == before + 8,
        "CUDA may wait for all streams where memory is allocated or freed");
}

TEST(a_schedule_is_the_same_for_the_same_seed) {
  std::set<std::string> schedules;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::string first;
    for (int time = 0; time < 2; ++time) {
      EmulatedDevice device({.memory_bytes = 1 << 20, .seed = seed});
      numbers_pass_between_streams(device, false);
      if (time == 0) first = device.last_schedule();
      check(device.last_schedule() == first, "another schedule with the same seed: " + first);
    }
    schedules.insert(first.substr(first.find('\n')));
  }
  check(schedules.size() > 25,
        "50 seeds drew no more than " + std::to_string(schedules.size()) + " schedules");
}

// --- Copies

// Overwrites a buffer of the host after a copy from it was put on a stream. Returns whether the copy got the
// old contents.
template <class Buffer>
bool overwrite_early(EmulatedDevice& device, Buffer& buffer, bool waits) {
  OwnedStream stream(device);
  DeviceArray<uint32_t> copied(device, 100);
  std::memset(&buffer[0], 1, 400);
  copied.copy_from(&buffer[0], 100, stream);
  if (waits) device.synchronise(stream);
  std::memset(&buffer[0], 2, 400);
  return read(copied, stream) == std::vector<uint32_t>(100, 0x01010101);
}

TEST(pageable_memory_may_be_overwritten_at_once) {
  const auto scene = [](EmulatedDevice& device) {
    std::vector<uint32_t> buffer(100);
    return overwrite_early(device, buffer, false);
  };
  check_always_right(scene, "a copy from pageable memory saw what was written later");
}

TEST(pinned_memory_that_is_overwritten_too_early_is_noticed) {
  const auto scene = [](EmulatedDevice& device, bool waits) {
    PinnedArray<uint32_t> buffer(device, 100);
    return overwrite_early(device, buffer, waits);
  };
  check_always_right([&](EmulatedDevice& device) { return scene(device, true); }, "the copy had not run");
  check_noticed([&](EmulatedDevice& device) { return scene(device, false); }, "an early overwrite");
}

TEST(a_read_before_the_copy_ended_is_noticed) {
  const auto scene = [](EmulatedDevice& device, bool waits) {
    OwnedStream stream(device);
    PinnedArray<uint32_t> result(device, 100);
    DeviceArray<uint32_t> values(device, 100);
    values.fill(9, stream);
    values.copy_to(result.data(), 100, stream);
    if (waits) device.synchronise(stream);
    const bool right =
        std::vector<uint32_t>(result.data(), result.data() + 100) == std::vector<uint32_t>(100, 0x09090909);
    device.synchronise(stream);
    return right;
  };
  check_always_right([&](EmulatedDevice& device) { return scene(device, true); }, "the copy had not ended");
  check_noticed([&](EmulatedDevice& device) { return scene(device, false); }, "an early read");
}

TEST(a_reader_that_does_not_wait_may_see_a_part_of_a_copy) {
  const auto sees_a_part = [](EmulatedDevice& device) {
    OwnedStream writes(device), reads(device);
    DeviceArray<uint32_t> source(device, 100), to(device, 100), seen(device, 100);
    source.fill(1, writes);
    to.fill(2, writes);
    device.synchronise(writes);
    device.copy_on_device(to.address(), source.address(), source.bytes(), writes);
    device.copy_on_device(seen.address(), to.address(), to.bytes(), reads);
    const std::vector<uint32_t> values = read(seen, reads);
    device.synchronise(writes);
    return std::set<uint32_t>(values.begin(), values.end()).size() == 2;
  };
  check(count_schedules(sees_a_part) > 0, "no reader saw a half of a copy");
}

// --- Memory

TEST(a_host_that_follows_a_device_address_crashes) {
  const pid_t child = start_child([] {
    EmulatedDevice device({.memory_bytes = 1 << 20, .seed = 1});
    const DeviceAddress address = device.allocate(64);
    close(STDERR_FILENO);  // a sanitizer would print a report
    const volatile auto* const followed = reinterpret_cast<const uint32_t*>(address.value);
    (void)*followed;
  });
  check(end_of_child(child) != 0, "the host read the device's memory");
}

TEST(a_full_device_throws_and_stays_unchanged) {
  EmulatedDevice device({.memory_bytes = 64 << 10, .seed = 1});
  const DeviceAddress most = device.allocate(60 << 10);
  const std::string message = error_of(ErrorKind::kStoreFull, [&] { device.allocate(5000); });
  check(message.find("5000 bytes were asked for, and 4096 of 65536 are free") != std::string::npos, message);
  check(device.memory().free_bytes == 4096, "free bytes");
  device.free(device.allocate(4096));
  device.free(most);
  check(device.memory().free_bytes == 64 << 10, "all is free again");
}

TEST(freed_memory_can_be_allocated_again_without_end) {
  EmulatedDevice device({.memory_bytes = 256 << 10, .seed = 5});
  emulated::Draws draws(7);
  std::vector<DeviceAddress> held;
  std::set<uint64_t> addresses;
  for (int step = 0; step < 20000; ++step) {
    if (held.size() > 8 || (!held.empty() && draws.one_in(2))) {
      const size_t i = draws.below(held.size());
      addresses.erase(held[i].value);
      device.free(held[i]);
      held[i] = held.back();
      held.pop_back();
    } else {
      held.push_back(device.allocate(1 + draws.below(20000)));
      check(held.back().value % 256 == 0, "an address is aligned to 256 bytes");
      check(addresses.insert(held.back().value).second, "an address was given out twice");
    }
  }
}

// Returns the message of the error with which a scene loses the device.
template <class Scene>
std::string lost_by(const Scene& scene, uint64_t seed = 2) {
  EmulatedDevice device({.memory_bytes = 1 << 20, .seed = seed});
  const std::string message = error_of(ErrorKind::kDeviceLost, [&] { scene(device); });
  const std::string later = error_of(ErrorKind::kDeviceLost, [&] { device.allocate(1); });
  check(later == message, "a lost device says why, whatever is asked: " + later);
  return message;
}

void check_has(const std::string& message, const std::string& part) {
  check(message.find(part) != std::string::npos, "\"" + part + "\" is not in: " + message);
}

TEST(a_use_of_freed_memory_is_found) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::string by_kernel = lost_by(
        [](EmulatedDevice& device) {
          const DeviceAddress address = device.allocate(400);
          device.synchronise(Stream{});
          device.free(address);
          device.launch(add, {1, 100}, {{address, 100}, 1}, Stream{});
          device.synchronise(Stream{});
        },
        seed);
    check_has(by_kernel, "kernel embstore_add");
    check_has(by_kernel, "was freed");
    const std::string by_copy = lost_by(
        [](EmulatedDevice& device) {
          const DeviceAddress first = device.allocate(400), second = device.allocate(400);
          device.free(first);
          device.copy_on_device(second, first, 400, Stream{});
          device.synchronise(Stream{});
        },
        seed);
    check_has(by_copy, "copy on device");
    check_has(by_copy, "was freed");
  }
}

TEST(memory_that_is_freed_while_a_stream_uses_it_is_noticed) {
  check_noticed(
      [](EmulatedDevice& device) {
        OwnedStream stream(device);
        DeviceArray<uint32_t> kept(device, 100);
        {
          DeviceArray<uint32_t> freed(device, 100);
          freed.fill(1, stream);
          device.copy_on_device(kept.address(), freed.address(), 400, stream);
        }
        device.synchronise(stream);
        return true;
      },
      "memory that is still in use was freed");
}

TEST(pinned_memory_that_is_freed_too_early_is_noticed) {
  check_noticed(
      [](EmulatedDevice& device) {
        OwnedStream stream(device);
        DeviceArray<uint32_t> values(device, 100);
        values.copy_from(PinnedArray<uint32_t>(device, 100).data(), 100, stream);
        device.synchronise(stream);
        return true;
      },
      "pinned memory that a copy still reads was freed");
}

TEST(an_access_out_of_bounds_is_found) {
  check_has(lost_by([](EmulatedDevice& device) {
              DeviceArray<uint32_t> values(device, 100);
              device.launch(read_past_the_end, {1, 100}, {values.global(), 1}, Stream{});
              device.synchronise(Stream{});
            }),
            "block 0, thread 99: element 100 of an array of 100");
  // The kernel is told that the array is larger than the allocation.
  check_has(lost_by([](EmulatedDevice& device) {
              DeviceArray<uint32_t> values(device, 100), behind(device, 100);
              device.launch(add, {1, 101}, {{values.address(), 101}, 1}, Stream{});
              device.synchronise(Stream{});
            }),
            "is byte 400 of an allocation of 400");
  check_has(lost_by([](EmulatedDevice& device) {
              DeviceArray<uint32_t> values(device, 100);
              device.fill(values.address() + 4, 0, 400, Stream{});
              device.synchronise(Stream{});
            }),
            "fill: ");
  check_has(lost_by([](EmulatedDevice& device) {
              DeviceArray<uint32_t> values(device, 100);
              device.launch(add, {1, 1}, {{values.address() + 2, 1}, 1}, Stream{});
              device.synchronise(Stream{});
            }),
            "aligned to 4");
  check_has(lost_by([](EmulatedDevice& device) {
              device.launch(add, {1, 1}, {{DeviceAddress{}, 1}, 1}, Stream{});
              device.synchronise(Stream{});
            }),
            "0x0 is no address");
}

TEST(invalid_streams_events_and_addresses_are_refused) {
  EmulatedDevice device({.memory_bytes = 1 << 20, .seed = 1});
  Stream gone;
  {
    gone = OwnedStream(device);
  }
  const DeviceAddress address = device.allocate(8);
  check_throws(ErrorKind::kInvalidArgument, "no stream", [&] { device.fill(address, 0, 8, gone); });
  check_throws(ErrorKind::kInvalidArgument, "no event", [&] { device.record(Event{99}, Stream{}); });
  check_throws(ErrorKind::kInvalidArgument, "can't be freed", [&] { device.free(address + 4); });
  device.free(address);
  check_throws(ErrorKind::kInvalidArgument, "can't be freed", [&] { device.free(address); });
  check_throws(ErrorKind::kInvalidArgument, "grid",
               [&] { device.launch(add, {1, kMaxBlockThreads + 1}, {{address, 1}, 1}, Stream{}); });
  const Global<uint32_t> values{address, 2};
  check_throws(ErrorKind::kInvalidArgument, "only kernels reach it", [&] { values[0] = 1; });
}

TEST(a_device_that_fails_is_lost_for_good) {
  const std::string message = lost_by([](EmulatedDevice& device) {
    OwnedStream stream(device);
    DeviceArray<uint32_t> values(device, 100);  // gives its memory back although the device is lost
    PinnedArray<uint32_t> pinned(device, 100);
    device.lose("a test says so");
    values.fill(0, stream);
  });
  check_has(message, "the emulated device is lost: a test says so");
}

// --- Kernels

bool reverses(EmulatedDevice& device, const Kernel<ReverseArguments>& kernel) {
  constexpr uint32_t kCount = 96, kBlock = 32;
  DeviceArray<uint32_t> values(device, kCount), reversed(device, kCount);
  const std::vector<uint32_t> numbers = ascending(kCount);
  values.copy_from(numbers.data(), kCount, Stream{});
  device.launch(kernel, {kCount / kBlock, kBlock}, {values.constant(), reversed.global()}, Stream{});
  std::vector<uint32_t> expected = numbers;
  for (auto block = expected.begin(); block != expected.end(); block += kBlock) {
    std::reverse(block, block + kBlock);
  }
  return read(reversed, Stream{}) == expected;
}

TEST(a_barrier_orders_the_threads_of_a_block) {
  check_always_right([](EmulatedDevice& device) { return reverses(device, reverse_in_block); },
                     "a thread went past the barrier too early");
}

TEST(a_barrier_that_is_left_out_is_noticed) {
  uint64_t races = 0;
  const uint64_t wrong = count_schedules([&races](EmulatedDevice& device) {
    try {
      return !reverses(device, reverse_without_barrier);
    } catch (const Error& error) {
      check_has(error.what(), "a race: it ");
      ++races;
      return false;
    }
  });
  check(wrong + races == scaled_count(kSeeds), "a kernel without its barrier was right");
  check(wrong > 0 && races > 0, "it shows in what the kernel gives, and as a race");
}

TEST(a_barrier_that_some_threads_miss_is_found) {
  check_has(lost_by([](EmulatedDevice& device) {
              DeviceArray<uint32_t> values(device, 64);
              device.launch(half_come_to_the_barrier, {1, 64}, {values.global(), 1}, Stream{});
              device.synchronise(Stream{});
            }),
            "32 threads wait at a barrier, but 32 ended without coming to it");
}

TEST(an_addition_that_is_not_atomic_is_noticed) {
  const auto scene = [](EmulatedDevice& device, const Kernel<AddArguments>& kernel) {
    DeviceArray<uint32_t> sum(device, 1);
    sum.fill(0, Stream{});
    device.launch(kernel, {4, 64}, {sum.global(), 1}, Stream{});
    return read(sum, Stream{}) == std::vector<uint32_t>{4 * 64};
  };
  check_always_right([&](EmulatedDevice& device) { return scene(device, add_up); }, "an atomic addition");
  check_noticed([&](EmulatedDevice& device) { return scene(device, add_up_by_one_try); }, "a lost addition");
}

// Fewer than the number of schedules that look for races, which is one in eight.
uint64_t searches() { return scaled_count(kSeeds) / 10; }

// In how many schedules the kernel is found to race.
uint64_t races_found(const Kernel<AddArguments>& kernel, uint32_t blocks) {
  return count_schedules([&](EmulatedDevice& device) {
    DeviceArray<uint32_t> values(device, 1 + blocks * 32);
    try {
      device.launch(kernel, {blocks, 32}, {values.global(), 1}, Stream{});
      device.synchronise(Stream{});
      return false;
    } catch (const Error& error) {
      check_has(error.what(), "a race: it ");
      return true;
    }
  });
}

TEST(a_race_is_found_whatever_the_schedule) {
  check(races_found(add, 3) == 0, "threads with elements of their own race");
  check(races_found(write_own_element_twice, 3) == 0, "a thread races with itself");
  check(races_found(add_up, 3) == 0, "atomic additions race");
  check(races_found(add_up_by_one_try, 3) == 0, "atomic accesses race");
  check(races_found(read_what_another_block_writes, 1) == 0, "a barrier orders nothing");
  check(races_found(add_up_unatomically, 1) > searches(), "additions that aren't atomic");
  check(races_found(all_write_one_element, 1) > searches(), "two writes");
  check(races_found(read_what_another_block_writes, 2) > searches(), "a barrier orders no other block");
  check(races_found(read_what_is_changed_atomically, 1) > searches(), "a read beside atomic changes");
}

// There are more runs than fit into a launch, and they differ in size.
TEST(runs_that_are_launched_together_have_arguments_and_blocks_of_their_own) {
  const auto scene = [](EmulatedDevice& device) {
    OwnedStream stream(device);
    std::vector<DeviceArray<uint32_t>> arrays;
    Launches launches;
    for (uint32_t r = 0; r < Runs<AddArguments>::kMax + 3; ++r) {
      const uint32_t count = 1 + r % 3 * 40;
      arrays.emplace_back(device, count).fill(0, stream);
      launches.add(add, Grid::of(count, 32), {arrays.back().global(), r});
    }
    launches.put(device, stream);
    for (uint32_t r = 0; r < arrays.size(); ++r) {
      if (read(arrays[r], stream) != std::vector<uint32_t>(arrays[r].count(), r)) return false;
    }
    return true;
  };
  check_always_right(scene, "a run of several");
}

TEST(a_race_of_two_runs_is_found) {
  const uint64_t found = count_schedules([](EmulatedDevice& device) {
    DeviceArray<uint32_t> values(device, 1);
    Launches launches;
    for (int run = 0; run < 2; ++run) launches.add(all_write_one_element, {1, 1}, {values.global(), 1});
    try {
      launches.put(device, Stream{});
      device.synchronise(Stream{});
      return false;
    } catch (const Error& error) {
      const std::string message = error.what();
      const auto has = [&message](const char* part) { return message.find(part) != std::string::npos; };
      check(has("run 0, block 0, thread 0: a race: it writes what block 1, thread 0 has written") ||
                has("run 1, block 0, thread 0: a race: it writes what block 0, thread 0 has written"),
            message);
      return true;
    }
  });
  check(found > searches(), "runs are taken for one");
}

TEST(a_kernel_reaches_pinned_memory) {
  const auto scene = [](EmulatedDevice& device) {
    OwnedStream stream(device);
    PinnedArray<uint32_t> values(device, 100);
    const std::vector<uint32_t> numbers = ascending(100);
    std::copy(numbers.begin(), numbers.end(), values.data());
    device.launch(add, {2, 64}, {values.global(), 3}, stream);
    device.synchronise(stream);
    return std::vector<uint32_t>(values.data(), values.data() + 100) == ascending(100, 3);
  };
  check_always_right(scene, "a kernel on pinned memory");
}

TEST(a_kernel_reaches_host_memory_as_long_as_it_is_pinned) {
  constexpr size_t kBytes = 8192;
  const auto scene = [](EmulatedDevice& device) {
    OwnedStream stream(device);
    const PageRange others(kBytes, kBytes, PageSize::kSmall);
    auto* const values = static_cast<uint32_t*>(others.data());
    const std::vector<uint32_t> numbers = ascending(100);
    std::copy(numbers.begin(), numbers.end(), values);
    const std::span memory(static_cast<std::byte*>(others.data()), kBytes);
    const DeviceAddress address = device.try_pin(memory);
    device.launch(add, {2, 64}, {{address, 100}, 3}, stream);
    device.synchronise(stream);
    device.unpin(memory);
    return std::vector<uint32_t>(values, values + 100) == ascending(100, 3);
  };
  check_always_right(scene, "a kernel on memory of others");

  EmulatedDevice device({.memory_bytes = 1 << 20, .seed = 1});
  const PageRange others(kBytes, kBytes, PageSize::kSmall);
  const std::span memory(static_cast<std::byte*>(others.data()), kBytes);
  const auto is_refused = [](const std::string& why, const auto& call) {
    check_throws(ErrorKind::kInvalidArgument, why, call);
  };
  is_refused("isn't whole pages", [&] { device.try_pin(memory.first(100)); });
  is_refused("can't be unpinned", [&] { device.unpin(memory); });
  const DeviceAddress address = device.try_pin(memory);
  is_refused("is pinned already", [&] { device.try_pin(memory); });
  is_refused("can't be freed", [&] { device.free_pinned(memory.data()); });
  device.unpin(memory);
  check_throws(ErrorKind::kDeviceLost, "nor pinned", [&] {
    device.launch(add, {2, 64}, {{address, 100}, 3}, Stream{});
    device.synchronise(Stream{});
  });
}

// --- Functions of the host

TEST(a_stream_calls_host_functions_in_its_order) {
  const auto scene = [](EmulatedDevice& device) {
    OwnedStream stream(device);
    PinnedArray<uint32_t> asked(device, 1), answer(device, 1);
    DeviceArray<uint32_t> question(device, 1), seen(device, 1);
    question.fill(3, stream);
    question.copy_to(asked.data(), 1, stream);
    device.call_host([&] { answer[0] = asked[0] + 1; }, stream);
    seen.copy_from(answer.data(), 1, stream);
    return read(seen, stream) == std::vector<uint32_t>{0x03030304};
  };
  check_always_right(scene, "a function of the host ran at another time");
}

TEST(a_function_of_the_host_may_not_use_the_device) {
  EmulatedDevice device({.memory_bytes = 1 << 20, .seed = 1});
  std::string message;
  device.call_host([&] { message = error_of(ErrorKind::kInvalidArgument, [&] { device.allocate(8); }); },
                   Stream{});
  device.synchronise(Stream{});
  check_has(message, "used by a function that a stream had called");
}

// --- Processes and threads

TEST(a_forked_child_neither_uses_nor_harms_the_device) {
  auto device = std::make_unique<EmulatedDevice>(EmulatedDevice::Options{.memory_bytes = 1 << 20, .seed = 4});
  auto values = std::make_unique<DeviceArray<uint32_t>>(*device, 100);
  values->fill(1, Stream{});
  in_child([&] {
    check_throws(ErrorKind::kForked, "start workers by spawn", [&] { device->memory(); });
    values.reset();
    device.reset();
  });
  check(read(*values, Stream{}) == std::vector<uint32_t>(100, 0x01010101),
        "the child freed its parent's memory");
}

TEST(threads_use_streams_of_their_own) {
  EmulatedDevice device({.memory_bytes = 4 << 20, .seed = 11});
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&device, t] {
      OwnedStream stream(device);
      OwnedEvent event(device);
      DeviceArray<uint32_t> values(device, 500);
      PinnedArray<uint32_t> pinned(device, 500);
      for (uint32_t round = 0; round < scaled_count(50); ++round) {
        std::fill_n(pinned.data(), 500, t);
        values.copy_from(pinned.data(), 500, stream);
        device.launch(add, Grid::of(500, 64), {values.global(), round}, stream);
        device.call_host([] {}, stream);
        values.copy_to(pinned.data(), 500, stream);
        device.record(event, stream);
        device.synchronise(event);
        check(pinned[0] == t + round && pinned[499] == t + round, "a thread got another one's numbers");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace embstore::gpu
