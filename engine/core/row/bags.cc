#include "row/bags.h"

#include <algorithm>

namespace embstore {
namespace {

// This number of sums fits the SSE registers that every x86-64 has.
constexpr size_t kFloatsAtOnce = 16;

// Sums kWidth floats (width floats if kWidth is 0) of each of `rows` neighbouring rows, except rows that are
// left out.
template <size_t kWidth, class IsLeftOut>
void add_rows(const float* row, size_t rows, size_t dim, size_t width, const IsLeftOut& is_left_out,
              float* sum) {
  const size_t floats = kWidth == 0 ? width : kWidth;
  float added[kFloatsAtOnce] = {};
  for (size_t i = 0; i < rows; ++i, row += dim) {
    if (is_left_out(i)) continue;
    for (size_t d = 0; d < floats; ++d) added[d] += row[d];
  }
  std::copy_n(added, floats, sum);
}

// Calls visit(number, begin, end) for each bag, with the positions of its ids.
template <class Visit>
void for_each_bag(std::span<const int64_t> offsets, size_t ids, const Visit& visit) {
  for (size_t bag = 0; bag < offsets.size(); ++bag) {
    const size_t end = bag + 1 < offsets.size() ? static_cast<size_t>(offsets[bag + 1]) : ids;
    visit(bag, static_cast<size_t>(offsets[bag]), end);
  }
}

}  // namespace

bool are_valid_offsets(std::span<const int64_t> offsets, size_t ids) {
  return offsets.empty() || (offsets.front() == 0 && std::ranges::is_sorted(offsets) &&
                             static_cast<uint64_t>(offsets.back()) <= ids);
}

void Bags::sum(std::span<const int64_t> ids, const float* rows, size_t dim, float* sums) const {
  const auto sum_each = [&](const auto& is_left_out) {
    for_each_bag(offsets, ids.size(), [&](size_t bag, size_t begin, size_t end) {
      const auto is_out = [&](size_t i) { return is_left_out(ids[begin + i]); };
      for (size_t d = 0; d < dim; d += kFloatsAtOnce) {
        const float* const row = rows + begin * dim + d;
        float* const sum = sums + bag * dim + d;
        if (dim - d >= kFloatsAtOnce) {
          add_rows<kFloatsAtOnce>(row, end - begin, dim, kFloatsAtOnce, is_out, sum);
        } else {
          add_rows<0>(row, end - begin, dim, dim - d, is_out, sum);
        }
      }
    });
  };
  if (left_out) {
    sum_each([out = *left_out](int64_t id) { return id == out; });
  } else {
    sum_each([](int64_t) { return false; });
  }
}

PageVector<uint32_t> Bags::numbers(std::span<const int64_t> ids) const {
  PageVector<uint32_t> numbers(ids.size());
  for_each_bag(offsets, ids.size(), [&](size_t bag, size_t begin, size_t end) {
    std::fill(numbers.data() + begin, numbers.data() + end, static_cast<uint32_t>(bag));
  });
  for (size_t i = 0; left_out && i < ids.size(); ++i) {
    if (ids[i] == *left_out) numbers[i] = kLeftOut;
  }
  return numbers;
}

}  // namespace embstore
