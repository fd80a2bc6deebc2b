// A stable sort of a batch's positions by a number that each has: one pass a digit, from the lowest. Equal numbers
// keep the order of the batch, which is what makes sums of gradients the CPU's to the bit.
#pragma once

#include "gpu/kernels/scan.h"

namespace embstore::gpu {

inline constexpr uint32_t kDigitBits = 6;
inline constexpr uint32_t kDigits = 1 << kDigitBits;
inline constexpr uint32_t kSortThreads =
    128;  // at most, a block: each has a count of every digit in shared memory
inline constexpr uint32_t kSortItems = 8;  // neighbours of one thread

struct SortArguments {
  Global<const uint32_t> numbers;
  Global<const uint32_t> positions;  // none: those of the batch in order, as before the first pass
  uint32_t shift;                    // of the digit
  uint32_t blocks;                   // of the run
  Global<uint32_t> block_digits;     // how many items have a digit: of digit d of block b at d * blocks + b
  Global<uint32_t> sorted_numbers;
  Global<uint32_t> sorted_positions;
};

inline uint32_t digit_of(const SortArguments& arguments, uint64_t i) {
  return arguments.numbers[i] >> arguments.shift & (kDigits - 1);
}

// The items of this thread: from the first on, before the end.
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

// Where the count is of a digit and a thread: what neighbouring threads access at once is in different banks of shared memory,
// both by digit and in the order of counts.
inline constexpr uint32_t count_at(uint32_t i) { return i + i / kDigits; }

// REQUIRES: block_digits as scan_counts made them, and blocks of as many threads as count_digits's.
EMBSTORE_KERNEL(move_by_digit, SortArguments) {
  EMBSTORE_SHARED(uint32_t, counts, count_at(kDigits * kSortThreads));  // digit by digit, of each thread
  EMBSTORE_SHARED(uint32_t, starts, kDigits);                           // of each digit, in the block's items
  const uint32_t thread = thread_index();
  const uint32_t threads = block_threads();
  for (uint32_t digit = 0; digit < kDigits; ++digit) counts[count_at(digit * threads + thread)] = 0;
  const SortedItems items(arguments);
  for (uint64_t i = items.first; i < items.end; ++i)
    ++counts[count_at(digit_of(arguments, i) * threads + thread)];
  sync_block();
  // Each count becomes the sum of those before it: how many items of the block come before the thread's first one
  // of that digit.
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
