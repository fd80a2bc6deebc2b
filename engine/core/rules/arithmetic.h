// Operations that the rules need beside + − × ÷, with the same bits on every processor. A rule is compiled
// for the CPU and, by NVRTC, for a GPU: this folder holds only code that both compilers take.
#pragma once

#include <cstdint>

#ifndef __CUDACC_RTC__
#include <bit>
#include <cmath>
#endif

namespace embstore {

#ifdef __CUDACC_RTC__
inline float square_root(float value) { return __fsqrt_rn(value); }
inline double square_root(double value) { return __dsqrt_rn(value); }
inline float magnitude(float value) { return fabsf(value); }
inline uint64_t bits_of(double value) { return static_cast<uint64_t>(__double_as_longlong(value)); }
inline double double_of(uint64_t bits) { return __longlong_as_double(static_cast<long long>(bits)); }
#else
inline float square_root(float value) { return std::sqrt(value); }
inline double square_root(double value) { return std::sqrt(value); }
inline float magnitude(float value) { return std::fabs(value); }
inline uint64_t bits_of(double value) { return std::bit_cast<uint64_t>(value); }
inline double double_of(uint64_t bits) { return std::bit_cast<double>(bits); }
#endif

// As std::max: returns `a` if one of them is a NaN.
inline float larger(float a, float b) { return a < b ? b : a; }

}  // namespace embstore
