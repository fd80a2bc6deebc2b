// Threads of a kernel on the emulated device: each runs on a stack of its own until it gives way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "threads/spares.h"

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
  struct Context;

  [[noreturn]] static void begin();

  std::byte* stack_;
  std::unique_ptr<Context> context_;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
};

// Those that are idle, for the next kernel: of all devices, since a stack that was used has its pages.
Spares<std::unique_ptr<Fiber>>& idle_fibers();

}  // namespace embstore::gpu::emulated
