#include "pacing/pacing_debt.h"

#include <algorithm>
#include <thread>

#include "threads/safe_point.h"

namespace embstore {
namespace {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::duration<double, std::nano>;

// A sleep takes about 60 us too long; with sleeps of at least this length, that is a part that later ones
// can make up for.
constexpr Nanoseconds kMinSleep{200e3};
// Without a limit, a process that was stopped for an hour would get that hour for free.
constexpr Nanoseconds kMaxCredit{100e6};

class PacingDebt {
 public:
  bool is_due() const { return owed_ >= kMinSleep; }

  void add(const std::shared_ptr<SharedMedium>& medium, Nanoseconds wait) {
    const Nanoseconds covered = std::min(wait, credit_);
    credit_ -= covered;
    wait -= covered;
    if (wait.count() <= 0) return;
    const auto known = std::find_if(waits_.begin(), waits_.end(),
                                    [&medium](const Wait& earlier) { return earlier.medium == medium; });
    if (known != waits_.end()) {
      known->wait += wait;
    } else {
      waits_.push_back({medium, wait});
    }
    owed_ += wait;
  }

  void pay() {
    Clock::time_point until = Clock::now();
    for (const auto& [medium, wait] : waits_) {
      until += std::chrono::duration_cast<Clock::duration>(wait);
      medium->enter();
      std::this_thread::sleep_until(until);
      medium->leave();
    }
    waits_.clear();
    owed_ = {};
    credit_ = std::clamp<Nanoseconds>(Clock::now() - until, Nanoseconds{0}, kMaxCredit);
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

thread_local PacingDebt pacing_debt;
thread_local int suspensions = 0;

}  // namespace

void add_pacing_wait(const std::shared_ptr<SharedMedium>& medium, double wait_ns) {
  pacing_debt.add(medium, Nanoseconds(wait_ns));
  if (pacing_debt.is_due()) at_safe_points(&pay_pacing_debt);
}

void pay_pacing_debt() noexcept {
  if (suspensions != 0 || !pacing_debt.is_due()) return;
  at_safe_points(nullptr);
  pacing_debt.pay();
}

PacingSuspension::PacingSuspension() { ++suspensions; }

PacingSuspension::~PacingSuspension() { --suspensions; }

}  // namespace embstore
