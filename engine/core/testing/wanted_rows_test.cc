// Tests which rows are wanted ahead, and until when.
#include "movement/wanted_rows.h"

#include <map>
#include <set>
#include <vector>

#include "movement/training_turns.h"
#include "testing/tests.h"

namespace embstore {
namespace {

using Where = WantedRows::Where;
using Keys = std::vector<int64_t>;

// Even keys are up, odd keys below, and negative ones nowhere.
Where where_is(int64_t key) {
  if (key < 0) return Where::kNowhere;
  return key % 2 == 0 ? Where::kUp : Where::kBelow;
}

Keys let_go(WantedRows& wanted, uint64_t last_over) {
  Keys keys;
  wanted.let_go(last_over, [&keys](int64_t key) { keys.push_back(key); });
  return keys;
}

TEST(rows_that_are_below_come_up_once_in_the_order_of_turns) {
  WantedRows wanted(100);
  check(!wanted.any_below() && wanted.take_below(10).empty(), "nothing is wanted yet");
  wanted.want(2, Keys{9, 3, 4}, where_is);
  wanted.want(1, Keys{5, 7, 5, -1, 3, 6}, where_is);
  check(wanted.any_below(), "rows are to come up");
  check(wanted.take_below(1) == Keys{5} && wanted.take_below(5) == Keys{7}, "the first batch's come first");
  check(wanted.take_below(5) == Keys{9, 3}, "the second batch's come next");
  check(!wanted.any_below() && wanted.take_below(5).empty(), "each comes once");
  for (const int64_t key : {3, 4, 5, 6, 7, 9}) check(wanted.contains(key), "a row may leave");
  check(!wanted.contains(-1) && !wanted.contains(8), "rows are wanted that nobody asked for");
}

TEST(a_row_is_wanted_until_the_last_batch_that_wants_it_is_trained) {
  WantedRows wanted(100);
  wanted.want(1, Keys{1, 2}, where_is);
  wanted.want(2, Keys{2, 3}, where_is);
  wanted.want(3, Keys{3, 1}, where_is);
  check(let_go(wanted, 0).empty(), "no turn is over");
  check(let_go(wanted, 1).empty() && wanted.contains(1) && wanted.contains(2), "others want them");
  check(let_go(wanted, 2) == Keys{2} && !wanted.contains(2), "nobody wants it any more");
  check(let_go(wanted, 3).size() == 2 && !wanted.any(), "nothing is wanted any more");
}

TEST(no_more_rows_are_wanted_than_there_is_room_for_and_those_that_are_up_come_first) {
  WantedRows wanted(3);
  wanted.want(1, Keys{1, 3, 5, 2, 4}, where_is);
  check(wanted.contains(2) && wanted.contains(4) && wanted.contains(1), "what is up, and what fits");
  check(!wanted.contains(3) && !wanted.contains(5), "more is wanted than fits");
  wanted.want(2, Keys{1, 7, 6}, where_is);
  check(wanted.contains(1) && !wanted.contains(6) && !wanted.contains(7),
        "the next batch takes no room away");
  check(wanted.take_below(9) == Keys{1}, "what doesn't fit doesn't come up");
  check(let_go(wanted, 1).size() == 2 && wanted.contains(1), "the next batch wants one of them");
  wanted.want(3, Keys{7, 9, 11}, where_is);
  check(wanted.contains(7) && wanted.contains(9) && !wanted.contains(11), "there is room again");
}

TEST(batches_that_never_come_are_let_go_of) {
  WantedRows wanted(1000);
  for (int64_t turn = 1; turn <= 40; ++turn) {
    wanted.want(static_cast<uint64_t>(turn), Keys{turn}, where_is);
    let_go(wanted, 0);
    const int64_t oldest = turn - static_cast<int64_t>(WantedRows::kMostBatches) + 1;
    check(wanted.contains(turn) && (oldest < 1 || wanted.contains(oldest)), "a batch is let go of early");
    check(oldest < 2 || !wanted.contains(oldest - 1), "a batch is never let go of");
  }
}

TEST(a_batch_has_the_turn_of_the_apply_that_will_train_it) {
  TrainingTurns turns;
  check(turns.next() == 1 && turns.next() == 2, "batches come one after the other");
  turns.looked_up();
  check(turns.next() == 3, "the one that is being trained was asked for");
  turns.apply_began();
  check(turns.last_over() == 1 && turns.next() == 4, "one is over");
  for (int i = 0; i < 3; ++i) turns.apply_began();
  check(turns.next() == 5, "all are over");
  turns.apply_began();
  turns.apply_began();  // for a batch that wasn't prefetched
  check(turns.next() == 7, "the next apply");
  turns.apply_began();
  turns.looked_up();
  check(turns.next() == 9, "a batch that nobody asked for is being trained");
  turns.skip_all();
  check(turns.last_over() == 9 && turns.next() >= 10, "what was asked for won't come");
  turns.apply_began();
  turns.skip_all();
  check(turns.last_over() >= 10, "an apply is one however many were skipped");
}

}  // namespace
}  // namespace embstore
