#include "store/index/index_reader.h"

namespace embstore {

IndexHit IndexReader::find_further(int64_t key) {
  const KeyHash hash = hash_key(key);
  for (;;) {
    const ShardView& view = view_of_hash(hash);
    const uint64_t home = home_bucket(hash, view.count);
    uint64_t i = home;
    uint32_t passed = 0;  // the sum of the states of the buckets from `home` to `i`
    for (;;) {
      const Bucket& bucket = view.buckets[i];
      const uint32_t state = bucket.guard.state.load(std::memory_order_acquire);
      if ((state & (RowGuard::kWriting | Bucket::kMoved)) != 0) [[unlikely]] {
        if ((state & Bucket::kMoved) != 0) break;
        __builtin_ia32_pause();
        continue;
      }
      const int entry = bucket.find(key);
      if (entry >= 0) {
        if (const RowRef ref = bucket.ref(entry)) return {&bucket, state, ref};
        continue;  // it went, perhaps only to another bucket, between these two looks at it
      }
      if ((state & Bucket::kOverflowed) == 0) {
        // A key that is inserted while we look may be missed: the look-up came before it. One that an
        // erasure moved back behind us may not.
        if (i == home || unchanged(view, home, i, passed)) return {&bucket, state, RowRef()};
        i = home;
        passed = 0;
        continue;
      }
      passed += state;
      if (++i == view.count) i = 0;
      if (i == home) passed = 0;
    }
    // The array was replaced since the batch began.
    const int shard = shard_of(hash);
    views_[static_cast<size_t>(shard)] = view_of(shard);
  }
}

}  // namespace embstore
