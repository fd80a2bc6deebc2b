// Decides who uses the rows in a GPU's memory, and when: either any number of steps on the device, or any
// number of uses by the host.
//
// A step is put on a stream by a thread that doesn't wait for it, unless kMaxInFlight steps of the table are
// in flight, each with memory for its batch. A step finds rows by the mirror, so no row may move before its
// stream has finished it. A use is the scope of an operation of the host that may read, write or move such
// rows. So while a step is in flight, the mirror agrees with the host's index about the GPU's rows, and while
// the host uses rows, no step runs.
//
// A step that changes rows runs after all steps before it and before all steps after it; other steps run at
// the same time.
//
// A step waits for the uses that are under way, and a use for the steps in flight. While one waits, nothing
// else may begin, so that neither kind starves the other. A long use, such as a save, or a checkpoint in a
// pool until it has the rows, makes no step wait: the step is refused, and the host does its work. This lock
// comes before every lock but the turn to save.
//
// A step may be one of several tables, such as a variable's partitions: it is ordered with the steps of each.
// A thread that waits for several tables, to put a step or to use rows, does so in the order in which the
// tables were made.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/device.h"
#include "threads/mutex.h"

namespace embstore {

// The data that a step keeps until its stream has finished it.
class StepInFlight {
 public:
  explicit StepInFlight(gpu::Device& device) : end_(device) {}
  virtual ~StepInFlight() = default;
  StepInFlight(const StepInFlight&) = delete;
  StepInFlight& operator=(const StepInFlight&) = delete;

  // Recorded when the whole step is on its stream.
  gpu::Event end() const { return end_; }

 private:
  const gpu::OwnedEvent end_;
};

class DeviceSteps {
 public:
  explicit DeviceSteps(gpu::Device& device) : device_(device), number_(next_number()) {}

  // One step runs, and the others are ready to follow; more would only take memory.
  static constexpr size_t kMaxInFlight = 4;

  // The effect of a step on the rows on the device. A step that uses none is not ordered with others, and
  // waits for no use.
  enum class Effect { kUsesNone, kReads, kChanges };
  // A step as a table keeps it; several tables may keep the same one.
  struct StepOfTable {
    DeviceSteps* table;
    std::shared_ptr<const StepInFlight> step;
  };
  // The scope in which one thread puts a step on a stream, for one table or for several. A table's steps are
  // put one after the other.
  class Turns {
   public:
    // Waits until no use is under way in any of the tables, and orders the stream after earlier steps as
    // `effect` requires. Is refused, instead of waiting, if there is a long use, or a use by the same thread.
    // A table may be listed several times.
    Turns(std::span<DeviceSteps* const> tables, gpu::Stream stream, Effect effect);
    ~Turns();
    Turns(const Turns&) = delete;
    Turns& operator=(const Turns&) = delete;

    // If the turns were refused, nothing may be put on a stream.
    bool is_refused() const { return taken_ == 0; }
    // Calls put(), and treats all that it puts on the stream as the step, even if it throws half-way.
    // REQUIRES: the turns weren't refused; `steps` belong to their tables.
    template <class Put>
    void put(std::span<const StepOfTable> steps, gpu::Stream stream, Put put) {
      try {
        put();
      } catch (...) {
        gpu::ignoring_a_lost_device([&] { note_in_flight(steps, stream); });
        throw;
      }
      note_in_flight(steps, stream);
    }

   private:
    void give_back();
    void note_in_flight(std::span<const StepOfTable> steps, gpu::Stream stream);

    std::vector<DeviceSteps*> tables_;  // in the order in which they were made, each once
    const Effect effect_;
    size_t taken_ = 0;  // number of tables whose turnstiles are held
  };

  enum class Length { kShort, kLong };
  // A use by the host. A thread's uses may be nested. A long use may end in another thread.
  class HostUse {
   public:
    // Does nothing if `steps` is null: the table has no rows in a GPU's memory.
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
    // `tables` are the step's tables; the span outlives this.
    explicit Function(std::span<DeviceSteps* const> tables);
    ~Function();
    Function(const Function&) = delete;
    Function& operator=(const Function&) = delete;

    // True if the calling thread is in such a scope. Code that runs there must not use the device.
    static bool is_under_way();
    // True after finish() of one of the tables: the device was lost, and what the function would use is gone.
    bool is_too_late() const { return begun_ != tables_.size(); }

   private:
    const std::span<DeviceSteps* const> tables_;
    size_t begun_ = 0;  // number of tables that wait for its end
    const bool was_under_way_;
  };

  // Waits for the steps in flight; no function of a step begins afterwards. REQUIRES: no thread puts more
  // steps on streams.
  void finish();

  // Throws std::logic_error if the calling thread has a use of the rows: then it hasn't waited for the steps
  // in flight. A step's function that went on would wait for ever, for locks which that thread holds.
  void check_not_used_by_thread() const;

  // Keeps an error that a step met when no caller could be told. Only the first error is kept.
  void keep_error(std::exception_ptr error);
  // Throws the kept error, once.
  void raise_kept_error();
  // Drops the kept error, because what it was about no longer exists.
  void forget_error();

 private:
  static uint64_t next_number();
  std::exception_ptr take_error();
  // Waits for the uses that are under way, and then holds the turnstile. Returns false, without holding it,
  // if there is a long use.
  bool take_turn(Effect effect);
  // Returns false if a long use is under way.
  bool wait_for_uses() REQUIRES(turnstile_);
  bool begin_function();
  void end_function();
  void begin_use(Length length) REQUIRES(turnstile_);
  // Begins a use beside another one, when no step can be in flight. Returns false if there is no other use.
  bool try_begin_nested(Length length);
  void wait_for_steps() REQUIRES(turnstile_);
  void order_stream(gpu::Stream stream, Effect effect) REQUIRES(turnstile_);
  void forget_ended_steps() REQUIRES(turnstile_);
  // Waits for the oldest steps if as many are in flight as may be.
  void make_room_in_flight() REQUIRES(turnstile_);

  gpu::Device& device_;
  const uint64_t number_;  // gives tables the order in which they were made
  // Held by a thread that begins a step or a use, also while it waits for those before.
  Mutex turnstile_;
  struct InFlight {
    std::shared_ptr<const StepInFlight> step;
    Effect effect;
  };
  std::vector<InFlight> in_flight_ GUARDED_BY(turnstile_);  // in the order of their turns

  Mutex mutex_;
  Condition uses_changed_;
  int uses_ GUARDED_BY(mutex_) = 0;
  int long_uses_ GUARDED_BY(mutex_) = 0;  // uses_ counts them, too
  Condition function_ended_;
  int functions_ GUARDED_BY(mutex_) = 0;
  bool is_over_ GUARDED_BY(mutex_) = false;

  Mutex error_mutex_;
  std::exception_ptr error_ GUARDED_BY(error_mutex_);
};

}  // namespace embstore
