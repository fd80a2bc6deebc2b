// Tests of the admission filters: what they count, admit, store and refuse, compared with std::map, and from
// many threads.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "admission/admission_filter.h"
#include "admission/counting_bloom_filter.h"
#include "testing/tests.h"
#include "threads/mutex.h"

namespace embstore {
namespace {

// Filters as a table has them, one for each shard, with the frequencies of keys that have rows.
class Admission {
 public:
  explicit Admission(const FilterSpec& spec) {
    for (auto& filter : filters_) filter = make_filter(spec);
  }

  AdmissionFilter& filter(int64_t key) const { return *filters_[shard(key)]; }

  // Does what the table does in an update. Returns the frequency of the key's row, or 0 if it has none yet.
  uint64_t apply(int64_t key, uint64_t occurrences, int64_t step) {
    const auto row = frequencies_.find(key);
    if (row != frequencies_.end()) return row->second += occurrences;
    const uint64_t count = filter(key).add(key, hash_key(key), occurrences, step);
    if (count < filter(key).threshold()) return 0;
    filter(key).remove(key, hash_key(key));
    return frequencies_[key] = count;
  }
  uint64_t count(int64_t key) const { return filter(key).count(key, hash_key(key)); }
  int64_t version(int64_t key) const { return filter(key).version(key, hash_key(key)); }
  bool admits(int64_t key) const { return filter(key).admits(key, hash_key(key)); }
  uint64_t waiting_keys() const {
    uint64_t sum = 0;
    for (const auto& filter : filters_) sum += filter->waiting_keys();
    return sum;
  }
  uint64_t size_bytes() const {
    uint64_t sum = 0;
    for (const auto& filter : filters_) sum += filter->size_bytes();
    return sum;
  }
  const auto& filters() const { return filters_; }
  Mutex& mutex(int64_t key) { return mutexes_[shard(key)]; }

 private:
  static size_t shard(int64_t key) { return static_cast<size_t>(shard_of_key(key)); }

