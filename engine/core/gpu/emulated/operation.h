// The operations on a stream of the emulated device. Not thread-safe: the device's mutex guards them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/emulated/draws.h"
#include "gpu/emulated/emulated_memory.h"
#include "gpu/emulated/kernel_run.h"

namespace embstore::gpu::emulated {

// A point in a stream, made by one call of record(). The event and the operations that wait for it share it.
struct Milestone {
  Stream stream;    // the stream that reaches it
  uint64_t number;  // number of the operation that reaches it, from 1
  bool reached = false;
};

class Operation {
 public:
  explicit Operation(std::string label) : label_(std::move(label)) {}
  virtual ~Operation() = default;

  // Does a part of the operation; other streams may run between two parts. Returns false when it is done.
  // Throws Fault.
  virtual bool step() = 0;
  // The milestone that another stream must reach before this can run; null if there is none.
  virtual const Milestone* waits_for() const { return nullptr; }
  // True if it is a function of the host, which runs without the device's mutex.
  virtual bool is_host_function() const { return false; }
  const std::string& label() const { return label_; }

 private:
  const std::string label_;
};

class RecordOperation final : public Operation {
 public:
  RecordOperation(std::string label, std::shared_ptr<Milestone> milestone)
      : Operation(std::move(label)), milestone_(std::move(milestone)) {}
  bool step() override {
    milestone_->reached = true;
    return false;
  }

 private:
  const std::shared_ptr<Milestone> milestone_;
};

class WaitOperation final : public Operation {
 public:
  WaitOperation(std::string label, std::shared_ptr<const Milestone> milestone)
      : Operation(std::move(label)), milestone_(std::move(milestone)) {}
  bool step() override { return false; }
  const Milestone* waits_for() const override { return milestone_.get(); }

 private:
  const std::shared_ptr<const Milestone> milestone_;
};

// The device releases its mutex while the function runs.
class HostOperation final : public Operation {
 public:
  HostOperation(std::string label, std::function<void()> function)
      : Operation(std::move(label)), function_(std::move(function)) {}
  bool step() noexcept override {
    function_();
    return false;
  }
  bool is_host_function() const override { return true; }

 private:
  const std::function<void()> function_;
};

class KernelOperation final : public Operation {
 public:
  KernelOperation(std::string label, std::function<std::unique_ptr<KernelRun>()> start)
      : Operation(std::move(label)), start_(std::move(start)) {}
  bool step() override {
    if (run_ == nullptr) run_ = start_();
    if (run_->step()) return true;
    run_.reset();
    return false;
  }

 private:
  const std::function<std::unique_ptr<KernelRun>()> start_;
  std::unique_ptr<KernelRun> run_;
};

// The source or the destination of a copy.
struct CopyEnd {
  enum class Kind { kDevice, kPinned, kStaged };
  Kind kind;
  uint64_t address;              // kDevice, kPinned
  std::vector<std::byte> bytes;  // kStaged: pageable memory, read when the copy was put on the stream

  std::byte* reach(const EmulatedMemory& memory, size_t offset, size_t count);
};

// Copies in pieces, from either end, so that a reader that doesn't wait sees a partial copy.
class CopyOperation final : public Operation {
 public:
  CopyOperation(std::string label, CopyEnd to, CopyEnd from, size_t bytes, const EmulatedMemory& memory,
                Draws& draws)
      : Operation(std::move(label)),
        to_(std::move(to)),
        from_(std::move(from)),
        bytes_(bytes),
        memory_(memory),
        draws_(draws) {}
  bool step() override;

 private:
  CopyEnd to_;
  CopyEnd from_;
  const size_t bytes_;
  const EmulatedMemory& memory_;
  Draws& draws_;
  size_t piece_ = 0;  // 0: not begun
  size_t done_ = 0;
  bool from_behind_ = false;
};

class FillOperation final : public Operation {
 public:
  FillOperation(std::string label, DeviceAddress to, uint8_t value, size_t bytes,
                const EmulatedMemory& memory)
      : Operation(std::move(label)), to_(to), value_(value), bytes_(bytes), memory_(memory) {}
  bool step() override;

 private:
  const DeviceAddress to_;
  const uint8_t value_;
  const size_t bytes_;
  const EmulatedMemory& memory_;
};

}  // namespace embstore::gpu::emulated
