// Updates rows in a device's memory by one apply of an optimizer. The step, which Optimizer::step() gives,
// has the values that the apply has for all rows. Kernels read it in memory, since the host may launch them
// before it knows the values. See kernels/update_rows.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <variant>

#include "gpu/buffers.h"
#include "gpu/kernels/update_rows.h"
#include "gpu/operations/device_rows.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/launches.h"
#include "gpu/operations/unique_batch.h"
#include "rules/any_step.h"

namespace embstore::gpu {

inline const auto& kernel_of(const AdadeltaStep&) { return update_adadelta; }
inline const auto& kernel_of(const AdagradStep&) { return update_adagrad; }
inline const auto& kernel_of(const AdagradDecayStep&) { return update_adagrad_decay; }
inline const auto& kernel_of(const AdamStep&) { return update_adam; }
inline const auto& kernel_of(const AdamAsyncStep&) { return update_adam_async; }
inline const auto& kernel_of(const AdamWStep&) { return update_adam_w; }
inline const auto& kernel_of(const AdamaxStep&) { return update_adamax; }
inline const auto& kernel_of(const FtrlStep<SquareRoot>&) { return update_ftrl; }
inline const auto& kernel_of(const FtrlStep<DevicePower>&) { return update_ftrl_by_power; }
inline const auto& kernel_of(const RmspropStep&) { return update_rmsprop; }
inline const auto& kernel_of(const RmspropMomentumStep&) { return update_rmsprop_momentum; }
inline const auto& kernel_of(const SgdStep&) { return update_sgd; }

// A step of any rule, as bytes that a kernel can read.
class StepInMemory {
 public:
  StepInMemory() = default;
  explicit StepInMemory(const AnyStep& any) {
    std::visit([this](const auto& step) { *this = StepInMemory(step); }, any);
  }
  template <class Step>
  explicit StepInMemory(const Step& step) {
    static_assert(sizeof(Step) <= sizeof(words_) && alignof(Step) <= alignof(StepInMemory));
    std::memcpy(words_, &step, sizeof(step));
  }

  static constexpr uint64_t kWords = 8;

 private:
  alignas(8) uint32_t words_[kWords] = {};
};

// The update of rows of `dim` weights, which sums their gradients on the way.
class DeviceUpdate {
 public:
  // Updates the distinct ids of a batch. `slots` has the ids' slots, none twice, and kNoSlot for ids to leave
  // out; only those in `places` are updated. REQUIRES: sums.sum() of the batch, with these gradients.
  DeviceUpdate(Global<const uint32_t> slots, const Places& places, const GradientSums& sums,
               const GradientRows& gradients)
      : slots_(slots), places_(places), gradients_(sums.gradients(gradients)) {}

  // `kind` says the type of the step at `step`; its values are not used.
  void add(const AnyStep& kind, DeviceAddress step, const DeviceRows& rows, Launches& launches) const {
    std::visit([&](const auto& any) { add(kernel_of(any), step, rows, launches, kMaxBlockThreads); }, kind);
  }
  // REQUIRES: block_threads is a power of two.
  template <class Step>
  void add(const Kernel<UpdateRowsArguments<Step>>& kernel, DeviceAddress step, const DeviceRows& rows,
           Launches& launches, uint32_t block_threads) const {
    if (slots_.count == 0) return;
    const uint32_t units = units_of(gradients_.dim);
    const uint32_t row_threads = std::min(std::bit_ceil(units), block_threads);
    const Grid grid = Grid::over(slots_.count * row_threads, block_threads, places_.tables);
    launches.add(kernel, grid,
                 {{step, 1},
                  {rows.floats().address(), rows.floats().count() / 4},
                  row_threads,
                  grid.blocks,
                  slots_,
                  places_,
                  gradients_});
  }

 private:
  Global<const uint32_t> slots_;
  Places places_;
  BatchGradients gradients_;
};

}  // namespace embstore::gpu
