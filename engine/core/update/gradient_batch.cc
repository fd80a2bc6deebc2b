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

void GradientBatch::recycle(std::unique_ptr<GradientBatch> batch, size_t threads) {
  auto& batches = spare_batches();
  if (batches.empty() && batch->size_bytes() <= kMostSpareBytes / threads)
    batches.push_back(std::move(batch));
}

size_t GradientBatch::size_bytes() const {
  return occurrences_.capacity() * sizeof(Occurrence) + keys_.capacity() * sizeof(KeyGradient) +
         table_.capacity() * sizeof(uint32_t) + sums_.capacity() * sizeof(float);
}

void GradientBatch::group(const Gradients& of, Shards shards) {
  sort_by_shard(of.ids, shards);
  const size_t taken = first_occurrence_[kShards];
  keys_.clear();
  keys_.reserve(taken);
  sums_.clear();
  if (!of.are_distinct()) sums_.reserve(taken / 2 * static_cast<size_t>(of.dim));
  for (int s = 0; s < kShards; ++s) {
    first_key_[s] = keys_.size();
    const std::span occurrences(occurrences_.data() + first_occurrence_[s],
                                first_occurrence_[s + 1] - first_occurrence_[s]);
    if (of.are_distinct()) {
      for (const auto& [hash, i] : occurrences) {
        keys_.push_back({of.ids[i], hash, of.row(i), of.occurrences_of(i), of.last_positions[i]});
      }
    } else if (!occurrences.empty()) {
      group_shard(occurrences, of);
    }
  }
  first_key_[kShards] = keys_.size();
}

void GradientBatch::sort_by_shard(std::span<const int64_t> ids, Shards of) {
  size_t next[kShards] = {};
  for (const int64_t id : ids) ++next[shard_of(hash_key(id))];
  size_t start = 0;
  for (int s = 0; s < kShards; ++s) {
    first_occurrence_[s] = start;
    if (s >= of.begin && s < of.end) start += next[s];
    next[s] = first_occurrence_[s];
  }
  first_occurrence_[kShards] = start;
  occurrences_.resize(start);
  const bool are_all = of.begin == 0 && of.end == kShards;
  for (size_t i = 0; i < ids.size(); ++i) {
    const KeyHash hash = hash_key(ids[i]);
    const int shard = shard_of(hash);
    if (!are_all && (shard < of.begin || shard >= of.end)) continue;
    occurrences_[next[shard]++] = {hash, static_cast<uint32_t>(i)};
  }
}

void GradientBatch::group_shard(std::span<const Occurrence> occurrences, const Gradients& of) {
  constexpr size_t kGradientsFetchedAhead = 8;  // they are visited out of order
  const size_t size = std::bit_ceil(2 * occurrences.size() + 1);
  table_.assign(size, 0);
  const size_t width = static_cast<size_t>(of.dim);
  for (size_t i = 0; i < occurrences.size(); ++i) {
    if (i + kGradientsFetchedAhead < occurrences.size()) {
      prefetch_line(of.row(occurrences[i + kGradientsFetchedAhead].position));
    }
    const auto [hash, position] = occurrences[i];
    const int64_t key = of.ids[position];
    const float* const gradient = of.row(position);
    size_t probe = hash & (size - 1);
    while (table_[probe] != 0 && keys_[table_[probe] - 1].key != key) probe = (probe + 1) & (size - 1);
    if (table_[probe] == 0) {
      keys_.push_back({key, hash, gradient, of.occurrences_of(position), position});
      table_[probe] = static_cast<uint32_t>(keys_.size());
      continue;
    }
    KeyGradient& grouped = keys_[table_[probe] - 1];
    grouped.occurrences += of.occurrences_of(position);
    const bool is_callers = grouped.gradient == of.row(grouped.last_position);
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
