#include "admission/counting_bloom_filter.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "errors/error.h"
#include "platform/prefetch.h"

namespace embstore {
namespace {

constexpr uint32_t kMaxHashes = 32;
constexpr uint64_t kMaxCounters = uint64_t{1} << 32;
constexpr uint64_t kSalt = 0x9e3779b97f4a7c15;  // 2^64 / the golden ratio

// The counters of a key, by double hashing with a quadratic term (P. Dillinger and P. Manolios, "Bloom
// Filters in Probabilistic Verification", FMCAD 2004): as good as independent hashes.
class Probes {
 public:
  Probes(KeyHash hash, uint64_t counters)
      : at_(static_cast<uint32_t>(hash)),
        // A second hash that shares no bits with the first, nor with those that chose the shard. Without
        // the salt, key 0, whose hash is 0, would get one counter only.
        step_(static_cast<uint32_t>(hash_key(static_cast<int64_t>(hash ^ kSalt)) >> 32)),
        counters_(counters) {}

  size_t next() {
    const size_t counter = at_ * counters_ >> 32;
    at_ += step_;
    step_ += ++round_;
    return counter;
  }

 private:
  uint32_t at_;
  uint32_t step_;
  uint32_t round_ = 0;
  uint64_t counters_;
};

// Zeroed memory that the system backs when it is touched, by pages of the usual size: keys touch single
// counters all over it, so a sketch that is made for many more keys than come would fill huge pages at
// once.
template <class Counter>
class Counters {
 public:
  explicit Counters(size_t count)
      : count_(count), data_(static_cast<Counter*>(std::calloc(count, sizeof(Counter)))) {
    if (data_ == nullptr) {
      throw Error(ErrorKind::kInvalidArgument,
                  "max_element_size and false_positive_probability ask for " +
                      std::to_string(count * sizeof(Counter)) +
                      " bytes a shard, which this machine doesn't have; lower max_element_size or take "
                      "a smaller counter_type");
    }
  }

  size_t size() const { return count_; }
  Counter* data() const { return data_.get(); }
  Counter& operator[](size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(Counter* counters) const { std::free(counters); }
  };

  size_t count_;
  std::unique_ptr<Counter, Free> data_;
};

template <class Counter>
class CountingBloomFilter final : public AdmissionFilter {
 public:
  CountingBloomFilter(uint64_t filter_freq, const BloomSize& size)
      : AdmissionFilter(filter_freq), hashes_(size.hashes), counters_(size.counters) {}

  void prefetch(KeyHash hash) const override {
    Probes probes(hash, counters_.size());
    for (uint32_t i = 0; i < hashes_; ++i) prefetch_line(&counters_[probes.next()]);
  }

  uint64_t add_to(uint64_t before, int64_t, KeyHash hash, uint64_t occurrences, int64_t) override {
    uint64_t after;
    if (__builtin_add_overflow(before, occurrences, &after)) after = kMaxCount;
    raise(hash, before, after);
    return after;
  }
  void prefetch_admits(KeyHash hash) const override { prefetch(hash); }
  void remove(int64_t, KeyHash) override {}
  void reset() override {
    // Reading alone takes no memory for a page that was never written.
    for (size_t i = 0; i < counters_.size(); ++i) {
      if (load(i) != 0) store(i, 0);
    }
    waiting_ = 0;
  }

  uint64_t count(int64_t, KeyHash hash) const override { return estimate(hash); }
  int64_t version(int64_t, KeyHash) const override { return kNoVersion; }
  bool admits(int64_t, KeyHash hash) const override { return estimate(hash) >= threshold(); }
  uint64_t waiting_keys() const override { return waiting_; }
  uint64_t size_bytes() const override { return sketch().size(); }

  void for_each(const std::function<void(const WaitingKey&)>&) const override {}
  void restore(const WaitingKey& waiting) override {
    const KeyHash hash = hash_key(waiting.key);
    raise(hash, estimate(hash), waiting.count);
  }

  SketchShape sketch_shape() const override {
    return {counters_.size(), hashes_, static_cast<uint32_t>(8 * sizeof(Counter))};
  }
  std::span<const std::byte> sketch() const override {
    return std::as_bytes(std::span(counters_.data(), counters_.size()));
  }
  void merge_sketch(const SketchShape& shape, std::span<const std::byte> other, uint64_t waiting) override {
    if (shape != sketch_shape() || other.size() != sketch().size()) {
      throw Error(ErrorKind::kInvalidArgument,
                  "filter_option: the counts of waiting keys were kept by a filter of " + described(shape) +
                      ", which one of " + described(sketch_shape()) +
                      " can't go on with; use the same CBFFilter options");
    }
    for (size_t i = 0; i < counters_.size(); ++i) {
      Counter theirs;
      std::memcpy(&theirs, other.data() + i * sizeof(Counter), sizeof(theirs));
      if (theirs > load(i)) store(i, theirs);
    }
    waiting_ += waiting;
  }

