// What a caller knows of a batch of gradients in a device's memory alone: which of its ids count, and whether all may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "errors/error.h"
#include "gpu/device_address.h"

namespace embstore {

// Arrays of int64, in the order of the stream of the batch.
struct BatchConditions {
  gpu::DeviceAddress kept;     // of each id: 0 leaves it and its gradients out; none: all are kept
  gpu::DeviceAddress refused;  // one: the number of a reason, from 1, or 0; none: the batch isn't refused
  std::vector<std::string> reasons;  // why it may be refused
  // One: where it isn't 0, no row is updated, and that is no error: the apply counts, but the optimizer's own state stays as it is.
  // None: the batch isn't left out.
  gpu::DeviceAddress left_out = {};

  // Throws Error(kInvalidArgument): the gradients of the id at this position aren't finite.
  [[noreturn]] static void refuse_not_finite(size_t position) {
    throw Error(ErrorKind::kInvalidArgument,
                "grads must be finite, since a row never recovers: those of ids[" + std::to_string(position) +
                    "] aren't; leave the batch out, or lower the learning rate");
  }
  // Throws Error(kInvalidArgument) for what `refused` holds, unless it is 0.
  void check(int64_t number) const {
    if (number != 0) throw Error(ErrorKind::kInvalidArgument, reasons.at(static_cast<size_t>(number - 1)));
  }
};

}  // namespace embstore
