// FTRL-proximal (McMahan et al., 2013) with a group lasso over the row, as DeepRec's on embedding
// variables. With p = -learning_rate_power:
//   a' = a + g^2; linear += g - (a'^p - a^p) / learning_rate * w;
//   w = 0 where |linear| <= l1, else linear * (l1 / |linear| - 1) / (a'^p / learning_rate + 2 * l2),
// where |linear| is the Euclidean norm of the whole row.
//
// So a row takes two passes: accumulate() for all its elements, then its norm, then settle() for all of them.
#pragma once

#include "rules/arithmetic.h"

namespace embstore {

// The norm is summed in this number of interleaved lanes (element i in lane i % kNormLanes), each in order,
// and then the lanes in order. So the compiler may use vector registers of any width, and a GPU a thread for
// each lane.
inline constexpr int kNormLanes = 8;

// The power for a learning_rate_power of -0.5.
struct SquareRoot {
  static float raised(float a, float) { return square_root(a); }
};

// `Power` raises `a` to the power. Except for the square root, a CPU and a GPU use different functions: see
// rules/power.h.
template <class Power>
struct FtrlStep {
  static constexpr int kSlots = 2;  // a, linear
  double learning_rate;
  double l1;
  float inverse_rate;  // 1 / learning_rate
  float l2_term;       // 2 * l2 * learning_rate
  float exponent;      // -learning_rate_power

  float raised(float a) const { return Power::raised(a, exponent); }

  void accumulate(float w, float& a, float& linear, float g) const {
    const float sum = a + g * g;
    linear += g - (raised(sum) - raised(a)) * inverse_rate * w;
    a = sum;
  }

  // Returns a lane's sum with one more element.
  static double with_element(double lane, float linear) {
    const double value = linear;
    return lane + value * value;
  }
  static double norm(const double (&lanes)[kNormLanes]) {
    double sum = 0.0;
    for (int lane = 0; lane < kNormLanes; ++lane) sum += lanes[lane];
    return square_root(sum);
  }
  bool is_zero(double norm) const { return norm <= l1; }
  // Numerator and denominator are multiplied by the learning rate, which saves a division for each element.
  float shrink(double norm) const { return static_cast<float>((l1 / norm - 1.0) * learning_rate); }
  void settle(float& w, float a, float linear, float shrink) const {
    const float curvature = raised(a) + l2_term;
    const float minimum = shrink * linear / curvature;
    w = curvature > 0.0f ? minimum : w;  // 0 before the first gradient, if `a` starts at 0
  }
};

}  // namespace embstore
