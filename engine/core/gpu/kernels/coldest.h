// The coldest rows in the device's memory, exactly: those of the lowest ranks, and of rows that rank the same, those of the lowest
// slots. A radix select: a digit a pass, from the highest, it narrows down the rank of the last row that is chosen.
//
// 1. measure_ranks: how many rows there are, and the highest words of their ranks: digits above them are zero in all rows.
// 2. begin_narrowing: how many rows are chosen.
// 3. For each digit, count_rank_digits: how many rows have which digit, of those whose digits above are the limit's; and
//    narrow_ranks: which digit the limit has, and how many rows are to be chosen of those that have it.
// 4. count_coldest, scan_counts, collect_coldest: the slots of rows below the limit, and of as many at the limit as are left to
//    choose, in the order of slots.
// Kernels end between the steps, since a thread may only rely on what threads of other blocks wrote before.
#pragma once

#include "gpu/kernels/ranks.h"
#include "gpu/kernels/scan.h"

namespace embstore::gpu {

inline constexpr uint32_t kRankWords = 2;  // a count and a stamp, the count first
inline constexpr uint32_t kRankDigitBits = 8;
inline constexpr uint32_t kRankDigits = 1 << kRankDigitBits;

struct ColdestArguments {
  RankArrays ranks;
  uint64_t slots;                 // the first ones, of which those without a row are left out
  uint32_t by_count;              // 1: rows rank by count and then by stamp (LFU); 0: by stamp alone (LRU)
  uint32_t slot_rounds;           // how many slots a thread looks at
  Global<const uint32_t> wanted;  // one: how many rows
  Global<uint64_t> highest;       // of each word, over all rows
  Global<uint64_t> limit;         // the last chosen row's rank, as far as it is known: lower digits are zero
  Global<uint32_t> rows;          // one: how many there are
  Global<uint32_t> rest;    // one: how many are to be chosen of those whose rank begins as the limit does
  Global<uint32_t> digits;  // how many rows have each digit; all zero between two passes
  Global<uint32_t> block_below;   // of each block: its rows below the limit, then those before it
  Global<uint32_t> block_ties;    // likewise, at the limit
  Global<uint32_t> chosen;        // slots
  Global<uint32_t> chosen_count;  // one
};

struct RankOf {
  uint64_t words[kRankWords];
};

inline RankOf rank_of(const ColdestArguments& arguments, uint64_t slot, uint64_t stamp) {
  if (arguments.by_count == 0) return {{0, stamp}};
  const RowMeta meta = arguments.ranks.metas[slot];
  return {{meta.frequency + arguments.ranks.served[slot], stamp}};
}

// Calls f(rank) for each of the thread's rows.
template <class F>
inline void for_each_rank(const ColdestArguments& arguments, const F& f) {
  const uint64_t first = uint64_t{block_index()} * arguments.slot_rounds * block_threads() + thread_index();
  for (uint32_t round = 0; round < arguments.slot_rounds; ++round) {
    const uint64_t slot = first + uint64_t{round} * block_threads();
    if (slot >= arguments.slots) return;
    const uint64_t stamp = arguments.ranks.stamps[slot];
    if (stamp != 0) f(rank_of(arguments, slot, stamp));
  }
}

EMBSTORE_KERNEL(measure_ranks, ColdestArguments) {
  EMBSTORE_SHARED(uint64_t, highest, kRankWords);
  EMBSTORE_SHARED(uint32_t, rows, 1);
  if (thread_index() == 0) {
    for (uint32_t word = 0; word < kRankWords; ++word) highest[word] = 0;
    rows[0] = 0;
  }
  sync_block();
  RankOf of_thread{};
  uint32_t rows_of_thread = 0;
  for_each_rank(arguments, [&](const RankOf& rank) {
    for (uint32_t word = 0; word < kRankWords; ++word) {
      if (of_thread.words[word] < rank.words[word]) of_thread.words[word] = rank.words[word];
    }
    ++rows_of_thread;
  });
  if (rows_of_thread > 0) {
    for (uint32_t word = 0; word < kRankWords; ++word) atomic_max(highest[word], of_thread.words[word]);
    atomic_add(rows[0], rows_of_thread);
  }
  sync_block();
  if (thread_index() != 0) return;
  for (uint32_t word = 0; word < kRankWords; ++word) {
    const uint64_t of_block = highest[word];
    atomic_max(arguments.highest[word], of_block);
  }
  const uint32_t rows_of_block = rows[0];
  atomic_add(arguments.rows[0], rows_of_block);
}

// For one thread.
EMBSTORE_KERNEL(begin_narrowing, ColdestArguments) {
  const uint32_t wanted = arguments.wanted[0];
  const uint32_t rows = arguments.rows[0];
  uint32_t chosen = wanted < rows ? wanted : rows;
  if (arguments.chosen.count < chosen) chosen = static_cast<uint32_t>(arguments.chosen.count);
  arguments.rest[0] = chosen;
  arguments.chosen_count[0] = chosen;
}

struct NarrowArguments {
  ColdestArguments of;
  uint32_t word;
  uint32_t shift;  // of the digit in the word
};

// Whether this digit may be another than zero, in all of the rows.
inline bool has_digit(const NarrowArguments& arguments) {
  return arguments.of.rest[0] > 0 && arguments.of.highest[arguments.word] >> arguments.shift != 0;
}

EMBSTORE_KERNEL(count_rank_digits, NarrowArguments) {
  if (!has_digit(arguments)) return;
  EMBSTORE_SHARED(uint32_t, counts, kRankDigits);
  for (uint32_t digit = thread_index(); digit < kRankDigits; digit += block_threads()) counts[digit] = 0;
  sync_block();
  const uint64_t limit_count = arguments.of.limit[0];
  const uint64_t limit = arguments.of.limit[arguments.word];
  for_each_rank(arguments.of, [&](const RankOf& rank) {
    if (arguments.word > 0 && rank.words[0] != limit_count) return;
    // Both without the digit and what is below it; in two steps, as no shift may be of all bits.
    const uint64_t differs = rank.words[arguments.word] ^ limit;
    if (differs >> arguments.shift >> kRankDigitBits != 0) return;
    const uint64_t digit = rank.words[arguments.word] >> arguments.shift & (kRankDigits - 1);
    atomic_add(counts[digit], 1);
  });
  sync_block();
  for (uint32_t digit = thread_index(); digit < kRankDigits; digit += block_threads()) {
    const uint32_t count = counts[digit];
    if (count > 0) atomic_add(arguments.of.digits[digit], count);
  }
}

// For one block of kRankDigits threads.
EMBSTORE_KERNEL(narrow_ranks, NarrowArguments) {
  if (!has_digit(arguments)) return;
  const uint32_t digit = thread_index();
  const uint32_t rest = arguments.of.rest[0];
  const uint32_t count = arguments.of.digits[digit];
  uint32_t total;
  const uint32_t before = sum_before_in_block(count, total);
  arguments.of.digits[digit] = 0;
  if (before >= rest || rest - before > count) return;
  // The one digit that the last chosen row has.
  arguments.of.limit[arguments.word] += uint64_t{digit} << arguments.shift;
  arguments.of.rest[0] = rest - before;
}

// How the row in a slot compares with the limit.
struct Choice {
  Choice(const ColdestArguments& arguments, uint64_t slot) {
    if (slot >= arguments.slots) return;
    const uint64_t stamp = arguments.ranks.stamps[slot];
    if (stamp == 0) return;
    const RankOf rank = rank_of(arguments, slot, stamp);
    const uint64_t count = arguments.limit[0];
    const uint64_t limit = arguments.limit[1];
    is_below = rank.words[0] < count || (rank.words[0] == count && rank.words[1] < limit);
    is_tie = rank.words[0] == count && rank.words[1] == limit;
  }

