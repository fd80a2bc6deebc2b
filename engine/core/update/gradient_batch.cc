#include "update/gradient_batch.h"
#include "platform/prefetch.h"

#include <algorithm>
#include <bit>

namespace embstore {

namespace {

std::vector<std::unique_ptr<GradientBatch>>& spare_batches() {
  thread_local std::vector<std::unique_ptr<GradientBatch>> batches;
  return batches;
}

}  // namespace

std::unique_ptr<GradientBatch> GradientBatch::take_spare() {
  auto& batches = spare_batches();
  if (batches.empty()) return std::make_unique<GradientBatch>();
  std::unique_ptr<GradientBatch> batch = std::move(batches.back());
  batches.pop_back();
  return batch;
}

void GradientBatch::recycle(std::unique_ptr<GradientBatch> batch) {
  auto& batches = spare_batches();
  if (batches.empty() && batch->size_bytes() <= kMostSpareBytes) batches.push_back(std::move(batch));
}

size_t GradientBatch::size_bytes() const {
  return hashes_.capacity() * sizeof(KeyHash) + occurrences_.capacity() * sizeof(Occurrence) +
         keys_.capacity() * sizeof(KeyGradient) + table_.capacity() * sizeof(uint32_t) +
         sums_.capacity() * sizeof(float);
}

void GradientBatch::group(std::span<const int64_t> ids, const float* gradients, int dim,
                          std::span<const uint32_t> occurrences) {
  keys_.clear();
  keys_.reserve(ids.size());
  sums_.clear();
  sums_.reserve(ids.size() / 2 * static_cast<size_t>(dim));
  sort_by_shard(ids);
  for (int s = 0; s < kShards; ++s) {
    first_key_[s] = keys_.size();
    if (first_occurrence_[s] == first_occurrence_[s + 1]) continue;
    group_shard({occurrences_.data() + first_occurrence_[s], first_occurrence_[s + 1] - first_occurrence_[s]},
                ids, gradients, dim, occurrences);
  }
  first_key_[kShards] = keys_.size();
}

void GradientBatch::sort_by_shard(std::span<const int64_t> ids) {
  hashes_.resize(ids.size());
  occurrences_.resize(ids.size());
  size_t next[kShards] = {};
  for (size_t i = 0; i < ids.size(); ++i) {
    hashes_[i] = hash_key(ids[i]);
    ++next[shard_of(hashes_[i])];
  }
  size_t start = 0;
  for (int s = 0; s < kShards; ++s) {
    first_occurrence_[s] = start;
    start += next[s];
    next[s] = first_occurrence_[s];
  }
  first_occurrence_[kShards] = start;
  for (size_t i = 0; i < ids.size(); ++i) {
    occurrences_[next[shard_of(hashes_[i])]++] = {hashes_[i], static_cast<uint32_t>(i)};
  }
}

void GradientBatch::group_shard(std::span<const Occurrence> occurrences, std::span<const int64_t> ids,
                                const float* gradients, int dim, std::span<const uint32_t> stand_for) {
  constexpr size_t kGradientsFetchedAhead = 8;  // they are visited out of order
  const size_t size = std::bit_ceil(2 * occurrences.size() + 1);
  table_.assign(size, 0);
  const size_t width = static_cast<size_t>(dim);
  for (size_t i = 0; i < occurrences.size(); ++i) {
    if (i + kGradientsFetchedAhead < occurrences.size()) {
      prefetch_line(gradients + occurrences[i + kGradientsFetchedAhead].position * width);
    }
    const auto [hash, position] = occurrences[i];
    const int64_t key = ids[position];
    const float* gradient = gradients + position * width;
    size_t probe = hash & (size - 1);
    while (table_[probe] != 0 && keys_[table_[probe] - 1].key != key) probe = (probe + 1) & (size - 1);
    if (table_[probe] == 0) {
      keys_.push_back({key, hash, gradient, stand_for.empty() ? 1 : stand_for[position], position});
      table_[probe] = static_cast<uint32_t>(keys_.size());
      continue;
    }
    KeyGradient& grouped = keys_[table_[probe] - 1];
    grouped.occurrences += stand_for.empty() ? 1 : stand_for[position];
    const bool is_callers = grouped.gradient == gradients + grouped.last_position * width;
    grouped.last_position = position;
    if (is_callers) {
      sums_.insert(sums_.end(), grouped.gradient, grouped.gradient + width);
      grouped.gradient = &sums_.back() + 1 - width;
    }
    float* __restrict sum = const_cast<float*>(grouped.gradient);  // ours since it was inserted into sums_
    for (size_t d = 0; d < width; ++d) sum[d] += gradient[d];
  }
}

}  // namespace embstore
