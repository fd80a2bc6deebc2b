// Tests the tier alone, on the emulated device: rows that were written can be read back, whatever the
// device's schedule is.
#include "tiers/hbm/hbm_tier.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu/emulated/emulated_device.h"
#include "gpu/open_device.h"
#include "testing/tests.h"

namespace embstore {
namespace {

using gpu::EmulatedDevice;

const RowLayout kLayout(/*dim=*/6, /*slot_count=*/1);
constexpr uint64_t kSlots = 100;
constexpr size_t kSmallPieces = 1000;  // a few rows each, so that a batch takes several pieces

EmulatedDevice::Options options(uint64_t seed) { return {.memory_bytes = 4 << 20, .seed = seed}; }

// The header and floats of a key's row at a version: no two rows are equal.
RowHeader header_of(int64_t key, int64_t version) {
  return {.key = key,
          .frequency = static_cast<uint64_t>(key + version),
          .version = version,
          .served = static_cast<uint64_t>(key % 5),
          .stamp = static_cast<uint64_t>(1000 + key),
          .save_span = static_cast<uint64_t>(version % 7)};
}
float float_of(int64_t key, int64_t version, size_t i) {
  return static_cast<float>(key * 1000 + version * 50 + static_cast<int64_t>(i));
}

RowBatch batch_of(const std::vector<int64_t>& keys, int64_t version) {
  RowBatch rows(kLayout);
  rows.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    rows.header(i) = header_of(keys[i], version);
    for (size_t f = 0; f < kLayout.row_floats(); ++f) rows.row(i)[f] = float_of(keys[i], version, f);
  }
  return rows;
}

bool is_row(const RowBatch& rows, size_t i, int64_t key, int64_t version, RowPart part) {
  const RowHeader expected = header_of(key, version);
  const RowHeader& header = rows.header(i);
  if (rows.is_damaged(i) || header.key != key || header.frequency != expected.frequency ||
      header.version != version || header.served != expected.served || header.stamp != expected.stamp ||
      header.save_span != expected.save_span) {
    return false;
  }
  const size_t floats = part == RowPart::kAll ? kLayout.row_floats() : kLayout.block_floats();
  for (size_t f = 0; f < floats; ++f) {
    if (rows.row(i)[f] != float_of(key, version, f)) return false;
  }
  return true;
}

std::vector<Place> places_of(const std::vector<int64_t>& keys, const std::vector<Slot>& slots) {
  std::vector<Place> places;
  for (size_t i = 0; i < keys.size(); ++i) places.push_back({keys[i], slots[i]});
  return places;
}

// A device that doesn't wait for events in some of the calls, as if the tier forgot to wait.
class HastyDevice final : public EmulatedDevice {
 public:
  enum class Call { kNone, kWrite, kRead };

  HastyDevice(uint64_t seed, Call hasty_in) : EmulatedDevice(options(seed)), hasty_in_(hasty_in) {}

  void now_in(Call call) { now_in_ = call; }

 private:
  void wait_for(gpu::Event event) override {
    if (hasty_in_ == Call::kNone || now_in_ != hasty_in_) EmulatedDevice::wait_for(event);
  }

