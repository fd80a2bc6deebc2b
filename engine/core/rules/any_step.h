// A step of any rule: the host gives it to a device that updates rows by itself.
#pragma once

#include <variant>

#include "rules/adadelta.h"
#include "rules/adagrad.h"
#include "rules/adagrad_decay.h"
#include "rules/adam.h"
#include "rules/adam_async.h"
#include "rules/adam_w.h"
#include "rules/adamax.h"
#include "rules/ftrl.h"
#include "rules/power.h"
#include "rules/rmsprop.h"
#include "rules/sgd.h"

namespace embstore {

using AnyStep =
    std::variant<AdadeltaStep, AdagradStep, AdagradDecayStep, AdamStep, AdamAsyncStep, AdamWStep, AdamaxStep,
                 FtrlStep<DevicePower>, FtrlStep<SquareRoot>, RmspropStep, RmspropMomentumStep, SgdStep>;

}  // namespace embstore
