#include "update/optimizers/optimizer.h"

#include <functional>

#include "errors/error.h"
#include "update/optimizers/adadelta.h"
#include "update/optimizers/adagrad.h"
#include "update/optimizers/adagrad_decay.h"
#include "update/optimizers/adam.h"
#include "update/optimizers/adam_async.h"
#include "update/optimizers/adam_w.h"
#include "update/optimizers/adamax.h"
#include "update/optimizers/ftrl.h"
#include "update/optimizers/rmsprop.h"
#include "update/optimizers/sgd.h"

namespace embstore {
namespace {

using Factory = std::function<std::unique_ptr<Optimizer>(const OptimizerParams&, VectorExtensions)>;

template <UpdateRule Rule>
std::unique_ptr<Optimizer> make(const OptimizerParams& params, VectorExtensions extensions) {
  return std::make_unique<OptimizerOf<Rule>>(params, extensions);
}

// These optimizers have two formulas; a parameter chooses one.
std::unique_ptr<Optimizer> make_adam_async(const OptimizerParams& params, VectorExtensions extensions) {
  if (parameter(params, "apply_sparse_rmsprop") == 0.0) return make<Adam>(params, extensions);
  return make<AdamAsync>(params, extensions);
}
std::unique_ptr<Optimizer> make_ftrl(const OptimizerParams& params, VectorExtensions extensions) {
  if (static_cast<float>(parameter(params, "learning_rate_power")) == -0.5f)
    return make<Ftrl<SquareRoot>>(params, extensions);
  return make<Ftrl<LibraryPower>>(params, extensions);
}

const std::map<std::string, Factory>& factories() {
  static const std::map<std::string, Factory> table = {
      {"Adadelta", make<Adadelta>},
      {"Adagrad", make<Adagrad>},
      {"AdagradDecay", make<AdagradDecay>},
      {"AdagradDecayV2", make<AdagradDecay>},
      {"Adam", make<Adam>},
      {"AdamAsync", make_adam_async},
      {"AdamW", make<AdamW>},
      {"Adamax", make<Adamax>},
      {"Ftrl", make_ftrl},
      {"RMSprop", make<Rmsprop>},
      {"RMSpropMomentum", make<RmspropMomentum>},
      {"SGD", make<Sgd>},
  };
  return table;
}

}  // namespace

double parameter(const OptimizerParams& params, const char* name) {
  const auto found = params.find(name);
  if (found == params.end()) {
    throw Error(ErrorKind::kInvalidArgument, std::string("optimizer_params: ") + name + " is missing");
  }
  return found->second;
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const OptimizerParams& params,
                                          VectorExtensions extensions) {
  const auto found = factories().find(name);
  if (found == factories().end()) {
    throw Error(ErrorKind::kInvalidArgument, "optimizer: there is none named " + name);
  }
  return found->second(params, extensions);
}

}  // namespace embstore
