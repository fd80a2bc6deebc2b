// Tests of phases and meters: what is counted of a thread's accesses, and at which tier.
#include <chrono>
#include <memory>
#include <thread>

#include "access/phase.h"
#include "access/shared_medium.h"
#include "access/tier_meter.h"
#include "testing/tests.h"

namespace embstore {
namespace {

TEST(phases_within_phases_count_their_own_time_alone) {
  TierMeter outer;
  TierMeter inner;
  {
    Phase around(outer);
    around.count(Access::kLoad, 1, 64);
    Phase within(inner);
    within.count(Access::kStore, 2, 64);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  check(inner.counts().at(0).elapsed_ns >= 20'000'000, "the inner phase took no time");
  check(outer.counts().at(0).elapsed_ns < 10'000'000, "the outer phase took the inner one's time");
  check(inner.counts().at(0).accesses == 2 && inner.counts().at(0).bytes == 128, "it counted something else");
}

TEST(a_thread_is_at_a_medium_once) {
  const std::shared_ptr<SharedMedium> medium = SharedMedium::named("one for two");
  check(medium == SharedMedium::named("one for two") && medium != SharedMedium::named("another"), "names");
  TierMeter first;
  TierMeter second;
  first.set_medium(medium);
  second.set_medium(medium);
  {
    Phase around(first);
    around.add_meter(second);
    Phase within(second);
    check(medium->threads() == 1, "a thread was counted twice");
    within.count(Access::kLoad, 1, 64);
    around.count(Access::kLoad, 1, 64);
    around.count_at(second, Access::kLoad, 1, 64);
  }
  check(medium->threads() == 0, "a thread stays");
  check(second.counts().at(0).accesses == 2 && second.counts().at(0).threads == 1,
        "something else was counted");
}

}  // namespace
}  // namespace embstore
