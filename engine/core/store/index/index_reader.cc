#include "store/index/index_reader.h"

namespace embstore {
namespace {

enum class Walk { kFound, kAbsent, kChanged, kMoved };

// A walk over buckets from a key's home, as long as they passed keys on.
template <class Homes>
class Search {
 public:
  Search(const Homes& homes, const typename Homes::Sought& sought, uint32_t max_passed)
      : homes_(homes), sought_(sought), max_passed_(max_passed) {}

  Walk walk() {
    for (;; ++passed_) {
      const Bucket& bucket = at(passed_);
      uint32_t state;
      while (((state = bucket.guard.state.load(std::memory_order_acquire)) & RowGuard::kWriting) != 0)
        __builtin_ia32_pause();
      if ((state & Bucket::kMoved) != 0) return Walk::kMoved;
      sum_ += state;
      if (passed_ == 0) home_ = {&bucket, state, RowRef()};
      if (const int entry = homes_.find(bucket, passed_, sought_); entry >= 0) {
        found_ = {&bucket, state, bucket.ref(entry)};
        // An empty reference means that the key left, perhaps only to another bucket, between these two
        // reads.
        return found_.ref ? Walk::kFound : Walk::kChanged;
      }
      if ((state & Bucket::kOverflowed) == 0 || passed_ == max_passed_) return Walk::kAbsent;
    }
  }

  const IndexHit& found() const { return found_; }
  // For an absent key: an insert of the key changes its home.
  const IndexHit& home() const { return home_; }
  // True if every bucket of the walk is still the same: the sum of their states is, and a change only ever
  // adds to a state.
  bool unchanged() const {
    uint32_t left = sum_;
    for (uint32_t passed = 0; passed <= passed_ && home_.bucket != nullptr; ++passed)
      left -= at(passed).guard.state_after_reads();
    return left == 0;
  }

 private:
  const Bucket& at(uint32_t passed) const {
    const uint64_t i = uint64_t{sought_.home} + passed;
    return homes_.first[i < homes_.count ? i : i - homes_.count];
  }

  const Homes homes_;
  const typename Homes::Sought sought_;
  const uint32_t max_passed_;
  uint32_t passed_ = 0;
  uint32_t sum_ = 0;
  IndexHit home_{};
  IndexHit found_{};
};

}  // namespace

IndexHit IndexReader::find_further(const Home& home, int64_t key) {
  prefetch_line(home.bucket + 1);  // the key is nearly always there
  const int shard = shard_of_key(key);
  CompactHomes compact_homes = compact_[static_cast<size_t>(shard)];
  WideHomes wide_homes = wide_[static_cast<size_t>(shard)];
  for (;;) {
    const bool is_compact = compact_homes.count != 0;
    Search compact(compact_homes, compact_homes.seek_any(key),
                   compact_homes.fits(key) ? compact_homes.max_passed() : 0);
    Search wide(wide_homes, wide_homes.seek(key), wide_homes.max_passed());
    Walk walked = is_compact ? compact.walk() : wide.walk();
    if (walked == Walk::kFound) return is_compact ? compact.found() : wide.found();
    const bool may_be_stashed = is_compact && (compact.home().state & Bucket::kHasStashed) != 0;
    if (walked == Walk::kAbsent && may_be_stashed) {
      walked = wide.walk();
      if (walked == Walk::kFound) return wide.found();
    }
    // A key that is inserted during the search may be missed: the look-up then came first. A key that an
    // erasure moved back to a bucket behind the search must not be missed.
    if (walked == Walk::kAbsent && compact.unchanged() && wide.unchanged()) {
      return is_compact ? compact.home() : wide.home();
    }
    if (walked != Walk::kMoved) continue;
    // The array was replaced since the batch began. A reader that searches wide buckets alone doesn't switch
    // to compact ones.
    const BucketArray& array = index_.shard(shard).buckets();
    compact_homes = array.compact().homes();
    wide_homes = array.wide().homes();
    if (has_compact_ || !array.is_compact()) look_at(shard, array);
  }
}

}  // namespace embstore
