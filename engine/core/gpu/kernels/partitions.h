// Splits a batch of ids by the partitions of a variable: numbers by which the batch is sorted, and the ids in
// that order.
#pragma once

#include "gpu/kernels/language.h"
#include "row/key_partition.h"

namespace embstore::gpu {

struct NumberPartitionsArguments {
  Global<const int64_t> ids;
  Global<const int64_t> kept;  // for each id: 0 leaves it out of the batch; empty: all are kept
  uint32_t partitions;
  Global<uint32_t> numbers;  // each id's partition, or `partitions` if it is left out
};

EMBSTORE_KERNEL(number_partitions, NumberPartitionsArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.ids.count) return;
  const bool is_kept = arguments.kept.count == 0 || arguments.kept[i] != 0;
  arguments.numbers[i] = is_kept ? static_cast<uint32_t>(partition_of(arguments.ids[i], arguments.partitions))
                                 : arguments.partitions;
}

struct TakeIdsArguments {
  Global<const int64_t> ids;
  Global<const uint32_t> order;  // each taken id's position in `ids`
  Global<int64_t> taken;
};

EMBSTORE_KERNEL(take_ids, TakeIdsArguments) {
  const uint64_t i = global_thread();
  if (i < arguments.taken.count) arguments.taken[i] = arguments.ids[arguments.order[i]];
}

}  // namespace embstore::gpu
