// Tests every rule with each of the processor's vector extensions: the bits of rows and slots must be the
// same with all, and as in earlier versions.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "platform/crc32c.h"
#include "platform/vector_extensions.h"
#include "row/row_guard.h"
#include "row/row_layout.h"
#include "rules/power.h"
#include "testing/check.h"
#include "testing/optimizer_cases.h"
#include "update/optimizers/optimizer.h"

namespace embstore {
namespace {

constexpr std::array kDims = {1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100};

// Draws a float; sizes differ greatly, down to floats whose squares are subnormal. The same with every
// standard library.
float some_float(std::mt19937_64& random) {
  const auto digits = static_cast<int>(random() % (1 << 24)) - (1 << 23);
  return std::ldexp(static_cast<float>(digits), static_cast<int>(random() % 72) - 86);
}

// Returns rows and slots after some applies, which must be the same for the same dim whatever computes them.
std::vector<float> trained(const OptimizerCase& rule, VectorExtensions extensions, int dim) {
  constexpr size_t kRows = 5;
  constexpr int kApplies = 8;
  const auto optimizer = make_optimizer(rule.name, rule.params, extensions);
  const RowLayout layout(dim, optimizer->slot_count());
  std::mt19937_64 random(static_cast<uint64_t>(dim));
  std::vector<float> rows(kRows * layout.row_floats());
  for (size_t r = 0; r < kRows; ++r) {
    float* const row = rows.data() + r * layout.row_floats();
    for (int d = 0; d < dim; ++d) row[d] = some_float(random);
    for (int s = 0; s < layout.slot_count(); ++s) {
      std::fill_n(row + static_cast<size_t>(1 + s) * layout.block_floats(), dim,
                  optimizer->initial_slot_value(s));
    }
  }
  std::vector<float> gradients(kRows * static_cast<size_t>(dim));
  std::vector<RowGuard> guards(kRows);
  OptimizerState state = optimizer->initial_state();
  for (int64_t step = 0; step < kApplies; ++step) {
    for (float& gradient : gradients) gradient = some_float(random);
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
    for (const int dim : kDims) {
      const std::vector<float> wanted = trained(rule, VectorExtensions::kNone, dim);
      for (const VectorExtensions extensions : offered_vector_extensions()) {
        const std::vector<float> got = trained(rule, extensions, dim);
        check(std::memcmp(got.data(), wanted.data(), wanted.size() * sizeof(float)) == 0,
              rule.name + " of dim " + std::to_string(dim) + " gives other bits with " + name_of(extensions));
      }
    }
  }
}

// A new release must compute the same as an earlier one, since rows are trained on after a restore. CRC-32C
// of the rows of all kDims, by case; 0 if a rule uses the library's power, whose last bit differs between
// libraries.
constexpr std::array<uint32_t, 14> kBits = {0xdfe4fffa, 0x6dd058e1, 0xb1afe56d, 0xb02aac3c, 0xb02aac3c,
                                            0xce053e61, 0x448c30ab, 0x05b72716, 0x5dcff731, 0,
                                            0x9c15414e, 0x319c55ab, 0x6e0195e5, 0xfd010da9};

void same_bits_as_earlier_versions() {
  check(kBits.size() == optimizer_cases().size(), "each case has its bits");
  for (size_t i = 0; i < kBits.size(); ++i) {
    const OptimizerCase& rule = optimizer_cases()[i];
    uint32_t crc = 0;
    for (const int dim : kDims) {
      const std::vector<float> rows = trained(rule, VectorExtensions::kNone, dim);
      check(std::none_of(rows.begin(), rows.end(), [](float value) { return std::isnan(value); }),
            "a NaN, whose bits may differ");
      crc = crc32c(rows.data(), rows.size() * sizeof(float), crc);
    }
    check(kBits[i] == 0 || crc == kBits[i],
          "case " + std::to_string(i) + ", " + rule.name + ", gives other bits: " + std::to_string(crc));
  }
}

// Compares Ftrl with a plain implementation that uses the library's power.
void ftrl_takes_the_librarys_power() {
  constexpr int kDim = 100'000;  // one of 1,700 powers differs from a device's
  constexpr float kExponent = 0.7f;
  const OptimizerParams params = {{"learning_rate", 0.1},
                                  {"learning_rate_power", -0.7},
                                  {"initial_accumulator_value", 0.1},
                                  {"l1_regularization_strength", 0.0},
                                  {"l2_regularization_strength", 0.01}};
  const auto optimizer = make_optimizer("Ftrl", params);
  const RowLayout layout(kDim, 2);
  std::mt19937_64 random(1);
  std::vector<float> row(layout.row_floats()), gradient(kDim);
  for (int i = 0; i < kDim; ++i) row[i] = some_float(random);
  const std::vector<float> weights = row;
  std::fill_n(row.begin() + kDim, kDim, 0.1f);
  for (float& g : gradient) g = static_cast<float>(random() % 10000) / 1000.0f;
  RowGuard guard{};
  const RowUpdate update{&guard, row.data(), gradient.data()};
  optimizer->update({&update, 1}, layout, {0, optimizer->initial_state()});
  volatile float initial = 0.1f;  // so that the compiler doesn't compute the power itself
  const float before = std::pow(initial, kExponent);
  for (int i = 0; i < kDim; ++i) {
    const float sum = 0.1f + gradient[i] * gradient[i];
    const float linear = gradient[i] - (std::pow(sum, kExponent) - before) * 10.0f * weights[i];
    check(row[kDim + i] == sum && row[2 * kDim + i] == linear,
          [&] { return "slots of element " + std::to_string(i); });
    check(row[i] == -0.1f * linear / (std::pow(sum, kExponent) + static_cast<float>(2.0 * 0.01 * 0.1)),
          [&] { return "weight of element " + std::to_string(i); });
  }
}

// Returns how many floats lie between two floats.
int64_t distance(float a, float b) {
  return std::abs(int64_t{std::bit_cast<int32_t>(a)} - std::bit_cast<int32_t>(b));
}

void a_devices_powers_are_the_nearest_floats() {
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
    check(distance(got, wanted) <= 1 && distance(got, std::pow(base, to)) <= 1,
          [&] { return std::to_string(base) + " to the power of " + std::to_string(to); });
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
  embstore::same_bits_as_earlier_versions();
  embstore::ftrl_takes_the_librarys_power();
  embstore::a_devices_powers_are_the_nearest_floats();
  std::printf("held: %zu rules with", embstore::optimizer_cases().size());
  for (const auto extensions : embstore::offered_vector_extensions()) {
    std::printf(" %s", embstore::name_of(extensions));
  }
  std::printf("\n");
}