 private:
  static constexpr uint64_t kMaxCount = std::numeric_limits<uint64_t>::max();

  static std::string described(const SketchShape& shape) {
    return shape == SketchShape{}
               ? "keys"
               : std::to_string(shape.counters) + " counters of " + std::to_string(shape.counter_bits) +
                     " bits, " + std::to_string(shape.hashes) + " a key";
  }

  // Counters are read without the mutex.
  Counter load(size_t i) const { return std::atomic_ref(counters_[i]).load(std::memory_order_relaxed); }
  void store(size_t i, Counter count) {
    std::atomic_ref(counters_[i]).store(count, std::memory_order_relaxed);
  }

  uint64_t estimate(KeyHash hash) const {
    Probes probes(hash, counters_.size());
    Counter least = std::numeric_limits<Counter>::max();
    for (uint32_t i = 0; i < hashes_; ++i) least = std::min(least, load(probes.next()));
    return least;
  }

  // Makes the estimate of a key at least `count`, or the highest that a counter holds.
  void raise(KeyHash hash, uint64_t before, uint64_t count) {
    const auto wanted = static_cast<Counter>(std::min<uint64_t>(count, std::numeric_limits<Counter>::max()));
    Probes probes(hash, counters_.size());
    for (uint32_t i = 0; i < hashes_; ++i) {
      const size_t counter = probes.next();
      if (load(counter) < wanted) store(counter, wanted);
    }
    const auto waits = [this](uint64_t n) { return n > 0 && n < threshold(); };
    if (!waits(before) && waits(count)) ++waiting_;
    if (waits(before) && !waits(count) && waiting_ > 0) --waiting_;
  }

  const uint32_t hashes_;
  const Counters<Counter> counters_;
  uint64_t waiting_ = 0;  // as far as the sketch can tell
};

template <class Counter>
std::unique_ptr<AdmissionFilter> make(const BloomFilterSpec& spec, const BloomSize& size) {
  if (spec.filter_freq > std::numeric_limits<Counter>::max()) {
    throw Error(ErrorKind::kInvalidArgument,
                "filter_freq must be at most " + std::to_string(std::numeric_limits<Counter>::max()) +
                    ", which is where counters of " + std::to_string(spec.counter_bits) + " bits end, got " +
                    std::to_string(spec.filter_freq) + "; lower it or take a larger counter_type");
  }
  return std::make_unique<CountingBloomFilter<Counter>>(spec.filter_freq, size);
}

}  // namespace

BloomSize BloomSize::of(double keys, double false_positive_probability) {
  const double exact = -std::log2(false_positive_probability);
  const double hashes = std::clamp(std::round(exact), 1.0, double{kMaxHashes});
  const double counters = -hashes * keys / std::log1p(-std::pow(false_positive_probability, 1 / hashes));
  if (!(counters < static_cast<double>(kMaxCounters))) {
    throw Error(ErrorKind::kInvalidArgument,
                "max_element_size and false_positive_probability ask for too many counters; take a "
                "smaller size or a higher probability");
  }
  return {static_cast<uint64_t>(std::ceil(counters)), static_cast<uint32_t>(hashes)};
}

std::unique_ptr<AdmissionFilter> make_counting_bloom_filter(const BloomFilterSpec& spec, int shards) {
  const double p = spec.false_positive_probability;
  if (spec.max_element_size == 0) {
    throw Error(ErrorKind::kInvalidArgument, "max_element_size must be at least 1, got 0");
  }
  if (!(p > 0 && p < 1)) {
    throw Error(ErrorKind::kInvalidArgument,
                "false_positive_probability must lie between 0 and 1, got " + std::to_string(p));
  }
  // Keys fall on the shards at random. The fullest shard gets fewer than six standard deviations above
  // the mean, and six more, which matter in tables of few keys.
  const auto keys = static_cast<double>(spec.max_element_size);
  const double mean = keys / shards;
  const BloomSize size = BloomSize::of(std::min(keys, mean + 6 * std::sqrt(mean) + 6), p);
  switch (spec.counter_bits) {
    case 8: return make<uint8_t>(spec, size);
    case 16: return make<uint16_t>(spec, size);
    case 32: return make<uint32_t>(spec, size);
    case 64: return make<uint64_t>(spec, size);
    default:
      throw Error(ErrorKind::kInvalidArgument,
                  "counter_bits must be 8, 16, 32 or 64, got " + std::to_string(spec.counter_bits));
  }
}

}  // namespace embstore
