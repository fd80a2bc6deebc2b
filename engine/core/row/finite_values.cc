#include "row/finite_values.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "threads/shared_work.h"

namespace embstore {
namespace {

// Searches values from `begin` to `end`. Returns values.size() if all of them are finite.
size_t first_not_finite(std::span<const float> values, size_t begin, size_t end) {
  constexpr uint32_t kExponent = 0x7f800000;  // all its bits are set only in NaN and infinity
  constexpr size_t kAtATime = 4096;  // values between two branches, so that the compiler vectorises the loop
  const auto is_finite = [](float value) {
    return (std::bit_cast<uint32_t>(value) & kExponent) != kExponent;
  };
  for (size_t first = begin; first < end; first += kAtATime) {
    const auto some = values.subspan(first, std::min(kAtATime, end - first));
    uint32_t not_finite = 0;
    for (const float value : some) not_finite |= static_cast<uint32_t>(!is_finite(value));
    if (not_finite == 0) continue;
    return first + static_cast<size_t>(std::find_if_not(some.begin(), some.end(), is_finite) - some.begin());
  }
  return values.size();
}

}  // namespace

std::optional<size_t> first_not_finite(std::span<const float> values) {
  constexpr size_t kAPiece = size_t{1} << 17;  // checking a piece takes as long as waking a thread
  const size_t pieces = std::max<size_t>(values.size() / kAPiece, 1);
  std::atomic<size_t> found{values.size()};
  for_each_piece(pieces, HelpingThreads::max_threads(), [&](size_t piece) {
    const size_t end = piece + 1 == pieces ? values.size() : (piece + 1) * kAPiece;
    const size_t first = first_not_finite(values, piece * kAPiece, end);
    size_t before = found.load();
    while (first < before && !found.compare_exchange_weak(before, first)) {
    }
  });
  return found == values.size() ? std::nullopt : std::optional(found.load());
}

}  // namespace embstore
