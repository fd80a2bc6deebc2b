// Who uses the rows in a GPU's memory, and when: any number of steps on the device, or any number of uses by the host.
//
// A step is put on a stream by a thread that doesn't wait for it: it finds rows by the mirror, so none may move before its
// stream is through. A use is the scope of an operation of the host that may read, write or move such rows. So while a step is
// in flight the mirror is what the host's index says of the GPU's rows, and while the host uses rows, the device is at rest.
//
// On their streams, a step that changes rows runs after those before it, and those that come run after it; others run at once.
//
// A step waits for the uses that are under way, and a use for the steps in flight. Whoever waits lets nobody else begin, so
// that neither kind starves the other. A use for long, as a save is, or a checkpoint in a pool until it has the rows, makes
// no step wait: it is refused, and the host does its work. Comes before every lock but the turn to save.
#pragma once

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/device.h"
#include "threads/mutex.h"

namespace embstore {

// What a step keeps until its stream is through.
class StepInFlight {
 public:
  explicit StepInFlight(gpu::Device& device) : end_(device) {}
  virtual ~StepInFlight() = default;
  StepInFlight(const StepInFlight&) = delete;
  StepInFlight& operator=(const StepInFlight&) = delete;

  // Recorded when all of the step is on its stream.
  gpu::Event end() const { return end_; }

 private:
  const gpu::OwnedEvent end_;
};

class DeviceSteps {
 public:
  explicit DeviceSteps(gpu::Device& device) : device_(device) {}

  // What a step does to the rows on the device. One that uses none is in order with no other, and waits for no use.
  enum class Effect { kUsesNone, kReads, kChanges };
  // The scope in which one thread puts a step on a stream. Steps come one after the other.
  class Turn {
   public:
    // Waits until no use is under way; not for one for long, nor for one of the same thread: then it is refused. What is put on
    // the stream is in order with other steps.
    Turn(DeviceSteps& steps, gpu::Stream stream, Effect effect);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Nothing may be put on a stream where it was refused.
    bool is_refused() const { return !has_turn_; }
    // The step is what put() puts on the stream, even if it throws half-way. REQUIRES: the turn wasn't refused.
    template <class Put>
    void put(std::shared_ptr<const StepInFlight> step, gpu::Stream stream, Put put) {
      try {
        put();
      } catch (...) {
        gpu::ignoring_a_lost_device([&] { is_in_flight(std::move(step), stream); });
        throw;
      }
      is_in_flight(std::move(step), stream);
    }

   private:
    void is_in_flight(std::shared_ptr<const StepInFlight> step, gpu::Stream stream);

    DeviceSteps& steps_;
    const Effect effect_;
    bool has_turn_ = false;
  };

  enum class Length { kShort, kLong };
  // A use by the host. Uses of one thread may lie in one another. One for long may end in another thread.
  class HostUse {
   public:
    // Does nothing where `steps` is null: the table has no rows in a GPU's memory.
    HostUse(DeviceSteps* steps, Length length);
    ~HostUse();
    HostUse(const HostUse&) = delete;
    HostUse& operator=(const HostUse&) = delete;

   private:
    DeviceSteps* const steps_;
    const Length length_;
  };

  // The scope of a function that a stream calls for a step.
  class Function {
   public:
    explicit Function(DeviceSteps& steps);
    ~Function();
    Function(const Function&) = delete;
    Function& operator=(const Function&) = delete;

    // True for the calling thread in such a scope. What it calls must not use the device.
    static bool is_under_way();
    // True after finish(): the device was lost, and what the function would use is gone.
    bool is_too_late() const { return is_too_late_; }

   private:
    DeviceSteps& steps_;
    bool is_too_late_;
    const bool was_under_way_;
  };

  // Waits for the steps in flight, for good. REQUIRES: no thread puts others on streams.
  void finish();

  // Throws std::logic_error if the calling thread uses the rows: it hasn't waited for the steps in flight. A function that goes
  // on would wait for ever, for the locks which that thread holds.
  void check_not_used_by_thread() const;

  // What a step met, which nobody was there to be told. Only the first is kept.
  void keep_error(std::exception_ptr error);
  // Throws it, once.
  void raise_kept_error();

 private:
  // False where one for long is under way.
  bool wait_for_uses() REQUIRES(turnstile_);
  void begin_use(Length length) REQUIRES(turnstile_);
  // Beside another use: no step is in flight then. False where there is none.
  bool try_begin_beside(Length length);
  void wait_for_steps() REQUIRES(turnstile_);
  void put_in_order(gpu::Stream stream, Effect effect) REQUIRES(turnstile_);
  void forget_ended_steps() REQUIRES(turnstile_);

  gpu::Device& device_;
  // Held by whoever begins, and meanwhile waits for those before.
  Mutex turnstile_;
  struct InFlight {
    std::shared_ptr<const StepInFlight> step;
    Effect effect;
  };
  std::vector<InFlight> in_flight_ GUARDED_BY(turnstile_);  // in the order of their turns

  Mutex mutex_;
  Condition uses_changed_;
  int uses_ GUARDED_BY(mutex_) = 0;
  int long_uses_ GUARDED_BY(mutex_) = 0;  // which uses_ counts too
  Condition function_ended_;
  int functions_ GUARDED_BY(mutex_) = 0;
  bool is_over_ GUARDED_BY(mutex_) = false;

  Mutex error_mutex_;
  std::exception_ptr error_ GUARDED_BY(error_mutex_);
};

}  // namespace embstore
