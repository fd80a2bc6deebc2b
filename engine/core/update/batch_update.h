// The update of a table's rows by one batch of gradients, in two phases: prepare() may fail, and then changes
// nothing; commit() can't fail. So a batch is applied whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "admission/shard_filters.h"
#include "row/initial_rows.h"
#include "store/row_store.h"
#include "update/gradient_batch.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

// The number of keys whose cache misses are in flight together: enough to hide a miss's latency, few enough
// for the processor's miss buffers.
constexpr size_t kKeysABlock = 16;

// The parts of a table that an update uses.
struct UpdateParts {
  RowStore& store;
  const ShardFilters& filters;
  const InitialRows& initial;
  const Optimizer& optimizer;
  const float* slot_values;  // the initial values of a row's slots, optimizer.slot_count() of them
};

// The time of an update.
struct UpdateTime {
  ApplyContext context;
  uint64_t first_stamp;  // the stamp of the batch's first id
  uint16_t save_span;
};

// Calls visit(number) for every shard in which the batch has keys. Threads start at different shards, so that
// they seldom wait for the same mutex.
template <class Visit>
void visit_shards_of(const GradientBatch& batch, Visit visit) {
  const size_t start = std::hash<std::thread::id>{}(std::this_thread::get_id());
  for (size_t i = 0; i < kShards; ++i) {
    const int number = static_cast<int>((start + i) % kShards);
    if (!batch.shard(number).empty()) visit(number);
  }
}

class BatchUpdate {
 public:
  // Undoes prepare(), unless commit() was called.
  virtual ~BatchUpdate() = default;

  // Returns false if the table may lack room for the batch's new rows. If no other thread adds rows
  // meanwhile, it does lack room, and `new_rows` is the number of new rows. Throws DamagedRowsError and the
  // errors of tiers. REQUIRES: the caller holds the apply gate and a guard of the epochs for the life of this
  // object.
  virtual bool prepare(uint64_t& new_rows) = 0;
  // REQUIRES: prepare() was called once, and returned true.
  virtual void commit(const UpdateTime& time) noexcept = 0;
};

}  // namespace embstore
