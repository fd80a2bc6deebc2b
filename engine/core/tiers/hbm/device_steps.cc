#include "tiers/hbm/device_steps.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "errors/error.h"

namespace embstore {
namespace {

// Of the calling thread: whose rows it uses, as often as it does.
thread_local std::vector<const DeviceSteps*> uses_of_thread;
thread_local bool is_in_function = false;

bool is_used_by_thread(const DeviceSteps& steps) {
  return std::find(uses_of_thread.begin(), uses_of_thread.end(), &steps) != uses_of_thread.end();
}

}  // namespace

// --- Steps

DeviceSteps::Turn::Turn(DeviceSteps& steps, gpu::Stream stream, Effect effect) NO_THREAD_SAFETY_ANALYSIS
    : steps_(steps),
      effect_(effect) {
  if (is_used_by_thread(steps)) return;
  steps.turnstile_.lock();
  has_turn_ = effect == Effect::kUsesNone || steps.wait_for_uses();
  if (!has_turn_) {
    steps.turnstile_.unlock();
    return;
  }
  try {
    steps.forget_ended_steps();
    steps.in_flight_.reserve(steps.in_flight_.size() + 1);
    steps.put_in_order(stream, effect);
  } catch (...) {
    steps.turnstile_.unlock();
    throw;
  }
}

bool DeviceSteps::wait_for_uses() {
  const MutexLock lock(mutex_);
  while (uses_ != 0 && long_uses_ == 0) uses_changed_.wait(mutex_);
  return uses_ == 0;
}

DeviceSteps::Turn::~Turn() NO_THREAD_SAFETY_ANALYSIS {
  if (has_turn_) steps_.turnstile_.unlock();
}

void DeviceSteps::Turn::is_in_flight(std::shared_ptr<const StepInFlight> step, gpu::Stream stream) {
  steps_.turnstile_.assert_held();
  const gpu::Event end = step->end();
  steps_.in_flight_.push_back({std::move(step), effect_});
  steps_.device_.record(end, stream);
}

void DeviceSteps::forget_ended_steps() {
  std::erase_if(in_flight_, [this](const InFlight& one) { return device_.query(one.step->end()); });
}

// The last one that changes rows came after all before it.
void DeviceSteps::put_in_order(gpu::Stream stream, Effect effect) {
  if (effect == Effect::kUsesNone) return;
  for (auto one = in_flight_.rbegin(); one != in_flight_.rend(); ++one) {
    if (one->effect == Effect::kUsesNone) continue;
    if (effect == Effect::kChanges || one->effect == Effect::kChanges) device_.wait(stream, one->step->end());
    if (one->effect == Effect::kChanges) return;
  }
}

void DeviceSteps::wait_for_steps() {
  for (const InFlight& one : in_flight_) {
    // Steps on a device that is lost have ended, however they did.
    gpu::ignoring_a_lost_device([&] { device_.synchronise(one.step->end()); });
  }
  in_flight_.clear();
}

void DeviceSteps::finish() {
  const MutexLock turn(turnstile_);
  wait_for_steps();
  // Of a device that was lost, one may have been under way.
  const MutexLock lock(mutex_);
  is_over_ = true;
  while (functions_ != 0) function_ended_.wait(mutex_);
}

void DeviceSteps::check_not_used_by_thread() const {
  if (is_used_by_thread(*this)) throw std::logic_error("a step runs while the host uses the rows");
}

DeviceSteps::Function::Function(DeviceSteps& steps)
    : steps_(steps), was_under_way_(std::exchange(is_in_function, true)) {
  const MutexLock lock(steps_.mutex_);
  is_too_late_ = steps_.is_over_;
  if (!is_too_late_) ++steps_.functions_;
}

bool DeviceSteps::Function::is_under_way() { return is_in_function; }

DeviceSteps::Function::~Function() {
  is_in_function = was_under_way_;
  if (is_too_late_) return;
  const MutexLock lock(steps_.mutex_);
  if (--steps_.functions_ == 0) steps_.function_ended_.notify_all();
}

// --- Uses

DeviceSteps::HostUse::HostUse(DeviceSteps* steps, Length length) : steps_(steps), length_(length) {
  if (steps_ == nullptr) return;
  uses_of_thread.reserve(uses_of_thread.size() + 1);
  if (!is_used_by_thread(*steps_) || !steps_->try_begin_beside(length_)) {
    const MutexLock lock(steps_->turnstile_);
    steps_->wait_for_steps();
    steps_->begin_use(length_);
  }
  if (length_ == Length::kShort) uses_of_thread.push_back(steps_);
}

void DeviceSteps::begin_use(Length length) {
  const MutexLock lock(mutex_);
  ++uses_;
  if (length == Length::kLong) ++long_uses_;
}

bool DeviceSteps::try_begin_beside(Length length) {
  const MutexLock lock(mutex_);
  if (uses_ == 0) return false;
  ++uses_;
  if (length == Length::kLong) {
    ++long_uses_;
    uses_changed_.notify_all();  // a step that waits is refused now
  }
  return true;
}

DeviceSteps::HostUse::~HostUse() {
  if (steps_ == nullptr) return;
  if (length_ == Length::kShort) {
    const auto use = std::find(uses_of_thread.rbegin(), uses_of_thread.rend(), steps_);
    if (use != uses_of_thread.rend()) uses_of_thread.erase(std::next(use).base());
  }
  const MutexLock lock(steps_->mutex_);
  --steps_->uses_;
  if (length_ == Length::kLong) --steps_->long_uses_;
  // Under the mutex: a step may begin, and end with the table, as soon as it is let go of.
  if (steps_->uses_ == 0) steps_->uses_changed_.notify_all();
}

// --- Errors

void DeviceSteps::keep_error(std::exception_ptr error) {
  const MutexLock lock(error_mutex_);
  if (error_ == nullptr) error_ = std::move(error);
}

void DeviceSteps::raise_kept_error() {
  std::exception_ptr error;
  {
    const MutexLock lock(error_mutex_);
    error = std::exchange(error_, nullptr);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace embstore
