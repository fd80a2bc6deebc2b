#include "gpu/operations/stable_sort.h"

#include <bit>
#include <vector>

namespace embstore::gpu {

StableSort::StableSort(Device& device, uint32_t most, uint32_t sort_threads)
    : device_(device),
      sort_threads_(sort_threads),
      block_digits_(device, uint64_t{kDigits} * grid(most).blocks),
      total_(device, 1),
      first_numbers_(device, most),
      first_positions_(device, most),
      second_numbers_(device, most),
      second_positions_(device, most) {}

struct StableSort::Passes {
  explicit Passes(const Input& batch)
      : input(batch),
        grid(batch.to->grid(batch.numbers.count)),
        bits(static_cast<uint32_t>(std::bit_width(batch.max_number))),
        numbers(batch.numbers),
        positions(batch.positions) {}

  bool is_left() const { return pass == 0 || pass * kDigitBits < bits; }
  Global<uint32_t> digits() const { return input.to->block_digits_.first(uint64_t{kDigits} * grid.blocks); }
  void add(const Kernel<SortArguments>& kernel, Launches& launches) const {
    if (!is_left()) return;
    launches.add(kernel, grid,
                 {numbers, positions, pass * kDigitBits, grid.blocks, digits(), to_numbers().global(),
                  to_positions().global()});
  }
  void end_pass() {
    if (!is_left()) return;
    const uint64_t items = input.numbers.count;
    numbers = to_numbers().first(items).as_const();
    positions = to_positions().first(items).as_const();
    ++pass;
  }
  const DeviceArray<uint32_t>& to_numbers() const {
    return pass % 2 == 0 ? input.to->first_numbers_ : input.to->second_numbers_;
  }
  const DeviceArray<uint32_t>& to_positions() const {
    return pass % 2 == 0 ? input.to->first_positions_ : input.to->second_positions_;
  }

  Input input;
  Grid grid;
  uint32_t bits;
  uint32_t pass = 0;
  Global<const uint32_t> numbers;
  Global<const uint32_t> positions;
};

void StableSort::sort(std::span<const Input> batches, Stream stream) {
  std::vector<Passes> sorts;
  for (const Input& batch : batches) {
    if (batch.numbers.count != 0) sorts.emplace_back(batch);
  }
  if (sorts.empty()) return;
  Device& device = sorts.front().input.to->device_;
  Launches launches;
  for (bool is_sorted = false; !is_sorted;) {
    for (const Passes& one : sorts) one.add(count_digits, launches);
    launches.put(device, stream);
    for (const Passes& one : sorts) {
      if (one.is_left()) {
        launches.add(scan_counts, {1, kMaxBlockThreads}, {one.digits(), one.input.to->total_.global()});
      }
    }
    launches.put(device, stream);
    for (const Passes& one : sorts) one.add(move_by_digit, launches);
    launches.put(device, stream);
    is_sorted = true;
    for (Passes& one : sorts) {
      one.end_pass();
      is_sorted = is_sorted && !one.is_left();
    }
  }
  for (const Passes& one : sorts) {
    one.input.to->numbers_ = one.numbers;
    one.input.to->positions_ = one.positions;
  }
}

}  // namespace embstore::gpu
