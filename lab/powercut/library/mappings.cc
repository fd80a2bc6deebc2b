#include "mappings.h"

#include <algorithm>
#include <vector>

namespace powercut {

void Mappings::add(const void* address, size_t bytes, MediumFile& file, uint64_t offset) {
  remove(address, bytes);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  stretches_[begin] = {begin + bytes, &file, offset};
  lowest_ = std::min(lowest_.load(), begin);
  highest_ = std::max(highest_.load(), begin + bytes);
}

bool Mappings::may_touch(const void* address, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  return begin < highest_ && begin + bytes > lowest_;
}

void Mappings::remove(const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = begin + bytes;
  std::vector<std::pair<uintptr_t, Stretch>> left;
  for (auto at = stretches_.begin(); at != stretches_.end();) {
    const auto [from, stretch] = *at;
    if (from >= end) break;
    if (stretch.end <= begin) {
      ++at;
      continue;
    }
    if (from < begin) left.emplace_back(from, Stretch{begin, stretch.file, stretch.offset});
    if (stretch.end > end)
      left.emplace_back(end, Stretch{stretch.end, stretch.file, stretch.offset + (end - from)});
    at = stretches_.erase(at);
  }
  stretches_.insert(left.begin(), left.end());
}

std::optional<Mapped> Mappings::find(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto found = stretches_.upper_bound(at);
  if (found == stretches_.begin()) return std::nullopt;
  --found;
  const auto& [begin, stretch] = *found;
  if (at >= stretch.end) return std::nullopt;
  return Mapped{stretch.file, stretch.offset + (at - begin), stretch.end - at};
}

const std::byte* Mappings::next(const void* address) const {
  if (find(address)) return static_cast<const std::byte*>(address);
  const auto found = stretches_.upper_bound(reinterpret_cast<uintptr_t>(address));
  return found == stretches_.end() ? nullptr : reinterpret_cast<const std::byte*>(found->first);
}

}  // namespace powercut