  std::array<std::unique_ptr<AdmissionFilter>, kShards> filters_;
  std::array<Mutex, kShards> mutexes_;
  std::map<int64_t, uint64_t> frequencies_;
};

constexpr uint32_t kCounterBits[] = {8, 16, 32, 64};

std::vector<FilterSpec> every_kind(uint64_t filter_freq, uint64_t max_element_size, double p) {
  std::vector<FilterSpec> specs = {CounterFilterSpec{filter_freq}};
  for (const uint32_t bits : kCounterBits) {
    specs.push_back(BloomFilterSpec{filter_freq, max_element_size, p, bits});
  }
  return specs;
}

TEST(a_key_is_admitted_by_the_batch_that_reaches_the_threshold) {
  for (const FilterSpec& spec : every_kind(3, 5, 0.01)) {
    Admission admission(spec);
    check(admission.apply(3, 1, 0) == 0 && admission.apply(3, 1, 1) == 0, "twice is too few");
    check(admission.count(3) == 2 && admission.waiting_keys() == 1, "it waits");
    check(admission.apply(3, 1, 2) == 3, "the third time admits it, with that frequency");
    check(admission.waiting_keys() == 0, "and it waits no longer");
  }
}

TEST(occurrences_count_duplicates_too) {
  for (const FilterSpec& spec : every_kind(3, 100, 1e-6)) {
    Admission admission(spec);
    uint64_t frequency_of_1 = 0, frequency_of_2 = 0;
    for (int64_t step = 0; step < 2; ++step) {  // [1, 1, 1, 2, 2, 3] twice
      frequency_of_1 = admission.apply(1, 3, step);
      frequency_of_2 = admission.apply(2, 2, step);
      check(admission.apply(3, 1, step) == 0, "3 has no row");
    }
    check(frequency_of_1 == 6 && frequency_of_2 == 4 && admission.count(3) == 2,
          "frequencies are 6 and 4, and 3 was seen twice");
    const bool is_exact = std::holds_alternative<CounterFilterSpec>(spec);
    check(admission.version(3) == (is_exact ? 1 : -1), "only exact counts know versions");
    check(admission.version(4) == -1 && admission.count(4) == 0, "an unknown key");
  }
}

void exact_counts_are_a_map(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto filter = make_filter(CounterFilterSpec{1000});
  std::map<int64_t, WaitingKey> model;
  std::vector<int64_t> keys = {0, -1, 1, std::numeric_limits<int64_t>::min(),
                               std::numeric_limits<int64_t>::max()};
  // Keys of one shard, as a filter gets them; several have the last entry as home, so that probes wrap.
  while (keys.size() < 300) {
    const auto key = static_cast<int64_t>(random());
    if (shard_of_key(key) == 5) keys.push_back(key);
  }
  for (int64_t step = 0; step < 20000; ++step) {
    const size_t range = step < 10000 ? keys.size() : 40;  // later, few keys come and go
    const int64_t key = keys[random() % range];
    const KeyHash hash = hash_key(key);
    if (random() % 500 == 0) {
      const int64_t before = step - static_cast<int64_t>(random() % 1000);
      std::erase_if(model, [before](const auto& known) { return known.second.version < before; });
      filter->forget_before(before);
      check(filter->size_bytes() <= sizeof(WaitingKey) * std::max<size_t>(16, model.size() * 8 / 3),
            "it takes no more than if it had never known the others");
    } else if (random() % 5 < 3) {
      const uint64_t occurrences = 1 + random() % 4;
      WaitingKey& expected = model.try_emplace(key, WaitingKey{key, 0, 0}).first->second;
      expected.count += occurrences;
      expected.version = step;
      check(filter->add(key, hash, occurrences, step) == expected.count, "add() returns the count");
    } else {
      model.erase(key);
      filter->remove(key, hash);
    }
    const int64_t other = keys[random() % keys.size()];
    const auto found = model.find(other);
    filter->prefetch(hash_key(other));
    check(filter->count(other, hash_key(other)) == (found == model.end() ? 0 : found->second.count),
          "count() is exact");
    check(filter->version(other, hash_key(other)) == (found == model.end() ? -1 : found->second.version),
          "version() is exact");
    check(filter->waiting_keys() == model.size(), "waiting keys are counted");
  }
  const auto restored = make_filter(CounterFilterSpec{1000});
  size_t visited = 0;
  filter->for_each([&](const WaitingKey& waiting) {
    ++visited;
    const WaitingKey& expected = model.at(waiting.key);
    check(waiting.count == expected.count && waiting.version == expected.version, "for_each() is exact");
    restored->restore(waiting);
  });
  check(visited == model.size() && restored->waiting_keys() == model.size(), "every key is visited once");
  for (const auto& [key, waiting] : model) {
    check(restored->count(key, hash_key(key)) == waiting.count &&
              restored->version(key, hash_key(key)) == waiting.version,
          "restored counts go on");
  }
}

TEST(counts_end_at_the_greatest_number) {
  const auto filter = make_filter(CounterFilterSpec{5});
  filter->add(1, hash_key(1), std::numeric_limits<uint64_t>::max() - 1, 0);
  check(filter->add(1, hash_key(1), 5, 1) == std::numeric_limits<uint64_t>::max(), "no wrap");
}

// With keys that share counters, the counts of one batch don't depend on the order of its keys.
void a_batch_counts_in_any_order(uint64_t seed) {
  std::mt19937_64 random(seed);
  const BloomFilterSpec spec{3, 50, 0.1, 8};
  const auto forward = make_filter(spec, 1), backward = make_filter(spec, 1);
  for (int64_t step = 0; step < 5; ++step) {
    struct OfBatch {
      int64_t key;
      uint64_t occurrences, before;
    };
    std::vector<OfBatch> batch;
    for (int64_t key = 0; key < 400; ++key) {
      if (random() % 2 == 0) batch.push_back({key, 1 + random() % 2, forward->count(key, hash_key(key))});
    }
    const auto count = [step](AdmissionFilter& filter, const OfBatch& of) {
      check(filter.add_to(of.before, of.key, hash_key(of.key), of.occurrences, step) ==
                of.before + of.occurrences,
            "others of the batch don't count");
    };
    std::for_each(batch.begin(), batch.end(), [&](const OfBatch& of) { count(*forward, of); });
    std::for_each(batch.rbegin(), batch.rend(), [&](const OfBatch& of) { count(*backward, of); });
    check(std::ranges::equal(forward->sketch(), backward->sketch()), "counters are the same");
    check(forward->waiting_keys() == backward->waiting_keys(), "and so many keys wait");
    for (const OfBatch& of : batch) {
      check(forward->count(of.key, hash_key(of.key)) >= of.before + of.occurrences, "no count is too low");
    }
  }
}

TEST(admission_does_not_overflow) {
  const auto filter = make_filter(CounterFilterSpec{5});
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  check(filter->admits_after(kMax, 1) && filter->admits_after(kMax, kMax), "after any count");
  check(filter->admits_after(0, 5) && filter->admits_after(4, 1), "at the threshold");
  check(!filter->admits_after(0, 4) && !filter->admits_after(3, 1), "below");
}

TEST(a_restored_key_over_the_threshold_reads_its_initial_value) {
  for (const FilterSpec& spec : every_kind(3, 5, 0.01)) {
    Admission admission(spec);
    admission.filter(8).restore({8, 2, 17});
    check(!admission.admits(8) && admission.count(8) == 2, "below");
    admission.filter(9).restore({9, 7, 17});
    check(admission.admits(9) && !admission.admits(10), "at the threshold");
    check(admission.apply(9, 1, 18) == 8, "its next update gives it a row");
    if (std::holds_alternative<CounterFilterSpec>(spec)) check(!admission.admits(9), "then it's forgotten");
  }
}

void estimates_are_never_below_the_count(uint64_t seed, uint32_t bits) {
  std::mt19937_64 random(seed);
  // There are three times as many keys as the sketch is made for.
  Admission admission(BloomFilterSpec{100, 1000, 0.05, bits});
  std::map<int64_t, uint64_t> model;
  const uint64_t most = bits == 8 ? 255 : std::numeric_limits<uint64_t>::max();
  for (int64_t step = 0; step < 30000; ++step) {
    const auto key = static_cast<int64_t>(hash_key(static_cast<int64_t>(random() % 3000)));
    const uint64_t occurrences = 1 + random() % 3;
    model[key] += occurrences;
    const uint64_t estimate = admission.filter(key).add(key, hash_key(key), occurrences, step);
    check(estimate >= std::min(model[key], most), "add() returns no less than the count");
    check(admission.count(key) == std::min(estimate, most), "count() agrees, as far as counters go");
  }
  for (const auto& [key, count] : model) {
    check(admission.count(key) >= std::min(count, most), "no estimate is below the count");
  }
}

TEST(false_positives_stay_below_what_was_asked_for) {
  constexpr int64_t kKeys = 100000;
  for (const double p : {0.3, 0.1, 0.01, 0.001}) {
    Admission admission(BloomFilterSpec{3, kKeys, p, 8});
    for (int64_t key = 0; key < kKeys; ++key) admission.apply(key, 1, 0);
    int64_t seen = 0;
    constexpr int64_t kProbes = 1000000;
    for (int64_t key = kKeys; key < kKeys + kProbes; ++key) seen += admission.count(key) > 0 ? 1 : 0;
    const double rate = static_cast<double>(seen) / kProbes;
    std::printf("  false positives: asked %g, measured %.5f, %.1f bytes a key\n", p, rate,
                static_cast<double>(admission.size_bytes()) / kKeys);
    check(rate <= p, "too many false positives");
    check(rate > p / 4, "more memory than was asked for");
    const double missed = static_cast<double>(kKeys) - static_cast<double>(admission.waiting_keys());
    check(missed >= 0 && missed <= kKeys * p, "waiting keys are counted as far as the sketch can tell");
  }
}

TEST(sizes_are_those_of_the_literature) {
  const BloomSize size = BloomSize::of(1e6, 0.01);
  check(size.hashes == 7, "k = -log2 p");
  check(size.counters >= 9585059 && size.counters < 9600000, "m = -n ln p / (ln 2)^2, and k's rounding");
}

TEST(a_sketch_goes_on_where_it_was_saved) {
  const BloomFilterSpec spec{3, 1000, 0.01, 16};
  Admission first(spec), second(spec), merged(spec);
  for (int64_t key = 0; key < 500; ++key) {
    if (key % 2 == 0) first.apply(key, 2, 0);
    if (key % 2 == 1) second.apply(key, 1, 0);
  }
  for (const Admission* saved : {&first, &second}) {
    for (size_t shard = 0; shard < merged.filters().size(); ++shard) {
      const AdmissionFilter& from = *saved->filters()[shard];
      const std::vector<std::byte> bytes(from.sketch().begin(), from.sketch().end());
      merged.filters()[shard]->merge_sketch(from.sketch_shape(), bytes, from.waiting_keys());
    }
  }
  check(merged.waiting_keys() == first.waiting_keys() + second.waiting_keys(), "waiting keys add up");
  for (int64_t key = 0; key < 500; ++key) {
    check(merged.count(key) >= (key % 2 == 0 ? 2u : 1u), "counts of both are known");
  }
  Admission exact(CounterFilterSpec{3});
  const AdmissionFilter& from = *first.filters()[0];
  error_of(ErrorKind::kInvalidArgument,
           [&] { exact.filters()[0]->merge_sketch(from.sketch_shape(), from.sketch(), 1); });
  Admission wider(BloomFilterSpec{3, 1000, 0.01, 32});
  const std::string message = error_of(ErrorKind::kInvalidArgument, [&] {
    wider.filters()[0]->merge_sketch(from.sketch_shape(), from.sketch(), 1);
  });
  check(message.find("16 bits") != std::string::npos && message.find("32 bits") != std::string::npos,
        message);
}

TEST(options_that_cannot_work_are_refused) {
  const auto refusal = [](const FilterSpec& spec, const std::string& names) {
    const std::string message = error_of(ErrorKind::kInvalidArgument, [&] { make_filter(spec); });
    check(message.find(names) != std::string::npos, message);
  };
  refusal(BloomFilterSpec{256, 10, 0.1, 8}, "filter_freq must be at most 255");
  refusal(BloomFilterSpec{3, 0, 0.1, 8}, "max_element_size");
  for (const double p : {0.0, 1.0, -1.0, std::nan("")}) {
    refusal(BloomFilterSpec{3, 10, p, 8}, "false_positive_probability");
  }
  refusal(BloomFilterSpec{3, 10, 0.1, 12}, "counter_bits");
  refusal(BloomFilterSpec{3, uint64_t{1} << 50, 0.01, 8}, "max_element_size");
  check(make_filter(BloomFilterSpec{255, 10, 0.1, 8}) != nullptr, "255 fits in 8 bits");
  check(make_filter(NoFilter{}) == nullptr && make_filter(CounterFilterSpec{0}) == nullptr,
        "nothing to filter");
}

TEST(threads_count_in_shards_and_ask_without_locks) {
  const std::vector<FilterSpec> specs = {CounterFilterSpec{1000000}, BloomFilterSpec{1000000, 5000, 0.01, 32},
                                         BloomFilterSpec{1000000, 5000, 0.01, 64}};
  for (const FilterSpec& spec : specs) {
    Admission admission(spec);
    admission.filter(-7).restore({-7, 2000000, 0});
    constexpr int kThreads = 3;
    constexpr uint64_t kRounds = 2000;
    constexpr int64_t kKeys = 50;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (uint64_t round = 0; round < kRounds; ++round) {
          const auto key = static_cast<int64_t>(round) % kKeys;
          {
            const MutexLock lock(admission.mutex(key));
            admission.filter(key).add(key, hash_key(key), 1, 0);
          }
          check(admission.admits(-7) && !admission.admits(key), "admits() needs no mutex");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int64_t key = 0; key < kKeys; ++key) {
      check(admission.count(key) == kThreads * kRounds / kKeys, "no count is lost");
    }
  }
}

TEST(a_reset_filter_is_as_new) {
  for (const FilterSpec& spec : every_kind(3, 100, 1e-6)) {
    const auto filter = make_filter(spec);
    for (int64_t key = 0; key < 50; ++key) filter->add(key, hash_key(key), 2, 7);
    filter->restore({50, 9, 7});
    check(filter->admits(50, hash_key(50)) && filter->waiting_keys() >= 50, "it counted");
    filter->reset();
    check(filter->waiting_keys() == 0, "no key waits");
    size_t visited = 0;
    filter->for_each([&](const WaitingKey&) { ++visited; });
    check(visited == 0, "none is known");
    for (int64_t key = 0; key <= 50; ++key) {
      check(filter->count(key, hash_key(key)) == 0 && filter->version(key, hash_key(key)) == -1 &&
                !filter->admits(key, hash_key(key)),
            "every key is unknown");
      check(filter->add(key, hash_key(key), 1, 0) == 1, "and counts from the start");
    }
  }
}

TEST(a_key_restored_below_the_threshold_is_admitted_no_longer) {
  const auto filter = make_filter(CounterFilterSpec{3});
  filter->restore({1, 4, 0});
  filter->restore({1, 2, 0});
  check(!filter->admits(1, hash_key(1)) && filter->count(1, hash_key(1)) == 2, "what is newer holds");
}

// Replaces a filter, as a restore does, while other threads look up keys.
TEST(a_filter_is_replaced_while_threads_ask_it) {
  for (const FilterSpec& spec : every_kind(3, 100, 0.01)) {
    const auto saved = make_filter(spec);
    for (int64_t key = 0; key < 50; ++key) saved->add(key, hash_key(key), 5, 0);
    const auto filter = make_filter(spec);
    std::atomic<bool> done{false};
    std::atomic<uint64_t> admitted{0};
    std::vector<std::thread> readers;
    for (int t = 0; t < 3; ++t) {
      readers.emplace_back([&] {
        do {
          for (int64_t key = 0; key < 60; ++key) {
            filter->prefetch_admits(hash_key(key + 1));
            if (filter->admits(key, hash_key(key))) ++admitted;
          }
        } while (!done);
      });
    }
    for (int round = 0; round < 300 || admitted == 0; ++round) {
      filter->reset();
      for (int64_t key = 0; key < 60; ++key) {
        filter->prefetch(hash_key(key));
        filter->add(key, hash_key(key), 1, round);
      }
      for (int64_t key = 0; key < 50; ++key) filter->restore({key, 4, round});
      if (filter->sketch_shape() != SketchShape{}) {
        filter->merge_sketch(saved->sketch_shape(), saved->sketch(), saved->waiting_keys());
      }
      for (int64_t key = 0; key < 50; ++key) {
        check(filter->admits(key, hash_key(key)), "what was put back counts at once");
        if (key % 2 == 0) filter->remove(key, hash_key(key));
      }
    }
    done = true;
    for (std::thread& reader : readers) reader.join();
  }
}

TEST(counts_at_random_are_those_of_a_map_and_no_estimate_is_below) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    exact_counts_are_a_map(seed);
    a_batch_counts_in_any_order(seed);
  }
  for (const uint32_t bits : kCounterBits) estimates_are_never_below_the_count(bits, bits);
}

}  // namespace
}  // namespace embstore
