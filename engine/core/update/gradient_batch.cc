#include "update/gradient_batch.h"

#include <algorithm>
#include <bit>

#include "platform/prefetch.h"
#include "update/checked_sums.h"

namespace embstore {

namespace {

constexpr size_t kPlacesFetchedAhead = 16;

thread_local std::unique_ptr<GradientBatch> spare_batch;

}  // namespace

std::unique_ptr<GradientBatch> GradientBatch::take_spare() {
  return spare_batch ? std::move(spare_batch) : std::make_unique<GradientBatch>();
}

void GradientBatch::recycle(std::unique_ptr<GradientBatch> batch, size_t threads) {
  if (!spare_batch && batch->size_bytes() <= kMaxSpareBytes / threads) spare_batch = std::move(batch);
}

size_t GradientBatch::size_bytes() const {
  return occurrences_.capacity() * sizeof(Occurrence) +
         (found_.capacity() + keys_.capacity()) * sizeof(KeyGradient) + table_.capacity() * sizeof(uint32_t) +
         sums_.capacity() * sizeof(float) + shards_.capacity();
}

void GradientBatch::group(const Gradients& gradients, Shards shards) {
  take_occurrences(gradients, shards);
  if (found_.size() <= occurrences_.size()) found_.resize(occurrences_.size() + 1);
  found_[0].gradient = gradients.rows;
  found_end_ = 1;
  is_finite_ = true;
  if (gradients.are_distinct()) {
    take_distinct(gradients);
  } else if (!occurrences_.empty()) {
    sum_equal_keys(gradients);
  }
  sort_by_shard();
}

void GradientBatch::take_occurrences(const Gradients& gradients, Shards shards) {
  const bool takes_all_shards = shards.begin == 0 && shards.end == kShards;
  occurrences_.clear();
  if (takes_all_shards) occurrences_.reserve(gradients.ids.size() + kPlacesFetchedAhead);
  for (size_t i = 0; i < gradients.ids.size(); ++i) {
    if (!takes_all_shards) {
      const int shard = shard_of_key(gradients.ids[i]);
      if (shard < shards.begin || shard >= shards.end) continue;
    }
    if (gradients.leaves_out(i)) continue;
    occurrences_.push_back({hash_key(gradients.ids[i]), static_cast<uint32_t>(i)});
  }
}

void GradientBatch::take_distinct(const Gradients& gradients) {
  for (const auto& [hash, i] : occurrences_)
    found_[found_end_++] = {gradients.ids[i], hash, gradients.row(i), gradients.occurrences_of(i),
                            gradients.last_positions[i]};
}

// Sums in the batch's order, so that gradients are read sequentially. Three prefetch stages run ahead, each
// of which needs the line that the one before has fetched: a place in the table, the key there, and the key's
// sum.
void GradientBatch::sum_equal_keys(const Gradients& gradients) {
  constexpr size_t kCachedBytes = size_t{1} << 20;  // smaller batches fit the cache and need no prefetches
  constexpr size_t kGradientsFetchedAhead = 12;
  constexpr size_t kKeysFetchedAhead = 8;
  constexpr size_t kSumsFetchedAhead = 4;
  const size_t count = occurrences_.size();
  const size_t width = static_cast<size_t>(gradients.dim);
  const bool fetches_ahead = count * (width * sizeof(float) + 2 * sizeof(KeyGradient)) > kCachedBytes;
  const size_t mask = std::bit_ceil(2 * count + 1) - 1;
  table_.assign(mask + 1, 0);
  sums_.clear();
  sums_.reserve(count / 2 * width);
  occurrences_.resize(count + kPlacesFetchedAhead,
                      occurrences_.back());  // so that all stages can read ahead of the last id
  const Occurrence* const ids = occurrences_.data();
  uint32_t* const table = table_.data();
  KeyGradient* const found = found_.data();
  size_t end = 1;
  CheckedSums adder;
  for (size_t i = 0; i < count; ++i) {
    if (fetches_ahead) {
      prefetch_line(table + (ids[i + kPlacesFetchedAhead].hash & mask));
      prefetch_row(gradients.row(ids[i + kGradientsFetchedAhead].position), width);
      prefetch_line(found + table[ids[i + kKeysFetchedAhead].hash & mask]);
      prefetch_row(found[table[ids[i + kSumsFetchedAhead].hash & mask]].gradient, width);
    }
    const auto [hash, position] = ids[i];
    const float* const gradient = gradients.row(position);
    size_t probe = hash & mask;
    while (table[probe] != 0 && found[table[probe]].hash != hash) probe = (probe + 1) & mask;
    if (table[probe] == 0) {
      found[end] = {gradients.ids[position], hash, gradient, gradients.occurrences_of(position), position};
      table[probe] = static_cast<uint32_t>(end++);
      adder.check(gradient, width);
      continue;
    }
    KeyGradient& key = found[table[probe]];
    key.occurrences += gradients.occurrences_of(position);
    const float* const before = key.gradient;
    if (before == gradients.row(key.last_position)) {  // the caller's row, which must not change
      key.gradient = sums_.data() + sums_.size();
      sums_.resize(sums_.size() + width);
    }
    key.last_position = position;
    adder.add(before, gradient, const_cast<float*>(key.gradient),
              width);  // not the caller's: it points into sums_
  }
  found_end_ = end;
  is_finite_ = adder.are_finite();
}

void GradientBatch::sort_by_shard() {
  const std::span found = std::span(found_).first(found_end_).subspan(1);
  size_t next[kShards] = {};
  if (shards_.size() < found.size()) shards_.resize(found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const int shard = shard_of_key(found[i].key);
    shards_[i] = static_cast<uint8_t>(shard);
    ++next[shard];
  }
  first_key_[0] = 0;
  for (int s = 0; s < kShards; ++s) {
    first_key_[s + 1] = first_key_[s] + next[s];
    next[s] = first_key_[s];
  }
  if (keys_.size() < found.size()) keys_.resize(found.size());
  for (size_t i = 0; i < found.size(); ++i) keys_[next[shards_[i]]++] = found[i];
}

}  // namespace embstore
