// Conditions on a batch of gradients that only the device knows: which ids are kept, and whether the batch is
// applied at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "errors/error.h"
#include "gpu/device_address.h"

namespace embstore {

// The addresses of int64 arrays, which are ready when the batch's stream reaches the apply.
struct BatchConditions {
  gpu::DeviceAddress kept;     // for each id: 0 leaves it and its gradient out; no address: all are kept
  gpu::DeviceAddress refused;  // one number: 0, or that of a reason, from 1; no address: never refused
  std::vector<std::string> reasons;  // the error messages by these numbers
  // One number: if it isn't 0, no row is updated. That is no error: the apply is counted, but the optimizer's
  // state doesn't change. No address: the batch is not left out.
  gpu::DeviceAddress left_out = {};

  // Throws Error(kInvalidArgument) for gradients at `position` that aren't finite.
  [[noreturn]] static void refuse_not_finite(size_t position) {
    throw Error(ErrorKind::kInvalidArgument,
                "grads must be finite, since a row never recovers: those of ids[" + std::to_string(position) +
                    "] aren't; leave the batch out, or lower the learning rate");
  }
  // Throws Error(kInvalidArgument) with the reason of this number, unless it is 0.
  void check(int64_t number) const {
    if (number != 0) throw Error(ErrorKind::kInvalidArgument, reasons.at(static_cast<size_t>(number - 1)));
  }
};

}  // namespace embstore
