// Tests which rows are prefetched ahead, and until when.
#include "movement/prefetched_rows.h"

#include <map>
#include <set>
#include <vector>

#include "movement/training_turns.h"
#include "testing/tests.h"

namespace embstore {
namespace {

using Where = PrefetchedRows::Where;
using Keys = std::vector<int64_t>;

// Even keys are up, odd keys below, and negative ones nowhere.
Where where_is(int64_t key) {
  if (key < 0) return Where::kNowhere;
  return key % 2 == 0 ? Where::kUp : Where::kBelow;
}

Keys release(PrefetchedRows& prefetched, uint64_t last_over) {
  Keys keys;
  prefetched.release(last_over, [&keys](int64_t key) { keys.push_back(key); });
  return keys;
}

TEST(rows_that_are_below_come_up_once_in_the_order_of_turns) {
  PrefetchedRows prefetched(100);
  check(!prefetched.any_below() && prefetched.take_below(10).empty(), "nothing is prefetched yet");
  prefetched.add(2, Keys{9, 3, 4}, where_is);
  prefetched.add(1, Keys{5, 7, 5, -1, 3, 6}, where_is);
  check(prefetched.any_below(), "rows are to come up");
  check(prefetched.take_below(1) == Keys{5} && prefetched.take_below(5) == Keys{7},
        "the first batch's come first");
  check(prefetched.take_below(5) == Keys{9, 3}, "the second batch's come next");
  check(!prefetched.any_below() && prefetched.take_below(5).empty(), "each comes once");
  for (const int64_t key : {3, 4, 5, 6, 7, 9}) check(prefetched.contains(key), "a row may leave");
  check(!prefetched.contains(-1) && !prefetched.contains(8), "rows are prefetched that nobody asked for");
}

TEST(a_row_stays_prefetched_until_the_last_batch_that_needs_it_is_trained) {
  PrefetchedRows prefetched(100);
  prefetched.add(1, Keys{1, 2}, where_is);
  prefetched.add(2, Keys{2, 3}, where_is);
  prefetched.add(3, Keys{3, 1}, where_is);
  check(release(prefetched, 0).empty(), "no turn is over");
  check(release(prefetched, 1).empty() && prefetched.contains(1) && prefetched.contains(2),
        "later batches need them");
  check(release(prefetched, 2) == Keys{2} && !prefetched.contains(2), "no batch needs it any more");
  check(release(prefetched, 3).size() == 2 && !prefetched.any(), "nothing is prefetched any more");
}

TEST(no_more_rows_are_prefetched_than_fit_and_those_that_are_up_come_first) {
  PrefetchedRows prefetched(3);
  prefetched.add(1, Keys{1, 3, 5, 2, 4}, where_is);
  check(prefetched.contains(2) && prefetched.contains(4) && prefetched.contains(1),
        "what is up, and what fits");
  check(!prefetched.contains(3) && !prefetched.contains(5), "more is prefetched than fits");
  prefetched.add(2, Keys{1, 7, 6}, where_is);
  check(prefetched.contains(1) && !prefetched.contains(6) && !prefetched.contains(7),
        "the next batch takes no room away");
  check(prefetched.take_below(9) == Keys{1}, "what doesn't fit doesn't come up");
  check(release(prefetched, 1).size() == 2 && prefetched.contains(1), "the next batch needs one of them");
  prefetched.add(3, Keys{7, 9, 11}, where_is);
  check(prefetched.contains(7) && prefetched.contains(9) && !prefetched.contains(11), "there is room again");
}

TEST(batches_that_never_come_are_let_go_of) {
  PrefetchedRows prefetched(1000);
  for (int64_t turn = 1; turn <= 40; ++turn) {
    prefetched.add(static_cast<uint64_t>(turn), Keys{turn}, where_is);
    release(prefetched, 0);
    const int64_t oldest = turn - static_cast<int64_t>(PrefetchedRows::kMaxBatches) + 1;
    check(prefetched.contains(turn) && (oldest < 1 || prefetched.contains(oldest)),
          "a batch is let go of early");
    check(oldest < 2 || !prefetched.contains(oldest - 1), "a batch is never let go of");
  }
}

TEST(a_batch_has_the_turn_of_the_apply_that_will_train_it) {
  TrainingTurns turns;
  check(turns.next() == 1 && turns.next() == 2, "batches come one after the other");
  turns.note_looked_up();
  check(turns.next() == 3, "the one that is being trained was asked for");
  turns.note_apply_began();
  check(turns.last_over() == 1 && turns.next() == 4, "one is over");
  for (int i = 0; i < 3; ++i) turns.note_apply_began();
  check(turns.next() == 5, "all are over");
  turns.note_apply_began();
  turns.note_apply_began();  // for a batch that wasn't prefetched
  check(turns.next() == 7, "the next apply");
  turns.note_apply_began();
  turns.note_looked_up();
  check(turns.next() == 9, "a batch that nobody asked for is being trained");
  turns.skip_all();
  check(turns.last_over() == 9 && turns.next() >= 10, "what was asked for won't come");
  turns.note_apply_began();
  turns.skip_all();
  check(turns.last_over() >= 10, "an apply is one however many were skipped");
}

}  // namespace
}  // namespace embstore
