// A stable radix sort of a batch's positions by the number that each has: one pass a digit, from the lowest.
// Equal numbers keep the batch's order, which gives sums of gradients the CPU's bits.
#pragma once

#include "gpu/kernels/scan.h"

namespace embstore::gpu {

inline constexpr uint32_t kDigitBits = 6;
inline constexpr uint32_t kDigits = 1 << kDigitBits;
// At most this many threads a block: each has a count for every digit in shared memory.
inline constexpr uint32_t kSortThreads = 128;
inline constexpr uint32_t kSortItems = 8;  // neighbouring items of one thread

struct SortArguments {
  Global<const uint32_t> numbers;
  Global<const uint32_t> positions;  // empty, as before the first pass: the batch's positions in order
  uint32_t shift;                    // bits of a number below the digit
  uint32_t blocks;                   // the run's number of blocks
  Global<uint32_t> block_digits;     // element d * blocks + b counts digit d in block b
  Global<uint32_t> sorted_numbers;
  Global<uint32_t> sorted_positions;
};

inline uint32_t digit_of(const SortArguments& arguments, uint64_t i) {
  return arguments.numbers[i] >> arguments.shift & (kDigits - 1);
}

// The items of this thread: from `first` to before `end`.
struct SortedItems {
  explicit SortedItems(const SortArguments& arguments)
      : first((uint64_t{block_index()} * block_threads() + thread_index()) * kSortItems),
        end(first + kSortItems < arguments.numbers.count ? first + kSortItems : arguments.numbers.count) {}

  uint64_t first;
  uint64_t end;
};

EMBSTORE_KERNEL(count_digits, SortArguments) {
  EMBSTORE_SHARED(uint32_t, counts, kDigits);
  for (uint32_t digit = thread_index(); digit < kDigits; digit += block_threads()) counts[digit] = 0;
  sync_block();
  const SortedItems items(arguments);
  for (uint64_t i = items.first; i < items.end; ++i) atomic_add(counts[digit_of(arguments, i)], 1);
  sync_block();
  for (uint32_t digit = thread_index(); digit < kDigits; digit += block_threads()) {
    arguments.block_digits[digit * arguments.blocks + block_index()] = counts[digit];
  }
}

// The index of count i. It leaves gaps, so that neighbouring threads use different banks of shared memory,
// both when they go by digit and when they go in the order of counts.
inline constexpr uint32_t count_at(uint32_t i) { return i + i / kDigits; }

// REQUIRES: block_digits as scan_counts left them, and the same number of threads a block as count_digits.
EMBSTORE_KERNEL(move_by_digit, SortArguments) {
  EMBSTORE_SHARED(uint32_t, counts, count_at(kDigits * kSortThreads));  // digit by digit, for each thread
  EMBSTORE_SHARED(uint32_t, starts, kDigits);  // each digit's begin among the block's items
  const uint32_t thread = thread_index();
  const uint32_t threads = block_threads();
  for (uint32_t digit = 0; digit < kDigits; ++digit) counts[count_at(digit * threads + thread)] = 0;
  const SortedItems items(arguments);
  for (uint64_t i = items.first; i < items.end; ++i)
    ++counts[count_at(digit_of(arguments, i) * threads + thread)];
  sync_block();
  // Each count becomes the sum of the counts before it: the number of the block's items that come before the
  // thread's first item with that digit.
  uint32_t sum = 0;
  for (uint32_t i = 0; i < kDigits; ++i) sum += counts[count_at(thread * kDigits + i)];
  uint32_t total;
  uint32_t before = sum_before_in_block(sum, total);
  for (uint32_t i = 0; i < kDigits; ++i) {
    const uint32_t count = counts[count_at(thread * kDigits + i)];
    counts[count_at(thread * kDigits + i)] = before;
    before += count;
  }
  sync_block();
  for (uint32_t digit = thread; digit < kDigits; digit += threads) {
    starts[digit] = counts[count_at(digit * threads)];
  }
  sync_block();
  for (uint64_t i = items.first; i < items.end; ++i) {
    const uint32_t digit = digit_of(arguments, i);
    const uint32_t in_block = counts[count_at(digit * threads + thread)]++ - starts[digit];
    const uint64_t at = arguments.block_digits[digit * arguments.blocks + block_index()] + in_block;
    arguments.sorted_numbers[at] = arguments.numbers[i];
    arguments.sorted_positions[at] =
        arguments.positions.count == 0 ? static_cast<uint32_t>(i) : arguments.positions[i];
  }
}

}  // namespace embstore::gpu
