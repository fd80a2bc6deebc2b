// Updates of rows by ids and gradients in a device's memory: the host waits for nothing.
//
// On the caller's stream ids are made distinct and found in the mirror of the HBM tier. The gradients of those that it hasn't
// are summed into pinned memory; a function of the host, for which the stream waits, updates their rows. If it could, a kernel
// updates the rows that the tier has: a batch is applied whole or not at all. Whether it is may be known on the device alone, so the
// values of the optimizer's step are made when the stream gets there. A batch may be of several tables, a variable's partitions:
// its ids are put in their order, made distinct and sorted once, so that each table has neighbouring places, and the function updates rows
// of all of them, or of none. Several batches may be put at once. Kernels are launched once for all tables. See gpu/README.md.
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
#include "row/row_layout.h"
#include "rules/any_step.h"
#include "tiers/hbm/ids_on_device.h"
#include "tiers/hbm/step_maker.h"
#include "update/batch_conditions.h"
#include "update/step_claims.h"

namespace embstore {

class ApplyMemory;

class DeviceApply final : public StepMaker<ApplyMemory> {
 public:
  DeviceApply(HbmTier& tier, DeviceSteps& steps, const RowLayout& layout);
  ~DeviceApply() override;

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
    AnyStep kind;  // a step of the kind that `begin` gives
    gpu::CountedUpdate counted;
    // Both are called when the stream gets there, by any thread, in the order of the steps, unless the batch is left out or refused.
    PrepareRows prepare_rows;
    // Where rows of all tables are prepared, before they are committed: gives the step by which they are updated, after which the
    // optimizer's own state is one further. It doesn't throw.
    std::function<AnyStep()> begin;
  };

  // What is updated in one table. `claims`: of slots, for as many rows as there are ids in the batch, and none of places: those are
  // claimed when the step begins, and what it doesn't need goes back before the host uses the rows again. So an update by the host is
  // refused only where there are no places for its rows.
  struct Share {
    DeviceApply* table;
    StepClaims claims;
    std::function<Update()> begin;
  };
  struct Batch {
    IdsOnDevice ids;
    gpu::DeviceAddress gradients;  // a row for each id
    BatchConditions conditions;
    std::vector<Share> shares;  // of the tables, in the order of their partitions
  };
  // Puts the updates of all batches on their stream; each is applied whole or not at all. Waits for no stream. False where the host
  // uses rows of one of the tables for long, or a pool has too few places free: nothing was done. Else each `begin` is called, in the order of the steps. A batch that is
  // refused updates no row: the steps keep the reason. REQUIRES: all are on one stream, and no table is there twice.
  static bool try_put(std::span<Batch> batches);

 private:
  static bool try_claim_places(std::span<Batch> batches);

  using BatchInFlight = InFlight<Batch>;
  struct MissesOfBatch;

  std::shared_ptr<ApplyMemory> make_memory(const StepSize& size) const override;

  static void put(std::span<const BatchInFlight> batches);
  static void find(std::span<const BatchInFlight> batches, gpu::Stream stream);
  static void list_marked(std::span<const BatchInFlight> batches, gpu::Stream stream);
  // `updates`: of all batches' tables.
  static void update_found(std::span<const BatchInFlight> batches, std::span<const Update> updates,
                           gpu::Stream stream);
  // Called by the stream.
  static void update_missing(std::span<const MissesOfBatch> batches);
  static void update_missing(const MissesOfBatch& batch);

  const uint32_t dim_;
};

}  // namespace embstore
