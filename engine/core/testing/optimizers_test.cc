// Every rule with each of the processor's vector extensions: the bits of rows and slots must not tell which.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "platform/vector_extensions.h"
#include "row/row_guard.h"
#include "row/row_layout.h"
#include "testing/check.h"
#include "update/optimizers/optimizer.h"

namespace embstore {
namespace {

const std::map<std::string, OptimizerParams> kRules = {
    {"Adadelta", {{"learning_rate", 0.5}, {"rho", 0.9}, {"epsilon", 1e-7}}},
    {"Adagrad", {{"learning_rate", 0.1}, {"initial_accumulator_value", 0.1}}},
    {"AdagradDecay",
     {{"learning_rate", 0.1},
      {"initial_accumulator_value", 0.1},
      {"accumulator_decay_step", 3},
      {"accumulator_decay_rate", 0.7}}},
    {"Adam", {{"learning_rate", 0.01}, {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}}},
    {"AdamAsync",
     {{"learning_rate", 0.01},
      {"beta1", 0.9},
      {"beta2", 0.999},
      {"epsilon", 1e-8},
      {"apply_sparse_rmsprop", 1}}},
    {"AdamW",
     {{"learning_rate", 0.01}, {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight_decay", 0.05}}},
    {"Adamax", {{"learning_rate", 0.01}, {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-7}}},
    {"Ftrl",
     {{"learning_rate", 0.1},
      {"learning_rate_power", -0.5},
      {"initial_accumulator_value", 0.1},
      {"l1_regularization_strength", 0.4},
      {"l2_regularization_strength", 0.01}}},
    {"RMSprop", {{"learning_rate", 0.01}, {"rho", 0.9}, {"momentum", 0.0}, {"epsilon", 1e-7}}},
    {"RMSpropMomentum", {{"learning_rate", 0.01}, {"rho", 0.9}, {"momentum", 0.7}, {"epsilon", 1e-7}}},
    {"SGD", {{"learning_rate", 0.1}}},
};

// Rows and slots after some applies, the same for the same dim whatever computes them.
std::vector<float> trained(const std::string& rule, VectorExtensions extensions, int dim) {
  constexpr size_t kRows = 5;
  constexpr int kApplies = 8;
  const auto optimizer = make_optimizer(rule, kRules.at(rule), extensions);
  const RowLayout layout(dim, optimizer->slot_count());
  std::mt19937_64 random(static_cast<uint64_t>(dim));
  // Gradients of very different sizes, down to where squares are subnormal.
  std::normal_distribution<float> value;
  std::uniform_int_distribution<int> exponent(-64, 8);
  std::vector<float> rows(kRows * layout.row_floats());
  for (size_t r = 0; r < kRows; ++r) {
    float* const row = rows.data() + r * layout.row_floats();
    for (int d = 0; d < dim; ++d) row[d] = value(random);
    for (int s = 0; s < layout.slot_count(); ++s) {
      std::fill_n(row + static_cast<size_t>(1 + s) * layout.block_floats(), dim,
                  optimizer->initial_slot_value(s));
    }
  }
  std::vector<float> gradients(kRows * static_cast<size_t>(dim));
  std::vector<RowGuard> guards(kRows);
  OptimizerState state = optimizer->initial_state();
  for (int64_t step = 0; step < kApplies; ++step) {
    for (float& gradient : gradients) gradient = std::ldexp(value(random), exponent(random));
    std::vector<RowUpdate> updates;
    for (size_t r = 0; r < kRows; ++r) {
      updates.push_back({&guards[r], rows.data() + r * layout.row_floats(),
                         gradients.data() + r * static_cast<size_t>(dim)});
    }
    optimizer->update(updates, layout, {step, state});
    optimizer->advance(state);
  }
  return rows;
}

void same_bits_with_all_extensions() {
  for (const auto& [rule, params] : kRules) {
    for (const int dim : {1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100}) {
      const std::vector<float> wanted = trained(rule, VectorExtensions::kNone, dim);
      for (const VectorExtensions extensions : offered_vector_extensions()) {
        const std::vector<float> got = trained(rule, extensions, dim);
        check(std::memcmp(got.data(), wanted.data(), wanted.size() * sizeof(float)) == 0,
              rule + " of dim " + std::to_string(dim) + " gives other bits with " + name_of(extensions));
      }
    }
  }
}

}  // namespace
}  // namespace embstore

int main() {
  embstore::same_bits_with_all_extensions();
  std::printf("held: %zu rules with", embstore::kRules.size());
  for (const auto extensions : embstore::offered_vector_extensions()) {
    std::printf(" %s", embstore::name_of(extensions));
  }
  std::printf("\n");
}