  const Call hasty_in_;
  Call now_in_ = Call::kNone;
};

// Writes and erases random rows. Returns false if a row was read back wrong.
bool holds(uint64_t seed, HastyDevice::Call hasty_in = HastyDevice::Call::kNone) {
  const auto device = std::make_shared<HastyDevice>(seed, hasty_in);
  HbmTier tier(kLayout, kSlots, device, kSmallPieces);
  struct Known {
    Place place;
    int64_t version;
  };
  std::vector<Known> known;
  std::mt19937_64 random(seed);
  int64_t next_key = 0;
  for (int64_t version = 0; version < 12; ++version) {
    const std::vector<int64_t> keys = keys_from(next_key, 1 + static_cast<int64_t>(random() % 40));
    next_key += static_cast<int64_t>(keys.size());
    while (tier.free_places() < keys.size()) {
      tier.erase({&known.back().place, 1});
      known.pop_back();
    }
    std::vector<Slot> slots(keys.size());
    device->now_in(HastyDevice::Call::kWrite);
    tier.write(batch_of(keys, version), slots);
    for (size_t i = 0; i < keys.size(); ++i) known.push_back({{keys[i], slots[i]}, version});
    std::shuffle(known.begin(), known.end(), random);
    const RowPart part = random() % 2 == 0 ? RowPart::kAll : RowPart::kWeights;
    RowBatch rows(kLayout);
    for (const Known& row : known) rows.add_place(row.place);
    device->now_in(HastyDevice::Call::kRead);
    tier.read_rows(rows, part);
    for (size_t i = 0; i < known.size(); ++i) {
      if (!is_row(rows, i, known[i].place.key, known[i].version, part)) return false;
    }
  }
  return true;
}

TEST(rows_come_back_as_they_were_written) {
  for (uint64_t seed = 0; seed < scaled_count(60); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    check(holds(seed), "a row is another");
  }
}

TEST(a_wait_that_is_left_out_is_noticed) {
  constexpr size_t kSchedules = 40;
  for (const HastyDevice::Call call : {HastyDevice::Call::kWrite, HastyDevice::Call::kRead}) {
    tested_case() = call == HastyDevice::Call::kWrite ? "of write()" : "of read_rows()";
    size_t noticed = 0;
    for (uint64_t seed = 0; seed < kSchedules; ++seed) noticed += !holds(seed, call);
    check(noticed >= kSchedules / 10, "in " + std::to_string(noticed) + " schedules alone");
  }
}

TEST(keys_and_ranks_of_rows_lie_on_the_host) {
  HbmTier tier(kLayout, kSlots, std::make_shared<EmulatedDevice>(options(1)));
  const std::vector<int64_t> keys = {5, 7};
  std::vector<Slot> slots(2);
  tier.write(batch_of(keys, 3), slots);
  for (size_t i = 0; i < 2; ++i) {
    const RowHeader header = header_of(keys[i], 3);
    check(tier.key(slots[i]) == keys[i] && tier.ranks().is_filled(slots[i]), "the slot isn't the key's");
    check(tier.ranks().rank(slots[i], CacheStrategy::kLfu) ==
              Rank{header.frequency + header.served, header.stamp},
          "it ranks otherwise");
  }
  const uint64_t reused = tier.reused_places();
  tier.erase(places_of(keys, slots));
  check(!tier.ranks().is_filled(slots[0]) && tier.free_places() == kSlots && tier.stats().rows == 0,
        "rows are left");
  tier.write(batch_of({9}, 1), std::span(slots).first(1));
  check(tier.reused_places() != reused, "a slot was given out again, and nobody was told");
}

TEST(a_tier_is_full_before_anything_is_written) {
  HbmTier tier(kLayout, kSlots, std::make_shared<EmulatedDevice>(options(2)));
  std::vector<Slot> slots(kSlots + 1);
  check_throws(ErrorKind::kStoreFull, "the HBM tier has no 101 free slots of its 100",
               [&] { tier.write(batch_of(keys_from(0, kSlots + 1), 0), slots); });
  check(tier.free_places() == kSlots, "slots were taken");
}

TEST(a_device_without_room_says_how_much_it_has) {
  check_throws(ErrorKind::kStoreFull, "are free",
               [] { HbmTier(kLayout, 1 << 20, std::make_shared<EmulatedDevice>(options(3))); });
}

// The memory may run out at any point, and the device may have done any part of the tier's work by then.
TEST(a_device_that_had_no_room_for_a_tier_takes_a_smaller_one) {
  static constexpr uint64_t kManySlots = 4096;
  const auto make = [](const std::shared_ptr<EmulatedDevice>& device) {
    return std::make_unique<HbmTier>(kLayout, kManySlots, device, kSmallPieces, HbmTier::Copies::kInPool);
  };
  const auto large = std::make_shared<EmulatedDevice>(options(1));
  const auto tier = make(large);
  const size_t taken_bytes = large->memory().total_bytes - large->memory().free_bytes;
  for (const size_t missing_bytes : {size_t{4096}, taken_bytes / 8, taken_bytes / 2}) {
    for (uint64_t seed = 0; seed < 400; ++seed) {
      const auto device = std::make_shared<EmulatedDevice>(
          EmulatedDevice::Options{.memory_bytes = taken_bytes - missing_bytes, .seed = seed});
      check_throws(ErrorKind::kStoreFull, "are free", [&] { make(device); });
      HbmTier other(kLayout, kSlots, device, kSmallPieces);
      std::vector<Slot> slots(kSlots);
      other.write(batch_of(keys_from(0, kSlots), 1), slots);
      other.check_not_lost();
    }
  }
}

TEST(rows_of_a_lost_device_are_damaged_and_no_rows_can_be_written) {
  const auto device = std::make_shared<EmulatedDevice>(options(4));
  HbmTier tier(kLayout, kSlots, device, kSmallPieces);
  const std::vector<int64_t> keys = keys_from(0, 50);
  std::vector<Slot> slots(keys.size());
  tier.write(batch_of(keys, 1), slots);
  tier.check_not_lost();
  device->lose("somebody pulled it out");
  RowBatch rows(kLayout);
  rows.set_places(places_of(keys, slots));
  tier.read_rows(rows, RowPart::kAll);
  check(rows.damaged().size() == keys.size(), "rows of a lost device are whole");
  check(rows.damaged().begin()->second.find("somebody pulled it out") != std::string::npos, "why isn't told");
  std::vector<Slot> more(20);
  check_throws(ErrorKind::kDeviceLost, "somebody pulled it out",
               [&] { tier.write(batch_of(keys_from(100, 20), 1), more); });
  check(tier.free_places() == kSlots - keys.size(), "slots of rows that weren't written stay taken");
  check_throws(ErrorKind::kDeviceLost, "somebody pulled it out", [&] { tier.check_not_lost(); });
}

// Readers read slots that are given out again meanwhile: each row must be one that was written, whole.
TEST(threads_read_whole_rows_while_others_take_their_slots) {
  HbmTier tier(kLayout, kSlots, std::make_shared<EmulatedDevice>(options(5)), kSmallPieces);
  constexpr int64_t kKeys = 30;
  const std::vector<int64_t> keys = keys_from(0, kKeys);
  std::vector<Slot> slots(kKeys);
  tier.write(batch_of(keys, 0), slots);
  const std::vector<Place> first_places = places_of(keys, slots);
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      while (!done.load()) {
        RowBatch rows(kLayout);
        rows.set_places(first_places);
        tier.read_rows(rows, RowPart::kAll);
        for (size_t i = 0; i < rows.size(); ++i) {
          // read_rows() takes the key from the place; the floats say whose row it was.
          const int64_t version = rows.header(i).version;
          rows.header(i).key = (static_cast<int64_t>(rows.row(i)[0]) - version * 50) / 1000;
          check(is_row(rows, i, rows.header(i).key, version, RowPart::kAll), "a row is torn");
        }
      }
    });
  }
  for (int64_t version = 1; version < static_cast<int64_t>(scaled_count(200)); ++version) {
    const std::vector<Place> old = places_of(keys, slots);
    tier.write(batch_of(keys, version), slots);
    tier.erase(old);
  }
  done.store(true);
  for (std::thread& reader : readers) reader.join();
}

