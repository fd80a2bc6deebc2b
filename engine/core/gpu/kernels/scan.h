// Prefix sums. With them threads that each keep some items of a batch agree on the items' places, in the
// batch's order.
#pragma once

#include "gpu/kernels/language.h"

namespace embstore::gpu {

// Returns the sum of `value` over the threads before this one, and sets `total` to the sum over all threads
// of the block. Every thread of the block must call it.
inline uint32_t sum_before_in_block(uint32_t value, uint32_t& total) {
  constexpr uint32_t kGroup = 16;
  constexpr uint32_t kGroups = kMaxBlockThreads / kGroup;
  EMBSTORE_SHARED(uint32_t, values, kMaxBlockThreads);
  EMBSTORE_SHARED(uint32_t, groups, kGroups + 1);
  const uint32_t thread = thread_index();
  values[thread] = value;
  sync_block();
  if (thread < kGroups) {
    const uint32_t end = (thread + 1) * kGroup < block_threads() ? (thread + 1) * kGroup : block_threads();
    uint32_t sum = 0;
    for (uint32_t i = thread * kGroup; i < end; ++i) sum += values[i];
    groups[thread] = sum;
  }
  sync_block();
  if (thread == 0) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kGroups; ++i) {
      const uint32_t of_group = i * kGroup < block_threads() ? groups[i] : 0;
      groups[i] = sum;
      sum += of_group;
    }
    groups[kGroups] = sum;
  }
  sync_block();
  uint32_t before = groups[thread / kGroup];
  for (uint32_t i = thread / kGroup * kGroup; i < thread; ++i) before += values[i];
  total = groups[kGroups];
  sync_block();  // before the next call writes the shared memory
  return before;
}

struct CopyWordsArguments {
  Global<const uint32_t> from;  // may be in pinned memory: then other kernels read the copy more than once
  Global<uint32_t> to;          // as many words
};

EMBSTORE_KERNEL(copy_words, CopyWordsArguments) {
  const uint64_t i = global_thread();
  if (i < arguments.to.count) arguments.to[i] = arguments.from[i];
}

struct ScanCountsArguments {
  Global<uint32_t> counts;              // each becomes the sum of those before it
  Global<uint32_t> total;               // one element
  Global<uint32_t> total_on_host = {};  // if given: the same, in pinned memory
};

// Runs in a single block: a batch has few counts, one a block, or one a digit and block. The block loads the
// next counts while it sums these.
EMBSTORE_KERNEL(scan_counts, ScanCountsArguments) {
  constexpr uint32_t kVectors = 4;
  constexpr uint32_t kItems = 4 * kVectors;  // neighbouring counts of one thread
  const uint64_t count = arguments.counts.count;
  const uint64_t tile = uint64_t{block_threads()} * kItems;
  const Global<Words4> vectors{arguments.counts.address, count / 4};
  Words4 own[kVectors];
  const auto load = [&](uint64_t first) {
    EMBSTORE_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      own[v] = {};
      const uint64_t at = first + 4 * v;
      if (at + 4 <= count) {
        own[v] = vectors[at / 4];
      } else {
        EMBSTORE_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          if (at + i < count) own[v].words[i] = arguments.counts[at + i];
        }
      }
    }
  };
  const uint64_t own_first = uint64_t{thread_index()} * kItems;
  load(own_first);
  uint32_t sum = 0;
  for (uint64_t start = 0; start < count; start += tile) {
    Words4 sums[kVectors];  // sums of the thread's counts before each
    uint32_t of_thread = 0;
    EMBSTORE_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      EMBSTORE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        sums[v].words[i] = of_thread;
        of_thread += own[v].words[i];
      }
    }
    load(start + tile + own_first);
    uint32_t of_tile;
    const uint32_t before = sum + sum_before_in_block(of_thread, of_tile);
    EMBSTORE_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      EMBSTORE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) sums[v].words[i] += before;
      const uint64_t at = start + own_first + 4 * v;
      if (at + 4 <= count) {
        vectors[at / 4] = sums[v];
      } else {
        EMBSTORE_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          if (at + i < count) arguments.counts[at + i] = sums[v].words[i];
        }
      }
    }
    sum += of_tile;
  }
  if (thread_index() != 0) return;
  arguments.total[0] = sum;
  if (arguments.total_on_host.count != 0) arguments.total_on_host[0] = sum;
}

}  // namespace embstore::gpu
