#include "update/batch_shares.h"

#include <algorithm>
#include <utility>

namespace embstore {

size_t BatchShares::worthwhile(size_t ids, size_t min_ids) {
  return std::clamp<size_t>(ids / min_ids, 1, std::min<size_t>(HelpingThreads::max_threads(), kShards));
}

BatchShares::BatchShares(const GradientBatch::Gradients& gradients, size_t count) : shares_(count) {
  const auto first_shard = [count](size_t number) { return static_cast<int>(number * kShards / count); };
  for_each([&](size_t number) {
    std::unique_ptr<GradientBatch> batch = GradientBatch::take_spare();
    batch->group(gradients, {first_shard(number), first_shard(number + 1)});
    shares_[number] = std::move(batch);
  });
}

BatchShares::~BatchShares() {
  for (size_t number = 0; number < count(); ++number) recycle(number);
}

size_t BatchShares::key_count() const {
  size_t keys = 0;
  for (const auto& share : shares_) keys += share->keys().size();
  return keys;
}

bool BatchShares::is_finite() const {
  return std::ranges::all_of(shares_, [](const auto& share) { return share->is_finite(); });
}

void BatchShares::recycle(size_t number) {
  if (shares_[number] != nullptr) GradientBatch::recycle(std::move(shares_[number]), count());
}

}  // namespace embstore
