#include "gpu/emulated/fibers.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__)
// Pushes the registers that a call keeps, notes the stack at *from, takes the stack `to` and pops them from there.
// In place of swapcontext(), which asks the system for the mask of signals each time: that takes longer than most of what
// a thread of a kernel does between two barriers.
extern "C" void embstore_switch_stacks(void** from, void* to);
asm(R"(
.text
.local embstore_switch_stacks
.type embstore_switch_stacks, @function
embstore_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size embstore_switch_stacks, . - embstore_switch_stacks
)");
#endif

namespace embstore::gpu::emulated {
namespace {

// Kernels keep little on the stack; a sanitizer wants more.
constexpr size_t kStackBytes = size_t{128} << 10;
constexpr size_t kGuardBytes = 4096;
constexpr size_t kMostIdleFibers = 2048;

// Which fiber is entered for the first time: a new stack holds no arguments.
thread_local Fiber* entered = nullptr;

}  // namespace

#if defined(__x86_64__)
struct Fiber::Context {
  void* own;
  void* resumer;

  Context(std::byte* stack, void (*begin)()) {
    auto** top = reinterpret_cast<void**>(stack + kStackBytes);
    *--top = nullptr;  // begin() finds the stack aligned as after a call
    *--top = reinterpret_cast<void*>(begin);
    for (int i = 0; i < 6; ++i) *--top = nullptr;  // registers
    own = top;
  }
  void enter() { embstore_switch_stacks(&resumer, own); }
  void leave() { embstore_switch_stacks(&own, resumer); }
};
#else
struct Fiber::Context {
  ucontext_t own;
  ucontext_t resumer;

  Context(std::byte* stack, void (*begin)()) {
    getcontext(&own);
    own.uc_stack.ss_sp = stack;
    own.uc_stack.ss_size = kStackBytes;
    own.uc_link = nullptr;
    makecontext(&own, begin, 0);
  }
  void enter() { swapcontext(&resumer, &own); }
  void leave() { swapcontext(&own, &resumer); }
};
#endif

Fiber::Fiber() {
  void* const memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuardBytes, PROT_NONE);
  stack_ = static_cast<std::byte*>(memory) + kGuardBytes;
  context_ = std::make_unique<Context>(stack_, &Fiber::begin);
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
  entered = this;
  start_switch(&resumer_fake_stack_, stack_, kStackBytes);
#if defined(__SANITIZE_THREAD__)
  resumer_thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(own_thread_, 0);
#endif
  context_->enter();
  finish_switch(resumer_fake_stack_, nullptr, nullptr);
}

void Fiber::give_way() {
  start_switch(&own_fake_stack_, resumer_bottom_, resumer_bytes_);
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(resumer_thread_, 0);
#endif
  context_->leave();
  finish_switch(own_fake_stack_, &resumer_bottom_, &resumer_bytes_);
}

void Fiber::begin() {
  Fiber* const self = entered;
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

FiberPool& FiberPool::of_process() {
  static FiberPool& pool = *new FiberPool;  // never freed: a device may be closed when the process ends
  return pool;
}

std::unique_ptr<Fiber> FiberPool::take() {
  {
    const MutexLock lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Fiber> fiber = std::move(idle_.back());
      idle_.pop_back();
      return fiber;
    }
  }
  return std::make_unique<Fiber>();
}

void FiberPool::give_back(std::unique_ptr<Fiber> idle) {
  const MutexLock lock(mutex_);
  if (idle_.size() < kMostIdleFibers) idle_.push_back(std::move(idle));
}

}  // namespace embstore::gpu::emulated
