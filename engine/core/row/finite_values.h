// Finds values that no training should take in: one NaN spoils its row for good.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace embstore {

// Where the first value is that is NaN or infinite. Several threads look for it where there are many.
std::optional<size_t> first_not_finite(std::span<const float> values);

}  // namespace embstore
