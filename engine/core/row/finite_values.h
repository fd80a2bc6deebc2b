// Finds values that no training should take in: one NaN spoils its row for good.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace embstore {

// Where the first value is that is NaN or infinite.
inline std::optional<size_t> first_not_finite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;  // all ones in NaN and infinity alone
  constexpr size_t kAtATime = 4096;  // without a branch a value, so that the compiler makes vectors of them
  const auto is_finite = [](float value) {
    return (std::bit_cast<uint32_t>(value) & kExponent) != kExponent;
  };
  for (size_t first = 0; first < values.size(); first += kAtATime) {
    const auto some = values.subspan(first, std::min(kAtATime, values.size() - first));
    uint32_t not_finite = 0;
    for (const float value : some) not_finite |= static_cast<uint32_t>(!is_finite(value));
    if (not_finite == 0) continue;
    return first + static_cast<size_t>(std::find_if_not(some.begin(), some.end(), is_finite) - some.begin());
  }
  return std::nullopt;
}

}  // namespace embstore
