#include "gpu/emulated/fibers.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace embstore::gpu::emulated {
namespace {

// Kernels keep little on the stack; a sanitizer wants more.
constexpr size_t kStackBytes = size_t{128} << 10;
constexpr size_t kGuardBytes = 4096;

}  // namespace

Fiber::Fiber() {
  void* const memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuardBytes, PROT_NONE);
  stack_ = static_cast<std::byte*>(memory) + kGuardBytes;
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;  // run() never returns
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::run), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
#if defined(__SANITIZE_THREAD__)
  own_thread_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(own_thread_);
#endif
  munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
}

void Fiber::resume(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  start_switch(&resumer_fake_stack_, stack_, kStackBytes);
#if defined(__SANITIZE_THREAD__)
  resumer_thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(own_thread_, 0);
#endif
  swapcontext(&resumer_, &own_);
  finish_switch(resumer_fake_stack_, nullptr, nullptr);
}

void Fiber::give_way() {
  start_switch(&own_fake_stack_, resumer_bottom_, resumer_bytes_);
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(resumer_thread_, 0);
#endif
  swapcontext(&own_, &resumer_);
  finish_switch(own_fake_stack_, &resumer_bottom_, &resumer_bytes_);
}

void Fiber::run(unsigned high, unsigned low) {
  auto* const self = reinterpret_cast<Fiber*>(uintptr_t{high} << 32 | low);
  self->finish_switch(nullptr, &self->resumer_bottom_, &self->resumer_bytes_);
  while (true) {
    self->body_(self->argument_);
    self->give_way();
  }
}

#if defined(__SANITIZE_ADDRESS__)
void Fiber::start_switch(void** fake_stack, const void* bottom, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
}
void Fiber::finish_switch(void* fake_stack, const void** bottom, size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
}
#else
void Fiber::start_switch(void**, const void*, size_t) {}
void Fiber::finish_switch(void*, const void**, size_t*) {}
#endif

std::unique_ptr<Fiber> FiberPool::take() {
  if (idle_.empty()) return std::make_unique<Fiber>();
  std::unique_ptr<Fiber> fiber = std::move(idle_.back());
  idle_.pop_back();
  return fiber;
}

}  // namespace embstore::gpu::emulated
