// A case for each rule of an optimizer.
#pragma once

#include <string>
#include <vector>

#include "update/optimizers/optimizer.h"

namespace embstore {

struct OptimizerCase {
  std::string name;
  OptimizerParams params;
};

inline const std::vector<OptimizerCase>& optimizer_cases() {
  static const OptimizerParams adam = {
      {"learning_rate", 0.01}, {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight_decay", 0.05}};
  static const OptimizerParams ftrl = {{"learning_rate", 0.1},
                                       {"initial_accumulator_value", 0.1},
                                       {"l1_regularization_strength", 0.4},
                                       {"l2_regularization_strength", 0.01}};
  static const auto with = [](OptimizerParams params, const char* name, double value) {
    params[name] = value;
    return params;
  };
  static const std::vector<OptimizerCase> cases = {
      {"Adadelta", {{"learning_rate", 0.5}, {"rho", 0.9}, {"epsilon", 1e-7}}},
      {"Adagrad", {{"learning_rate", 0.1}, {"initial_accumulator_value", 0.1}}},
      {"AdagradDecay",
       {{"learning_rate", 0.1},
        {"initial_accumulator_value", 0.1},
        {"accumulator_decay_step", 3},
        {"accumulator_decay_rate", 0.7}}},
      {"Adam", adam},
      {"AdamAsync", with(adam, "apply_sparse_rmsprop", 0)},
      {"AdamAsync", with(adam, "apply_sparse_rmsprop", 1)},
      {"AdamW", adam},
      {"Adamax", adam},
      {"Ftrl", with(ftrl, "learning_rate_power", -0.5)},
      {"Ftrl", with(ftrl, "learning_rate_power", -0.7)},
      {"Ftrl", with(ftrl, "learning_rate_power", 0)},
      {"RMSprop", {{"learning_rate", 0.01}, {"rho", 0.9}, {"momentum", 0.0}, {"epsilon", 1e-7}}},
      {"RMSpropMomentum", {{"learning_rate", 0.01}, {"rho", 0.9}, {"momentum", 0.7}, {"epsilon", 1e-7}}},
      {"SGD", {{"learning_rate", 0.1}}},
  };
  return cases;
}

}  // namespace embstore
