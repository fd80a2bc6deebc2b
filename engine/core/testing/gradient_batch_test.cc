// Tests the sums of equal ids' gradients, and the detection of NaN and infinite gradients.
#include "update/gradient_batch.h"

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "testing/tests.h"

namespace embstore {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// `count` ids with few distinct keys, and gradients whose sums depend on their order.
struct Batch {
  Batch(size_t count, int dim_of_rows, uint32_t seed) : dim(dim_of_rows) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < count; ++i)
      ids.push_back(static_cast<int64_t>(random() % (count / 2 + 1) % (random() % count + 1)));
    for (size_t i = 0; i < count * static_cast<size_t>(dim); ++i)
      gradients.push_back(normal(random) * std::exp(4 * normal(random)));
  }
  GradientBatch::Gradients all() const { return {ids, gradients.data(), dim}; }

  int dim;
  std::vector<int64_t> ids;
  std::vector<float> gradients;
};

struct Expected {
  std::vector<float> sum;
  uint64_t occurrences = 0;
  size_t first_position = 0;
  size_t last_position = 0;
};

std::map<int64_t, Expected> summed_one_by_one(const Batch& batch) {
  const auto dim = static_cast<size_t>(batch.dim);
  std::map<int64_t, Expected> keys;
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    const float* const gradient = batch.gradients.data() + i * dim;
    Expected& key = keys[batch.ids[i]];
    if (key.occurrences++ == 0) {
      key.sum.assign(gradient, gradient + dim);
      key.first_position = i;
    } else {
      for (size_t d = 0; d < dim; ++d) key.sum[d] += gradient[d];
    }
    key.last_position = i;
  }
  return keys;
}

void check_shard(const GradientBatch& grouped, int shard, const Batch& batch,
                 std::map<int64_t, Expected>& expected) {
  size_t before = 0;
  for (const KeyGradient& key : grouped.shard(shard)) {
    const Expected& of = expected.at(key.key);
    check(key.hash == hash_key(key.key) && shard_of_key(key.key) == shard, "a key is in another's shard");
    check(key.occurrences == of.occurrences && key.last_position == of.last_position,
          "occurrences are miscounted");
    for (size_t d = 0; d < static_cast<size_t>(batch.dim); ++d) {
      check(std::bit_cast<uint32_t>(key.gradient[d]) == std::bit_cast<uint32_t>(of.sum[d]),
            "a sum has other bits");
    }
    check(of.first_position >= before, "keys aren't in the order of their first occurrence");
    before = of.first_position;
    expected.erase(key.key);
  }
}

TEST(each_key_gets_the_sum_of_its_gradients_in_the_batchs_order_whichever_call_takes_its_shard) {
  GradientBatch grouped;  // its buffers are reused, for larger and smaller batches
  for (const int dim : {1, 3, 4, 5, 8, 16, 17, 20, 64, 67}) {
    for (const size_t count : {1u, 2u, 16u, 17u, 40u, 3000u, 300u}) {
      const Batch batch(count, dim, static_cast<uint32_t>(count));
      auto left = summed_one_by_one(batch);
      for (const auto& [begin, end] : {std::pair{0, 5}, std::pair{5, kShards}}) {
        grouped.group(batch.all(), {begin, end});
        for (int s = 0; s < kShards; ++s) {
          check(s >= begin ? s < end || grouped.shard(s).empty() : grouped.shard(s).empty(),
                "a shard that nobody asked for has keys");
          check_shard(grouped, s, batch, left);
        }
      }
      check(left.empty(), "a key is missing");
      left = summed_one_by_one(batch);
      grouped.group(batch.ids, batch.gradients.data(), dim);
      check(grouped.keys().size() == left.size(), "a key is missing, or there twice");
      for (int s = 0; s < kShards; ++s) check_shard(grouped, s, batch, left);
    }
  }
}

TEST(sums_of_a_batch_that_is_larger_than_the_cache_are_the_same) {
  GradientBatch grouped;
  const Batch batch(9000, 64, 5);
  auto left = summed_one_by_one(batch);
  for (const auto& [begin, end] : {std::pair{0, 3}, std::pair{3, kShards}}) {
    grouped.group(batch.all(), {begin, end});
    for (int s = begin; s < end; ++s) check_shard(grouped, s, batch, left);
  }
  check(left.empty(), "a key is missing");
  left = summed_one_by_one(batch);
  grouped.group(batch.ids, batch.gradients.data(), batch.dim);
  for (int s = 0; s < kShards; ++s) check_shard(grouped, s, batch, left);
  check(left.empty(), "a key is missing");
}

