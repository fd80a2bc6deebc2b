// Updates rows by ids and gradients in a device's memory, without a wait on the host.
//
// On the caller's stream, kernels make the ids distinct and look them up in the mirror of the HBM tier. They
// sum the gradients of the missing ids into pinned memory, and a host function, for which the stream waits,
// updates the rows of these ids. If it succeeds, kernels update the rows in the tier, so a batch is applied
// whole or not at all. Since only the device may know whether a batch is applied, the parameters of the
// optimizer's step are computed in the host function. A batch may have rows of several tables, the partitions
// of a variable: kernels order its ids by table, so that each table has a range of places in the list of
// distinct ids, and the host function updates the rows of all tables or of none. One call puts several
// batches, and each kernel is launched once for all tables. See gpu/README.md.
//
// Above a durable pool, the host function also learns which rows of the tier will no longer equal their
// copies in the pool. These are the marked rows: a mark says that a row has not changed since it was copied.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/device_address.h"
#include "gpu/kernels/gradient_sums.h"
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

  // The distinct ids whose rows aren't in the tier.
  struct Missing {
    std::span<const int64_t> ids;
    const float* gradients;  // the sum for each id, dim floats
    std::span<const uint32_t> occurrences;
    std::span<const uint32_t> last_positions;  // the position of each id's last occurrence in the batch
  };
  // The rows in the tier that will be updated.
  struct Present {
    uint64_t count;
    std::span<const Slot> marked;  // the slots of marked rows among them
  };
  // A prepared update of a table's rows. Its destructor undoes it, unless commit() was called.
  class PreparedRows {
   public:
    virtual ~PreparedRows() = default;
    // Called at most once; kernels then update the rows in the tier.
    virtual void commit() noexcept = 0;
  };
  // Called in the host function, by any thread, even if no id is missing. If it throws, no row is updated,
  // and the DeviceSteps keep the error. `claims` are the share's, and outlive the prepared rows. The limits
  // of functions that a stream calls apply.
  using PrepareRows = std::function<std::unique_ptr<PreparedRows>(
      const Missing& missing, const Present& present, StepClaims& claims)>;
  struct Update {
    AnyStep kind;  // a step of the same kind as begin() returns
    gpu::CountedUpdate counted;
    // Both are called in the host function, by any thread, in the order of the steps, unless the batch is
    // left out or refused.
    PrepareRows prepare_rows;
    // Called between prepare_rows and commit() of all tables: advances the optimizer's state and returns the
    // step by which the rows are updated. It doesn't throw.
    std::function<AnyStep()> begin;
  };

  // One table's part of a batch. `claims`: slots for as many rows as the batch has ids, and no places.
  // try_put() claims the places, and the step returns unused ones before the host uses the rows again, so
  // that an update by the host is refused only if the pool really has no places for its rows.
  struct Share {
    DeviceApply* table;
    StepClaims claims;
    std::function<Update()> begin;
  };
  struct Batch {
    IdsOnDevice ids;
    gpu::GradientRows gradients;
    BatchConditions conditions;
    std::vector<Share> shares;  // in the order of the partitions
  };
  // Puts the updates of all batches on their stream, and calls each share's `begin` in the order of the
  // steps. Each batch is applied whole or not at all. Waits for no stream. Returns false, and does nothing,
  // if the host keeps using rows of one of the tables, or if a pool has too few free places. A refused batch
  // updates no row, and the DeviceSteps keep the reason. REQUIRES: all batches are on one stream, and no
  // table occurs twice.
  static bool try_put(std::span<Batch> batches);

 private:
  static bool try_claim_places(std::span<Batch> batches);

  using BatchInFlight = InFlight<Batch>;
  struct MissesOfBatch;

  std::shared_ptr<ApplyMemory> make_memory(const StepSize& size) const override;

  static void put(std::span<const BatchInFlight> batches);
  static void find(std::span<const BatchInFlight> batches, gpu::Stream stream);
  static void list_marked(std::span<const BatchInFlight> batches, gpu::Stream stream);
  // `updates`: one for each table of each batch, in order.
  static void update_found(std::span<const BatchInFlight> batches, std::span<const Update> updates,
                           gpu::Stream stream);
  // Called by the stream, as its host function.
  static void update_missing(std::span<const MissesOfBatch> batches);
  static void update_missing(const MissesOfBatch& batch);

  const uint32_t dim_;
};

}  // namespace embstore
