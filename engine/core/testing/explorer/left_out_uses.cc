// Replacements of functions of DeviceSteps and Epochs: the linker directs calls from other files of the
// engine to them, and renames the originals.
#include <execinfo.h>

#include "testing/explorer/left_out.h"
#include "threads/epochs.h"
#include "tiers/hbm/device_steps.h"

using embstore::DeviceSteps;
using embstore::Epochs;
using namespace embstore::explorer;

extern "C" {

void __real__ZN8embstore11DeviceSteps7HostUseC1EPS0_NS0_6LengthE(void* use, DeviceSteps* steps,
                                                                 DeviceSteps::Length length);
// The site of a use of rows is the code that called the constructor of the operation.
void __wrap__ZN8embstore11DeviceSteps7HostUseC1EPS0_NS0_6LengthE(void* use, DeviceSteps* steps,
                                                                 DeviceSteps::Length length) {
  void* callers[3] = {};
  if (steps != nullptr && left_out().is_used() && backtrace(callers, 3) == 3 &&
      left_out().leaves_out(Synchronisation::kHostUse, callers[2])) {
    steps = nullptr;
  }
  __real__ZN8embstore11DeviceSteps7HostUseC1EPS0_NS0_6LengthE(use, steps, length);
}

void __real__ZN8embstore11DeviceSteps6finishEv(DeviceSteps* steps);
void __wrap__ZN8embstore11DeviceSteps6finishEv(DeviceSteps* steps) {
  if (left_out().leaves_out(Synchronisation::kFinish, __builtin_return_address(0))) return;
  __real__ZN8embstore11DeviceSteps6finishEv(steps);
}

void __real__ZNK8embstore6Epochs15wait_until_idleEv(const Epochs* epochs);
void __wrap__ZNK8embstore6Epochs15wait_until_idleEv(const Epochs* epochs) {
  if (left_out().leaves_out(Synchronisation::kIdle, __builtin_return_address(0))) return;
  __real__ZNK8embstore6Epochs15wait_until_idleEv(epochs);
}

}  // extern "C"