TEST(a_closed_tier_frees_its_memory_and_leaves_the_device_usable) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const auto device = std::make_shared<EmulatedDevice>(options(seed));
    const HbmTier other(kLayout, kSlots, device);
    const uint64_t free_bytes = device->memory().free_bytes;
    {
      HbmTier tier(kLayout, kSlots, device, kSmallPieces);
      std::vector<Slot> slots(50);
      tier.write(batch_of(keys_from(0, 50), 1), slots);
    }
    other.check_not_lost();
    check(device->memory().free_bytes == free_bytes, "memory stays taken");
  }
}

TEST(tables_of_a_process_share_a_device_while_one_uses_it) {
  const auto open = [] { return gpu::open_device({.name = "emulated", .nvrtc = "", .cache_directory = ""}); };
  std::shared_ptr<gpu::Device> device = open();
  check(open() == device, "it was opened twice");
  const std::weak_ptr<gpu::Device> known = device;
  device.reset();
  check(known.expired(), "it stays open");
}

TEST(an_unknown_device_name_is_refused) {
  for (const char* const name :
       {"", "cuda:", "cuda:-1", "cuda:1x", "Cuda", "emulated:0", "cuda:99999999999"}) {
    tested_case() = name;
    check_throws(ErrorKind::kInvalidArgument, "device: must be cuda, cuda:N",
                 [name] { gpu::open_device({.name = name, .nvrtc = "", .cache_directory = ""}); });
  }
}

}  // namespace
}  // namespace embstore
