#include "pacing/owed_waits.h"

#include <algorithm>
#include <thread>

#include "threads/safe_point.h"

namespace embstore {
namespace {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::duration<double, std::nano>;

// A sleep takes about 60 us too long; with sleeps of at least this length, that is a part that later ones
// can make up for.
constexpr Nanoseconds kLeastSleep{200e3};
// Without a limit, a process that was stopped for an hour would get that hour for free.
constexpr Nanoseconds kMostCredit{100e6};

class OwedWaits {
 public:
  bool any() const { return owed_ >= kLeastSleep; }

  void owe(const std::shared_ptr<SharedMedium>& medium, Nanoseconds wait) {
    const Nanoseconds covered = std::min(wait, credit_);
    credit_ -= covered;
    wait -= covered;
    if (wait.count() <= 0) return;
    const auto known =
        std::find_if(waits_.begin(), waits_.end(), [&medium](const Wait& of) { return of.medium == medium; });
    if (known != waits_.end()) {
      known->wait += wait;
    } else {
      waits_.push_back({medium, wait});
    }
    owed_ += wait;
  }

  void wait() {
    Clock::time_point until = Clock::now();
    for (const auto& [medium, wait] : waits_) {
      until += std::chrono::duration_cast<Clock::duration>(wait);
      medium->enter();
      std::this_thread::sleep_until(until);
      medium->leave();
    }
    waits_.clear();
    owed_ = {};
    credit_ = std::clamp<Nanoseconds>(Clock::now() - until, Nanoseconds{0}, kMostCredit);
  }

 private:
  struct Wait {
    std::shared_ptr<SharedMedium> medium;
    Nanoseconds wait;
  };
  std::vector<Wait> waits_;
  Nanoseconds owed_{0};
  Nanoseconds credit_{0};
};

thread_local OwedWaits owed_waits;
thread_local int put_off = 0;

}  // namespace

void owe_wait(const std::shared_ptr<SharedMedium>& medium, double wait_ns) {
  owed_waits.owe(medium, Nanoseconds(wait_ns));
  if (owed_waits.any()) at_safe_points(&wait_as_owed);
}

void wait_as_owed() noexcept {
  if (put_off != 0 || !owed_waits.any()) return;
  at_safe_points(nullptr);
  owed_waits.wait();
}

PutWaitsOff::PutWaitsOff() { ++put_off; }

PutWaitsOff::~PutWaitsOff() { --put_off; }

}  // namespace embstore
