// Every rule with each of the processor's vector extensions: the bits of rows and slots must not tell which.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "platform/vector_extensions.h"
#include "row/row_guard.h"
#include "row/row_layout.h"
#include "rules/power.h"
#include "testing/check.h"
#include "testing/optimizer_cases.h"
#include "update/optimizers/optimizer.h"

namespace embstore {
namespace {

// Rows and slots after some applies, the same for the same dim whatever computes them.
std::vector<float> trained(const OptimizerCase& rule, VectorExtensions extensions, int dim) {
  constexpr size_t kRows = 5;
  constexpr int kApplies = 8;
  const auto optimizer = make_optimizer(rule.name, rule.params, extensions);
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
  for (const OptimizerCase& rule : optimizer_cases()) {
    for (const int dim : {1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100}) {
      const std::vector<float> wanted = trained(rule, VectorExtensions::kNone, dim);
      for (const VectorExtensions extensions : offered_vector_extensions()) {
        const std::vector<float> got = trained(rule, extensions, dim);
        check(std::memcmp(got.data(), wanted.data(), wanted.size() * sizeof(float)) == 0,
              rule.name + " of dim " + std::to_string(dim) + " gives other bits with " + name_of(extensions));
      }
    }
  }
}

// How many floats lie between them.
int64_t distance(float a, float b) {
  return std::abs(int64_t{std::bit_cast<int32_t>(a)} - std::bit_cast<int32_t>(b));
}

void powers_are_the_nearest_floats() {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<uint32_t> any_float(
      0, std::bit_cast<uint32_t>(std::numeric_limits<float>::max()));
  std::uniform_real_distribution<float> exponent(0.0f, 2.0f);
  constexpr int kArguments = 1'000'000;
  int others = 0;
  for (int i = 0; i < kArguments; ++i) {
    const auto base = std::bit_cast<float>(any_float(random));
    const float to = i % 4 == 0 ? 0.5f : exponent(random);
    const auto wanted = static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(to)));
    const float got = power(base, to);
    check(distance(got, wanted) <= 1, std::to_string(base) + " to the power of " + std::to_string(to));
    others += got != wanted;
  }
  check(others <= kArguments / 100'000, std::to_string(others) + " powers are not the nearest float");
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  check(power(0.0f, 0.5f) == 0.0f && power(0.0f, 0.0f) == 1.0f, "powers of 0");
  check(power(kInfinity, 0.5f) == kInfinity && power(kInfinity, 0.0f) == 1.0f, "powers of infinity");
  check(std::isnan(power(std::nanf(""), 0.5f)) && power(1.0f, 100.0f) == 1.0f, "powers of NaN and 1");
  check(power(1e30f, 3.0f) == kInfinity && power(1e-30f, 3.0f) == 0.0f, "powers beyond the range");
}

}  // namespace
}  // namespace embstore

int main() {
  embstore::same_bits_with_all_extensions();
  embstore::powers_are_the_nearest_floats();
  std::printf("held: %zu rules with", embstore::optimizer_cases().size());
  for (const auto extensions : embstore::offered_vector_extensions()) {
    std::printf(" %s", embstore::name_of(extensions));
  }
  std::printf("\n");
}
