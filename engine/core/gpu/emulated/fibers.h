// The threads of a kernel on the emulated device: each runs on a stack of its own until it gives way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "threads/spares.h"

namespace embstore::gpu::emulated {

// A stack that remembers where it stopped. It runs `body(argument)` again and again and gives way after each
// run; the body may also call give_way() in between.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Goes on where the fiber stopped, until it gives way. If the fiber is idle, it starts the body.
  void resume(void (*body)(void*), void* argument);
  // Called by the body: makes resume() return.
  void give_way();

 private:
  struct Context;

  [[noreturn]] static void begin();

  std::byte* stack_;
  std::unique_ptr<Context> context_;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
};

// Idle fibers, for the next kernel. All devices share them, since a used stack already has its pages.
Spares<std::unique_ptr<Fiber>>& idle_fibers();

}  // namespace embstore::gpu::emulated
