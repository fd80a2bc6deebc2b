// Prefix sums: how threads that each keep some items of a batch agree on where these go, in the batch's order.
#pragma once

#include "gpu/kernels/language.h"

namespace embstore::gpu {

// The sum of `value` over the threads before this one; `total` becomes that over all threads of the block. Every
// thread of the block must call it.
inline uint32_t sum_before_in_block(uint32_t value, uint32_t& total) {
  constexpr uint32_t kGroup = 16;
  constexpr uint32_t kGroups = kMostBlockThreads / kGroup;
  EMBSTORE_SHARED(uint32_t, values, kMostBlockThreads);
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
  Global<const uint32_t> from;  // in pinned memory, say: other kernels read them more than once
  Global<uint32_t> to;          // as many
};

EMBSTORE_KERNEL(copy_words, CopyWordsArguments) {
  const uint64_t i = global_thread();
  if (i < arguments.to.count) arguments.to[i] = arguments.from[i];
}

struct ScanCountsArguments {
  Global<uint32_t> counts;              // become the sums of those before them
  Global<uint32_t> total;               // one
  Global<uint32_t> total_on_host = {};  // likewise, in pinned memory, where it is wanted
};

// For one block: a batch has few counts, one a block or a digit of a block. A thread has neighbouring ones.
EMBSTORE_KERNEL(scan_counts, ScanCountsArguments) {
  constexpr uint32_t kLoadedAhead = 8;
  const uint64_t count = arguments.counts.count;
  const uint64_t own = (count + block_threads() - 1) / block_threads();
  const uint64_t first = own * thread_index() < count ? own * thread_index() : count;
  const uint64_t end = first + own < count ? first + own : count;
  // Calls visit(i, counts[i]) for those of the thread, in order.
  const auto for_each = [&](const auto& visit) {
    uint64_t i = first;
    for (; i + kLoadedAhead <= end; i += kLoadedAhead) {
      uint32_t loaded[kLoadedAhead];
      EMBSTORE_UNROLL
      for (uint32_t ahead = 0; ahead < kLoadedAhead; ++ahead) loaded[ahead] = arguments.counts[i + ahead];
      EMBSTORE_UNROLL
      for (uint32_t ahead = 0; ahead < kLoadedAhead; ++ahead) visit(i + ahead, loaded[ahead]);
    }
    for (; i < end; ++i) visit(i, static_cast<uint32_t>(arguments.counts[i]));
  };
  uint32_t sum = 0;
  for_each([&](uint64_t, uint32_t of) { sum += of; });
  uint32_t total;
  uint32_t before = sum_before_in_block(sum, total);
  for_each([&](uint64_t i, uint32_t of) {
    arguments.counts[i] = before;
    before += of;
  });
  if (thread_index() != 0) return;
  arguments.total[0] = total;
  if (arguments.total_on_host.count != 0) arguments.total_on_host[0] = total;
}

}  // namespace embstore::gpu
