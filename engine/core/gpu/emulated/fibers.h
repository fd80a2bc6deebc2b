// Threads of a kernel on the emulated device: each runs on a stack of its own until it gives way.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace embstore::gpu::emulated {

// A stack and where it stopped. Runs `body(argument)` again and again; each run ends by a call of give_way(), or the
// body gives way in between.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Goes on where the fiber stopped, until it gives way. An idle one starts the body.
  void resume(void (*body)(void*), void* argument);
  // Called by the body: resume() returns.
  void give_way();

 private:
  static void run(unsigned high, unsigned low);
  void start_switch(void** fake_stack, const void* bottom, size_t bytes);
  void finish_switch(void* fake_stack, const void** bottom, size_t* bytes);

  std::byte* stack_;
  ucontext_t own_;
  ucontext_t resumer_;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;

  // What the sanitizers are told at each switch.
  void* own_fake_stack_ = nullptr;
  void* resumer_fake_stack_ = nullptr;
  const void* resumer_bottom_ = nullptr;
  size_t resumer_bytes_ = 0;
  void* own_thread_ = nullptr;
  void* resumer_thread_ = nullptr;
};

// Fibers that are idle, kept for the next kernel.
class FiberPool {
 public:
  std::unique_ptr<Fiber> take();
  void give_back(std::unique_ptr<Fiber> idle) { idle_.push_back(std::move(idle)); }

 private:
  std::vector<std::unique_ptr<Fiber>> idle_;
};

}  // namespace embstore::gpu::emulated
