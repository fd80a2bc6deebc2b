#include "store/index/index.h"

#include <algorithm>
#include <utility>

namespace embstore {
namespace {

constexpr uint32_t kSmallestArray = 8;  // buckets
// Above this load, probes that leave their home bucket cost more than the memory is worth.
constexpr double kMaxLoad = 0.75;

uint64_t room(uint64_t buckets) {
  return static_cast<uint64_t>(kMaxLoad * Bucket::kEntries * static_cast<double>(buckets));
}

}  // namespace

IndexShard::IndexShard(Epochs& epochs)
    : epochs_(epochs), array_(std::make_shared<BucketArray>(kSmallestArray)), buckets_(array_.get()) {}

Entry IndexShard::entry(KeyHash hash, int64_t key) const {
  const BucketArray& buckets = *array_;
  const uint32_t home = home_bucket(hash, buckets.count());
  uint32_t i = home;
  do {
    Bucket& bucket = buckets[i];
    const int position = bucket.find(key);
    if (position >= 0) return {&bucket, position};
    if ((bucket.guard.state.load(std::memory_order_relaxed) & Bucket::kOverflowed) == 0) break;
    i = buckets.next(i);
  } while (i != home);
  return {};
}

void IndexShard::reserve(uint64_t count) {
  uint64_t buckets = array_->count();
  // By a third: between 17 and 23 bytes an entry, where doubling would take up to 34.
  while (room(buckets) < entries_ + count) buckets += buckets / 3 + 1;
  if (buckets != array_->count()) grow(static_cast<uint32_t>(buckets));
}

Entry IndexShard::insert(KeyHash hash, int64_t key, RowRef ref) {
  ++entries_;
  return place(*array_, hash, key, ref);
}

Entry IndexShard::place(const BucketArray& buckets, KeyHash hash, int64_t key, RowRef ref) {
  for (uint32_t i = home_bucket(hash, buckets.count());; i = buckets.next(i)) {
    Bucket& bucket = buckets[i];
    const int position = bucket.find_empty();
    if (position < 0 && (bucket.guard.state.load(std::memory_order_relaxed) & Bucket::kOverflowed) != 0) {
      continue;
    }
    RowWrite write(bucket.guard);
    if (position < 0) {
      write.set_flag(Bucket::kOverflowed);
      continue;
    }
    bucket.keys[position].store(key, std::memory_order_relaxed);
    bucket.refs[position].store(ref.raw(), std::memory_order_relaxed);
    return {&bucket, position};
  }
}

void IndexShard::grow(uint32_t count) {
  auto grown = std::make_shared<BucketArray>(count);
  for_each([&grown](int64_t key, RowRef ref) { place(*grown, hash_key(key), key, ref); });
  const std::shared_ptr<BucketArray> old = std::exchange(array_, std::move(grown));
  buckets_.store(array_.get());
  // A reader that still holds the old array must not accept a row that is written under the new one.
  for (uint32_t i = 0; i < old->count(); ++i) {
    (*old)[i].guard.state.fetch_or(Bucket::kMoved, std::memory_order_acq_rel);
  }
  epochs_.retire(old);
}

Index::Index(Epochs& epochs) {
  std::generate(shards_.begin(), shards_.end(), [&epochs] { return std::make_unique<IndexShard>(epochs); });
}

}  // namespace embstore
