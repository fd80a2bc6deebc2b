// The update of a table's rows by one batch of gradients: prepared first, which may fail and then leaves everything
// as it was, and committed then, which can't fail. So a batch is applied whole or not at all.
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

// Keys whose cache misses are in flight together. Enough to cover a miss's latency, few enough for the
// core's outstanding-miss buffers.
constexpr size_t kKeysABlock = 16;

// What an update needs of its table.
struct UpdateParts {
  RowStore& store;
  const ShardFilters& filters;
  const InitialRows& initial;
  const Optimizer& optimizer;
  const float* slot_values;  // that new rows' slots start as, optimizer.slot_count() of them
};

// When an update happens.
struct UpdateTime {
  ApplyContext context;
  uint64_t first_stamp;  // of the batch's first id
  uint16_t save_span;
};

// Calls visit(number) for every shard that the batch has keys of. Threads start at different shards, so that they
// seldom want the same one.
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
  // Undoes what was prepared, unless it was committed.
  virtual ~BatchUpdate() = default;

  // False where the table may have no room for the batch's new rows; that's certain, and `new_rows` says how many
  // there are, where nobody else brings rows meanwhile. Throws DamagedRowsError, or what a tier throws.
  // REQUIRES: the apply gate is held, until the end; a guard of the epochs too.
  virtual bool prepare(uint64_t& new_rows) = 0;
  // REQUIRES: prepare() was called once, and returned true.
  virtual void commit(const UpdateTime& time) noexcept = 0;
};

}  // namespace embstore
