// Who uses the rows in a GPU's memory, and when: any number of steps on the device, or any number of uses by the host.
//
// A step is put on a stream by a thread that doesn't wait for it, unless kMostInFlight of the table are in flight, each with memory
// for its batch. It finds rows by the mirror, so none may move before its stream is through. A use is the scope of an operation of the host that may read, write or move such rows. So while a step is
// in flight the mirror is what the host's index says of the GPU's rows, and while the host uses rows, the device is at rest.
//
// On their streams, a step that changes rows runs after those before it, and those that come run after it; others run at once.
//
// A step waits for the uses that are under way, and a use for the steps in flight. Whoever waits lets nobody else begin, so
// that neither kind starves the other. A use for long, as a save is, or a checkpoint in a pool until it has the rows, makes
// no step wait: it is refused, and the host does its work. Comes before every lock but the turn to save.
//
// A step may be one of several tables, such as a variable's partitions: it is in order with the steps of each. Whoever waits for
// several tables, to put a step or to use rows, does so in the order in which they were made.
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
  explicit DeviceSteps(gpu::Device& device) : device_(device), number_(next_number()) {}

  // One runs, and those behind it are ready: more would only take memory.
  static constexpr size_t kMostInFlight = 4;

  // What a step does to the rows on the device. One that uses none is in order with no other, and waits for no use.
  enum class Effect { kUsesNone, kReads, kChanges };
  // What a table keeps of a step: several may keep the same.
  struct StepOfTable {
    DeviceSteps* table;
    std::shared_ptr<const StepInFlight> step;
  };
  // The scope in which one thread puts a step on a stream, of one table or of several. The steps of a table come one after the
  // other.
  class Turns {
   public:
    // Waits until no use is under way in any of the tables; not for one for long, nor for one of the same thread: then it is
    // refused. What is put on the stream is in order with other steps. A table may be there several times.
    Turns(std::span<DeviceSteps* const> tables, gpu::Stream stream, Effect effect);
    ~Turns();
    Turns(const Turns&) = delete;
    Turns& operator=(const Turns&) = delete;

    // Nothing may be put on a stream where it was refused.
    bool is_refused() const { return taken_ == 0; }
    // The step is what put() puts on the stream, even if it throws half-way. REQUIRES: the turns weren't refused; `steps` are of
    // their tables.
    template <class Put>
    void put(std::span<const StepOfTable> steps, gpu::Stream stream, Put put) {
      try {
        put();
      } catch (...) {
        gpu::ignoring_a_lost_device([&] { are_in_flight(steps, stream); });
        throw;
      }
      are_in_flight(steps, stream);
    }

   private:
    void give_back();
    void are_in_flight(std::span<const StepOfTable> steps, gpu::Stream stream);

    std::vector<DeviceSteps*> tables_;  // in the order in which they were made, each once
    const Effect effect_;
    size_t taken_ = 0;  // of the tables' turnstiles
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
    // `tables`: of the step; outlives this.
    explicit Function(std::span<DeviceSteps* const> tables);
    ~Function();
    Function(const Function&) = delete;
    Function& operator=(const Function&) = delete;

    // True for the calling thread in such a scope. What it calls must not use the device.
    static bool is_under_way();
    // True after finish() of one of the tables: the device was lost, and what the function would use is gone.
    bool is_too_late() const { return begun_ != tables_.size(); }

   private:
    const std::span<DeviceSteps* const> tables_;
    size_t begun_ = 0;  // of the tables, those that wait for its end
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
  // What it was about is there no more.
  void forget_error();

 private:
  static uint64_t next_number();
  std::exception_ptr take_error();
  // Waits for the uses that are under way, and holds the turnstile then. False where one is for long: it doesn't hold it.
  bool take_turn(Effect effect);
  // False where one for long is under way.
  bool wait_for_uses() REQUIRES(turnstile_);
  bool begin_function();
  void end_function();
  void begin_use(Length length) REQUIRES(turnstile_);
  // Beside another use: no step is in flight then. False where there is none.
  bool try_begin_beside(Length length);
  void wait_for_steps() REQUIRES(turnstile_);
  void put_in_order(gpu::Stream stream, Effect effect) REQUIRES(turnstile_);
  void forget_ended_steps() REQUIRES(turnstile_);
  // Waits for the first ones where there are as many as there may be.
  void make_room_in_flight() REQUIRES(turnstile_);

  gpu::Device& device_;
  const uint64_t number_;  // by which tables are in the order in which they were made
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
