#include "pacing/cache_hierarchy.h"

#include <algorithm>

#include "access/process_registry.h"

namespace embstore {

OutcomeShares::Values OutcomeShares::values() const {
  Values values{};
  double total = 0;
  // A phase's sample may have more of the unusual outcomes than lines expected in all; in the long
  // run it hasn't.
  for (const double count : counts_) total += std::max(count, 0.0);
  if (total == 0) {
    values[static_cast<size_t>(Outcome::kMiss)] = 1.0;
    return values;
  }
  for (size_t i = 0; i < kOutcomes; ++i) values[i] = std::max(counts_[i], 0.0) / total;
  return values;
}

void OutcomeShares::add(const OutcomeCounts& sampled, double expected, Outcome usual) {
  // A phase that has seen enough by itself needs no earlier ones.
  const double max_before = std::max(0.0, kMaxSeen - expected);
  const double kept = seen_ > max_before ? max_before / seen_ : 1.0;
  for (double& count : counts_) count *= kept;
  seen_ = seen_ * kept + expected;
  double others = 0;
  for (size_t i = 0; i < kOutcomes; ++i) {
    if (i == static_cast<size_t>(usual)) continue;
    counts_[i] += static_cast<double>(sampled[i]);
    others += static_cast<double>(sampled[i]);
  }
  counts_[static_cast<size_t>(usual)] += expected - others;
}

Outcome CacheHierarchy::usual_outcome(Access access) const {
  if (cpu_sets_ == 0 || access == Access::kStoreStreamed) return Outcome::kMiss;
  return access == Access::kStoreFlushed ? Outcome::kDirtied : Outcome::kFree;
}

uint64_t CacheHierarchy::sets_of(uint64_t bytes, size_t ways) {
  const uint64_t sets = bytes / (kLineBytes * ways);
  return sets < LineClasses::kCount ? sets : sets / LineClasses::kCount * LineClasses::kCount;
}

CacheHierarchy::CacheHierarchy(const CacheSizes& sizes)
    : cpu_sets_(sets_of(sizes.cpu_bytes, kCpuWays)),
      memory_sets_(sets_of(sizes.memory_bytes, 1)),
      classes_((cpu_sets_ != 0 && cpu_sets_ < LineClasses::kCount) ||
                       (memory_sets_ != 0 && memory_sets_ < LineClasses::kCount)
                   ? 1
                   : LineClasses::kCount),
      cpu_(cpu_sets_, classes_, kCpuWays),
      memory_(memory_sets_, classes_, 1) {}

CacheHierarchy::Sets::Sets(uint64_t sets, uint64_t classes, size_t ways) : count(sets) {
  const uint64_t simulated = classes == 1 ? count : count / LineClasses::kCount * LineClasses::kSampled;
  if (simulated != 0) lines.emplace(simulated * ways, PageSize::kSmall);
}

std::shared_ptr<CacheHierarchy> CacheHierarchy::shared(const CacheSizes& sizes) {
  return ProcessRegistry<CacheSizes, CacheHierarchy>::get(
      sizes, [&sizes] { return std::make_shared<CacheHierarchy>(sizes); });
}

void CacheHierarchy::touch(std::span<const TouchedLine> lines, std::span<OutcomeCounts> by_group) {
  const MutexLock lock(mutex_);
  for (const auto& [line, access, group] : lines) {
    if (classes_ != 1 && !LineClasses::is_sampled(line)) continue;
    ++by_group[group][static_cast<size_t>(touch(line, access))];
  }
}

uint64_t* CacheHierarchy::set_of(const Sets& sets, uint64_t line, size_t ways) const {
  const uint64_t set = line % sets.count;
  if (classes_ == 1) return sets.lines->data() + set * ways;
  // The number of sets is a multiple of the number of classes, so all lines of a set are in one
  // class.
  const uint64_t number =
      LineClasses::rank_of(line) * (sets.count / LineClasses::kCount) + set / LineClasses::kCount;
  return sets.lines->data() + number * ways;
}

Outcome CacheHierarchy::touch(uint64_t line, Access access) {
  const bool writes = access != Access::kLoad;
  if (cpu_.count == 0) return touch_memory(line, writes);
  const std::span<uint64_t> set(set_of(cpu_, line, kCpuWays), kCpuWays);
  const auto found =
      std::find_if(set.begin(), set.end(), [line](uint64_t entry) { return entry >> 1 == line + 1; });
  if (access == Access::kStoreStreamed) {
    if (found != set.end()) {
      std::move(found + 1, set.end(), found);
      set.back() = 0;
    }
    return touch_memory(line, writes);
  }
  const bool was_there = found != set.end();
  const bool was_changed = was_there && (*found & 1) != 0;
  // Flushed lines stay in the cache, unchanged since the memory has them.
  const bool stays_changed = access != Access::kStoreFlushed && (was_changed || writes);
  std::move_backward(set.begin(), was_there ? found : set.end() - 1, was_there ? found + 1 : set.end());
  set.front() = (line + 1) << 1 | (stays_changed ? 1 : 0);
  if (!was_there) return touch_memory(line, writes);
  const bool is_written_back = writes && (access == Access::kStoreFlushed || !was_changed);
  if (!is_written_back) return Outcome::kFree;
  if (memory_.count != 0) touch_memory(line, /*writes=*/true);
  return Outcome::kDirtied;
}

Outcome CacheHierarchy::touch_memory(uint64_t line, bool writes) {
  if (memory_.count == 0) return Outcome::kMiss;
  uint64_t& entry = *set_of(memory_, line, 1);
  const uint64_t before = entry;
  const bool is_hit = before >> 1 == line + 1;
  entry = (line + 1) << 1 | (writes || (is_hit && (before & 1) != 0) ? 1 : 0);
  if (is_hit) return Outcome::kMiss;
  return (before & 1) != 0 ? Outcome::kDirtyMiss : Outcome::kCleanMiss;
}

}  // namespace embstore