  bool is_below = false;
  bool is_tie = false;
};

EMBSTORE_KERNEL(count_coldest, ColdestArguments) {
  const uint64_t first = uint64_t{block_index()} * arguments.slot_rounds * block_threads() + thread_index();
  uint32_t below_of_thread = 0, ties_of_thread = 0;
  for (uint32_t round = 0; round < arguments.slot_rounds; ++round) {
    const Choice choice(arguments, first + uint64_t{round} * block_threads());
    below_of_thread += choice.is_below;
    ties_of_thread += choice.is_tie;
  }
  uint32_t below, ties;
  sum_before_in_block(below_of_thread, below);
  sum_before_in_block(ties_of_thread, ties);
  if (thread_index() != 0) return;
  arguments.block_below[block_index()] = below;
  arguments.block_ties[block_index()] = ties;
}

// REQUIRES: block_below and block_ties as scan_counts made them.
EMBSTORE_KERNEL(collect_coldest, ColdestArguments) {
  constexpr uint32_t kBitsOfCount = 16;
  static_assert(kMostBlockThreads < 1 << kBitsOfCount);
  const uint64_t first = uint64_t{block_index()} * arguments.slot_rounds * block_threads() + thread_index();
  const uint32_t rest = arguments.rest[0];
  uint32_t below = arguments.block_below[block_index()];
  uint32_t ties = arguments.block_ties[block_index()];
  for (uint32_t round = 0; round < arguments.slot_rounds; ++round) {
    const uint64_t slot = first + uint64_t{round} * block_threads();
    const Choice choice(arguments, slot);
    uint32_t of_block;
    // Both counts at once.
    const uint32_t before =
        sum_before_in_block(uint32_t{choice.is_below} << kBitsOfCount | uint32_t{choice.is_tie}, of_block);
    const uint32_t below_before = below + (before >> kBitsOfCount);
    const uint32_t ties_before = ties + (before & ((1 << kBitsOfCount) - 1));
    if (choice.is_below || (choice.is_tie && ties_before < rest)) {
      arguments.chosen[below_before + (ties_before < rest ? ties_before : rest)] =
          static_cast<uint32_t>(slot);
    }
    below += of_block >> kBitsOfCount;
    ties += of_block & ((1 << kBitsOfCount) - 1);
  }
}

}  // namespace embstore::gpu
