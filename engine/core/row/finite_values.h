// Finds NaN and infinite values: one of them in a gradient would spoil its row for good.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace embstore {

// Returns the position of the first value that is NaN or infinite. Several threads search long spans.
std::optional<size_t> first_not_finite(std::span<const float> values);

}  // namespace embstore
