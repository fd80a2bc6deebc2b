// Rounds sizes and addresses up to whole units.
#pragma once

#include <cstdint>

namespace embstore {

// Returns the least multiple of `unit` that isn't below `bytes`.
constexpr uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace embstore
