#include "tiers/hbm/device_steps.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "errors/error.h"

namespace embstore {
namespace {

// The tables whose rows the calling thread uses, once for each use.
thread_local std::vector<const DeviceSteps*> uses_of_thread;
thread_local bool is_in_function = false;

bool is_used_by_thread(const DeviceSteps& steps) {
  return std::find(uses_of_thread.begin(), uses_of_thread.end(), &steps) != uses_of_thread.end();
}

}  // namespace

// --- Steps

uint64_t DeviceSteps::next_number() {
  static std::atomic<uint64_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

DeviceSteps::Turns::Turns(std::span<DeviceSteps* const> tables, gpu::Stream stream,
                          Effect effect) NO_THREAD_SAFETY_ANALYSIS : tables_(tables.begin(), tables.end()),
                                                                     effect_(effect) {
  std::sort(tables_.begin(), tables_.end(),
            [](const DeviceSteps* a, const DeviceSteps* b) { return a->number_ < b->number_; });
  tables_.erase(std::unique(tables_.begin(), tables_.end()), tables_.end());
  for (const DeviceSteps* table : tables_) {
    if (is_used_by_thread(*table)) return;
  }
  for (DeviceSteps* table : tables_) {
    if (!table->take_turn(effect)) {
      give_back();
      return;
    }
    ++taken_;
  }
  try {
    for (DeviceSteps* table : tables_) {
      table->forget_ended_steps();
      table->make_room_in_flight();
      table->in_flight_.reserve(table->in_flight_.size() + tables.size());
      table->order_stream(stream, effect);
    }
  } catch (...) {
    give_back();
    throw;
  }
}

bool DeviceSteps::take_turn(Effect effect) NO_THREAD_SAFETY_ANALYSIS {
  turnstile_.lock();
  if (effect == Effect::kUsesNone || wait_for_uses()) return true;
  turnstile_.unlock();
  return false;
}

bool DeviceSteps::wait_for_uses() {
  const MutexLock lock(mutex_);
  while (uses_ != 0 && long_uses_ == 0) uses_changed_.wait(mutex_);
  return uses_ == 0;
}

void DeviceSteps::Turns::give_back() NO_THREAD_SAFETY_ANALYSIS {
  while (taken_ != 0) tables_[--taken_]->turnstile_.unlock();
}

DeviceSteps::Turns::~Turns() { give_back(); }

// Keeps all steps before the first call of the device, which may be lost: the stream may already run the
// step.
void DeviceSteps::Turns::note_in_flight(std::span<const StepOfTable> steps, gpu::Stream stream) {
  for (const StepOfTable& one : steps) {
    one.table->turnstile_.assert_held();
    one.table->in_flight_.push_back({one.step, effect_});
  }
  const StepInFlight* recorded = nullptr;  // tables that share a step lie side by side
  for (const StepOfTable& one : steps) {
    if (one.step.get() != recorded) one.table->device_.record(one.step->end(), stream);
    recorded = one.step.get();
  }
}

void DeviceSteps::forget_ended_steps() {
  std::erase_if(in_flight_, [this](const InFlight& one) { return device_.query(one.step->end()); });
}

void DeviceSteps::make_room_in_flight() {
  while (in_flight_.size() >= kMaxInFlight) {
    device_.synchronise(in_flight_.front().step->end());
    forget_ended_steps();
  }
}

// Waits for no step before the last one that changes rows, since that one runs after all before it.
void DeviceSteps::order_stream(gpu::Stream stream, Effect effect) {
  if (effect == Effect::kUsesNone) return;
  for (auto one = in_flight_.rbegin(); one != in_flight_.rend(); ++one) {
    if (one->effect == Effect::kUsesNone) continue;
    if (effect == Effect::kChanges || one->effect == Effect::kChanges) device_.wait(stream, one->step->end());
    if (one->effect == Effect::kChanges) return;
  }
}

void DeviceSteps::wait_for_steps() {
  for (const InFlight& one : in_flight_) {
    // On a lost device steps have ended, with or without success.
    gpu::ignoring_a_lost_device([&] { device_.synchronise(one.step->end()); });
  }
  in_flight_.clear();
}

void DeviceSteps::finish() {
  const MutexLock turn(turnstile_);
  wait_for_steps();
  // If the device was lost, a function may still be running.
  const MutexLock lock(mutex_);
  is_over_ = true;
  while (functions_ != 0) function_ended_.wait(mutex_);
}

void DeviceSteps::check_not_used_by_thread() const {
  if (is_used_by_thread(*this)) throw std::logic_error("a step runs while the host uses the rows");
}

bool DeviceSteps::begin_function() {
  const MutexLock lock(mutex_);
  if (is_over_) return false;
  ++functions_;
  return true;
}

void DeviceSteps::end_function() {
  const MutexLock lock(mutex_);
  if (--functions_ == 0) function_ended_.notify_all();
}

DeviceSteps::Function::Function(std::span<DeviceSteps* const> tables)
    : tables_(tables), was_under_way_(std::exchange(is_in_function, true)) {
  while (begun_ != tables_.size() && tables_[begun_]->begin_function()) ++begun_;
}

bool DeviceSteps::Function::is_under_way() { return is_in_function; }

DeviceSteps::Function::~Function() {
  is_in_function = was_under_way_;
  while (begun_ != 0) tables_[--begun_]->end_function();
}

// --- Uses

DeviceSteps::HostUse::HostUse(DeviceSteps* steps, Length length) : steps_(steps), length_(length) {
  if (steps_ == nullptr) return;
  uses_of_thread.reserve(uses_of_thread.size() + 1);
  if (!is_used_by_thread(*steps_) || !steps_->try_begin_nested(length_)) {
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

bool DeviceSteps::try_begin_nested(Length length) {
  const MutexLock lock(mutex_);
  if (uses_ == 0) return false;
  ++uses_;
  if (length == Length::kLong) {
    ++long_uses_;
    uses_changed_.notify_all();  // a waiting step is refused now
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
  // Notifies under the mutex: as soon as it is released, a step may begin, and end with the table.
  if (steps_->uses_ == 0) steps_->uses_changed_.notify_all();
}

// --- Errors

void DeviceSteps::keep_error(std::exception_ptr error) {
  const MutexLock lock(error_mutex_);
  if (error_ == nullptr) error_ = std::move(error);
}

void DeviceSteps::raise_kept_error() {
  if (const std::exception_ptr error = take_error()) std::rethrow_exception(error);
}

void DeviceSteps::forget_error() { take_error(); }

std::exception_ptr DeviceSteps::take_error() {
  const MutexLock lock(error_mutex_);
  return std::exchange(error_, nullptr);
}

}  // namespace embstore
