// Tests of large batches that several threads read, and of failures in parts of them.
#include "lookup/each_key_once.h"
#include "lookup/in_pieces.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "testing/child.h"
#include "testing/tests.h"

namespace embstore {
namespace {

constexpr size_t kDim = 3;
constexpr size_t kIds = 20'000;
constexpr size_t kMinIds = 1024;  // so that several threads get pieces

// Some ids occur several times, and one very often.
std::vector<int64_t> some_ids() {
  std::mt19937_64 random(1);
  std::vector<int64_t> ids(kIds);
  for (int64_t& id : ids) id = random() % 4 == 0 ? 7 : static_cast<int64_t>(random() % kIds);
  return ids;
}

// Every other place of a batch.
std::vector<uint32_t> some_positions() {
  std::vector<uint32_t> positions(kIds);
  for (size_t i = 0; i < kIds; ++i) positions[i] = static_cast<uint32_t>(2 * i + 1);
  return positions;
}

void put_row(const RowsOut& rows, size_t i, int64_t key) {
  for (size_t d = 0; d < kDim; ++d) rows.rows[rows.place(i) * kDim + d] = static_cast<float>(key) + 0.25f;
}

void check_row(const std::vector<float>& rows, size_t i, int64_t key) {
  for (size_t d = 0; d < kDim; ++d) {
    check(rows[i * kDim + d] == static_cast<float>(key) + 0.25f, "a row is another");
  }
}

// Reads each piece of the batch, and in it each key once.
template <class Read>
void read_together(const IdsOfBatch& batch, float* out, const Read& read) {
  read_in_pieces(batch.ids.size(), kMinIds, [&](size_t first, size_t count) {
    read_each_key_once(batch.part(first, count), kDim, out + first * kDim, read);
  });
}

TEST(several_threads_read_the_pieces_of_a_batch_as_one_reads_it) {
  struct Seen {
    uint32_t occurrences;
    uint32_t last_position;
    bool operator==(const Seen&) const = default;
  };
  const std::vector<int64_t> ids = some_ids();
  const std::vector<uint32_t> positions = some_positions();
  for (const bool has_positions : {false, true}) {
    Mutex mutex;
    std::map<int64_t, Seen> seen;
    const auto read = [&](std::span<const int64_t> keys, std::span<const uint32_t> occurrences,
                          std::span<const uint32_t> last_positions, const RowsOut& rows) {
      const MutexLock lock(mutex);
      for (size_t i = 0; i < keys.size(); ++i) {
        put_row(rows, i, keys[i]);
        Seen& key = seen[keys[i]];
        key.occurrences += occurrences[i];
        key.last_position = std::max(key.last_position, last_positions[i]);
      }
    };
    const std::span<const uint32_t> of(positions.data(), has_positions ? kIds : 0);
    std::vector<float> by_one(kIds * kDim);
    read_each_key_once({ids, of}, kDim, by_one.data(), read);
    const auto seen_by_one = std::exchange(seen, {});
    for (size_t i = 0; i < kIds; ++i) check_row(by_one, i, ids[i]);
    std::vector<float> together(kIds * kDim);
    read_together({ids, of}, together.data(), read);
    check(seen == seen_by_one, "threads read other keys, or count them otherwise");
    check(together == by_one, "threads read other rows");
  }
}

TEST(rows_that_some_threads_can_not_read_are_named_and_the_others_are_read) {
  const std::vector<int64_t> ids = some_ids();
  const auto is_damaged = [](int64_t key) { return key % 100 == 7; };
  std::vector<float> rows(kIds * kDim);
  std::set<int64_t> named;
  try {
    read_together({ids, {}}, rows.data(),
                  [&](std::span<const int64_t> keys, std::span<const uint32_t>, std::span<const uint32_t>,
                      const RowsOut& out) {
                    std::vector<int64_t> damaged;
                    for (size_t i = 0; i < keys.size(); ++i) {
                      if (is_damaged(keys[i])) {
                        damaged.push_back(keys[i]);
                      } else {
                        put_row(out, i, keys[i]);
                      }
                    }
                    throw DamagedRowsError(std::move(damaged), "a tooth of time");
                  });
    check(false, "nothing was thrown");
  } catch (const DamagedRowsError& error) {
    named.insert(error.keys().begin(), error.keys().end());
    check(error.first_reason() == "a tooth of time", "the reason is another");
  }
  std::set<int64_t> expected;
  for (size_t i = 0; i < kIds; ++i) {
    if (is_damaged(ids[i])) {
      expected.insert(ids[i]);
    } else {
      check_row(rows, i, ids[i]);
    }
  }
  check(named == expected, "other rows are named");
}

TEST(the_error_of_one_thread_is_thrown_when_all_have_ended) {
  const std::vector<int64_t> ids = some_ids();
  std::vector<float> rows(kIds * kDim);
  std::atomic<int> under_way{0};
  check_throws(ErrorKind::kStorage, "a tooth of time", [&] {
    read_together({ids, {}}, rows.data(),
                  [&](std::span<const int64_t> keys, std::span<const uint32_t>, std::span<const uint32_t>,
                      const RowsOut&) {
                    under_way.fetch_add(1);
                    const bool fails = std::find(keys.begin(), keys.end(), 7) != keys.end();
                    if (!fails) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                    under_way.fetch_sub(1);
                    if (fails) throw Error(ErrorKind::kStorage, "a tooth of time");
                  });
  });
  check(under_way.load() == 0, "a thread goes on");
}

TEST(many_callers_share_the_threads_and_none_waits_for_another) {
  std::vector<std::thread> callers;
  std::atomic<int> calls{0};
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&calls] {
      for (int round = 0; round < 200; ++round) {
        std::atomic<size_t> pieces{0};
        share_work(5, 5, [&pieces](const auto& next) {
          while (next() != 5) pieces.fetch_add(1);
        });
        check(pieces.load() == 5, "a piece was left, or done twice");
        calls.fetch_add(1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  check(calls.load() == 8 * 200, "a call is missing");
}

TEST(a_forked_child_has_threads_of_its_own) {
  share_work(4, 4, [](const auto& next) {
    while (next() != 4) {
    }
  });
  in_child([] {
    alarm(60);
    std::atomic<int> pieces{0};
    share_work(4, 4, [&pieces](const auto& next) {
      while (next() != 4) pieces.fetch_add(1);
    });
    check(pieces.load() == 4, "the child has no threads");
  });
}

}  // namespace
}  // namespace embstore
