// The power function of the kernels. A GPU library's pow has fused operations and may be several floats off;
// this one is made of + − × ÷ alone, so that its bits are the same on every device, the emulated one too. It
// is computed in double precision and rounded once: the result is the float nearest to the power but for
// about one argument in ten million, so it is within 1 ulp of a CPU's pow. Optimizers on the CPU use their
// library's pow. It has neither branches nor tables.
#pragma once

#include "rules/arithmetic.h"

namespace embstore {

// Returns base^exponent. REQUIRES: base >= 0 or a NaN; exponent >= 0 and finite.
inline float power(float base, float exponent) {
  // base = 2^binary * fraction, where the fraction lies between sqrt(1/2) and sqrt(2).
  constexpr uint64_t kSquareRootOfHalf = 0x3fe6a09e667f3bcd;
  constexpr uint64_t kBias = 1023;
  const uint64_t bits = bits_of(static_cast<double>(base));
  const uint64_t biased = (bits - kSquareRootOfHalf + (kBias << 52)) >> 52;
  const double fraction = double_of(bits - ((biased - kBias) << 52));
  // The exponent as a double: it is put into the last bits of 2^52, from which 2^52 and the bias are
  // subtracted.
  constexpr uint64_t kTwoTo52 = 0x4330000000000000;
  const double binary = double_of(kTwoTo52 + biased) - (4503599627370496.0 + 1023.0);

  // log2(fraction) = 2 / ln 2 * (s + s^3 / 3 + s^5 / 5 + ...), where |s| < 0.172.
  const double s = (fraction - 1.0) / (fraction + 1.0);
  const double z = s * s;
  constexpr double kTwoByLn2 = 2.8853900817779268;
  double sum = kTwoByLn2 / 19;
  sum = sum * z + kTwoByLn2 / 17;
  sum = sum * z + kTwoByLn2 / 15;
  sum = sum * z + kTwoByLn2 / 13;
  sum = sum * z + kTwoByLn2 / 11;
  sum = sum * z + kTwoByLn2 / 9;
  sum = sum * z + kTwoByLn2 / 7;
  sum = sum * z + kTwoByLn2 / 5;
  sum = sum * z + kTwoByLn2 / 3;
  sum = sum * z + kTwoByLn2;
  const double product = static_cast<double>(exponent) * (binary + sum * s);
  // Every float is at most 2^200, and every float but zero at least 2^-200.
  const double below = product < 200.0 ? product : 200.0;
  const double logarithm = below > -200.0 ? below : -200.0;

  // 2^logarithm = 2^whole * e^u, where |u| <= ln 2 / 2. Adding 1.5 * 2^52 leaves the whole number in the last
  // bits.
  constexpr double kRounds = 6755399441055744.0;
  const double rounded = logarithm + kRounds;
  const double u = (logarithm - (rounded - kRounds)) * 0.69314718055994531;
  double e = 1.0 / 6227020800.0;
  e = e * u + 1.0 / 479001600.0;
  e = e * u + 1.0 / 39916800.0;
  e = e * u + 1.0 / 3628800.0;
  e = e * u + 1.0 / 362880.0;
  e = e * u + 1.0 / 40320.0;
  e = e * u + 1.0 / 5040.0;
  e = e * u + 1.0 / 720.0;
  e = e * u + 1.0 / 120.0;
  e = e * u + 1.0 / 24.0;
  e = e * u + 1.0 / 6.0;
  e = e * u + 0.5;
  e = e * u + 1.0;
  e = e * u + 1.0;
  const auto result = static_cast<float>(double_of(bits_of(e) + (bits_of(rounded) << 52)));

  // Zero, infinity and NaN have no logarithm; each is its own power.
  const bool has_logarithm = base > 0.0f && base - base == 0.0f;
  const float finite_or_not = has_logarithm ? result : base;
  return exponent == 0.0f ? 1.0f : finite_or_not;
}

// The power in Ftrl's step on a device.
struct DevicePower {
  static float raised(float a, float exponent) { return power(a, exponent); }
};

}  // namespace embstore