TEST(one_value_that_is_not_finite_is_noticed_wherever_it_is) {
  GradientBatch grouped;
  for (const int dim : {1, 3, 4, 7, 16, 21, 64}) {
    Batch batch(50, dim, 7);
    for (float& value : batch.gradients) {
      for (const float bad :
           {kInfinity, -kInfinity, std::nanf(""), std::numeric_limits<float>::signaling_NaN()}) {
        const float before = value;
        value = bad;
        grouped.group(batch.all(), {});
        check(!grouped.is_finite(), "a value that isn't finite goes unnoticed");
        value = before;
      }
    }
    grouped.group(batch.all(), {});
    check(grouped.is_finite(), "finite values are refused");
  }
}

TEST(ids_share_their_bags_gradient_and_ids_that_are_left_out_have_none) {
  GradientBatch grouped;
  for (const std::optional<int64_t> left_out : {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    const Batch of_bags(400, 5, 3);
    Batch of_ids{0, 5, 0};
    std::vector<int64_t> ids;
    std::vector<int64_t> offsets;
    std::mt19937 random(8);
    for (size_t bag = 0; bag < of_bags.ids.size(); ++bag) {
      offsets.push_back(static_cast<int64_t>(ids.size()));
      for (size_t i = random() % 5; i > 0; --i) {
        ids.push_back(static_cast<int64_t>(random() % 90));
        if (ids.back() == left_out) continue;
        of_ids.ids.push_back(ids.back());
        const auto gradient = of_bags.gradients.begin() + static_cast<ptrdiff_t>(bag) * 5;
        of_ids.gradients.insert(of_ids.gradients.end(), gradient, gradient + 5);
      }
    }
    const PageVector<uint32_t> numbers = Bags{offsets, left_out}.numbers(ids);
    const auto wanted = summed_one_by_one(of_ids);
    for (const auto& [begin, end] : {std::pair{0, kShards}, std::pair{0, 7}, std::pair{7, kShards}}) {
      grouped.group({.ids = ids, .rows = of_bags.gradients.data(), .dim = 5, .bags = numbers}, {begin, end});
      for (const KeyGradient& key : grouped.keys()) {
        const Expected& of = wanted.at(key.key);
        check(key.occurrences == of.occurrences, "occurrences are miscounted");
        check(std::equal(of.sum.begin(), of.sum.end(), key.gradient), "a sum has other bits");
      }
      check(begin != 0 || end != kShards || grouped.keys().size() == wanted.size(), "a key is missing");
    }
  }
}

TEST(infinities_of_one_key_that_cancel_out_are_noticed) {
  const std::vector<int64_t> ids{5, 5, 5};
  const std::vector<float> gradients{kInfinity, -kInfinity, 1};
  GradientBatch grouped;
  grouped.group(ids, gradients.data(), 1);
  check(!grouped.is_finite(), "infinities go unnoticed");
}

TEST(finite_gradients_are_finite_whatever_their_sum) {
  const float most = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  const std::vector<int64_t> ids{5, 5, 6, 7};
  const std::vector<float> gradients{most, most, -least, -0.0f};
  GradientBatch grouped;
  grouped.group(ids, gradients.data(), 1);
  check(grouped.is_finite(), "finite values are refused");
}

TEST(distinct_ids_keep_their_rows_and_what_is_known_of_them) {
  const std::vector<int64_t> ids{9, 4, -3};
  const std::vector<float> rows{1, 2, 3};
  const std::vector<uint32_t> occurrences{2, 1, 7};
  const std::vector<uint32_t> last_positions{8, 0, 9};
  GradientBatch grouped;
  grouped.group({ids, rows.data(), 1, occurrences, last_positions}, {});
  check(grouped.keys().size() == ids.size(), "a key is missing");
  for (const KeyGradient& key : grouped.keys()) {
    const auto i = static_cast<size_t>(key.gradient - rows.data());
    check(key.key == ids[i] && key.occurrences == occurrences[i] && key.last_position == last_positions[i],
          "a key has another's row");
  }
}

}  // namespace
}  // namespace embstore
