// Updates of rows by ids and gradients in a device's memory: the host waits for nothing.
//
// On the caller's stream ids are made distinct and found in the mirror of the HBM tier. The gradients of those that it hasn't
// are summed into pinned memory; a function of the host, for which the stream waits, updates their rows. If it could, a kernel
// updates the rows that the tier has: a batch is applied whole or not at all. A batch may be of several tables, of which each has a
// part of the ids and leaves the others out, and the function updates rows of all of them, or of none. Several batches may be put at once.
// Kernels are launched once for all tables. See gpu/README.md.
//
// Above a durable pool the function also learns which rows of the tier are about to differ from their copies there: those that
// are marked, as nobody has changed them since they were copied.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/device_address.h"
#include "gpu/kernels/ranks.h"
#include "row/key_partition.h"
#include "row/row_layout.h"
#include "rules/any_step.h"
#include "tiers/hbm/device_steps.h"
#include "tiers/hbm/hbm_tier.h"
#include "tiers/hbm/ids_on_device.h"
#include "tiers/hbm/step_memories.h"
#include "update/batch_conditions.h"
#include "update/step_claims.h"

namespace embstore {

class DeviceApply {
 public:
  // Both outlive this.
  DeviceApply(HbmTier& tier, DeviceSteps& steps, const RowLayout& layout);
  ~DeviceApply();
  DeviceApply(const DeviceApply&) = delete;
  DeviceApply& operator=(const DeviceApply&) = delete;

  // The distinct ids that aren't in the tier.
  struct Missing {
    std::span<const int64_t> ids;
    const float* gradients;  // dim floats each: the sums
    std::span<const uint32_t> occurrences;
    std::span<const uint32_t> last_positions;  // in the batch
  };
  // The rows of the tier that will be updated.
  struct Present {
    uint64_t count;
    std::span<const Slot> marked;  // those of them that are
  };
  // The update of a table's rows, when what may fail has been done. Undone at its end, unless it was committed.
  class PreparedRows {
   public:
    virtual ~PreparedRows() = default;
    // Once; then kernels update the rows that are present.
    virtual void commit() noexcept = 0;
  };
  // Called when the stream gets there, by any thread, with none missing too. If it throws, no row is updated, and the steps keep
  // the error. `claims` are those of the share, and outlive what is prepared. It must do no more than a function that a stream calls.
  using PrepareRows = std::function<std::unique_ptr<PreparedRows>(
      const Missing& missing, const Present& present, StepClaims& claims)>;
  struct Update {
    AnyStep step;
    gpu::CountedUpdate counted;
    PrepareRows prepare_rows;
  };

  // What is updated in one table. `claims`: for as many rows as there are ids in the batch.
  struct Share {
    DeviceApply* table;
    BatchPart part;
    StepClaims claims;
    std::function<Update()> begin;
  };
  struct Batch {
    IdsOnDevice ids;
    gpu::DeviceAddress gradients;  // a row for each id
    BatchConditions conditions;
    std::vector<Share> shares;
  };
  // Puts the updates of all batches on their stream; each is applied whole or not at all. Waits for no stream. False where the host
  // uses rows of one of the tables for long: nothing was done. Else each `begin` is called, in the order of the steps. A batch that is
  // refused updates no row: the steps keep the reason. REQUIRES: all are on one stream, and no table is there twice.
  static bool try_put(std::span<Batch> batches);

 private:
  class Memory;
  struct ShareInFlight;
  struct MissesOfTable;
  struct MissesOfBatch;

  static void put(std::span<const ShareInFlight> shares, std::span<Batch> batches);
  static void find(std::span<const ShareInFlight> shares, std::span<const Batch> batches);
  static void list_marked(std::span<const ShareInFlight> shares, gpu::Stream stream);
  static void update_found(std::span<const ShareInFlight> shares, std::span<const Update> updates,
                           gpu::Stream stream);
  // Called by the stream.
  static void update_missing(std::span<const MissesOfBatch> batches);
  static void update_missing(const MissesOfBatch& batch);

  HbmTier& tier_;
  gpu::Device& device_;
  DeviceSteps& steps_;
  const uint32_t dim_;
  StepMemories<Memory> memories_;  // guarded by the turn
};

}  // namespace embstore
