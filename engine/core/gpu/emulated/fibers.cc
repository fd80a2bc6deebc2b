#include "gpu/emulated/fibers.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

// Pushes the registers that a call preserves, stores the stack pointer at *from, switches to the stack `to`
// and pops its registers. It replaces swapcontext(), which makes a system call for the signal mask each time:
// that takes longer than most of a kernel thread's work between two barriers.
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

namespace embstore::gpu::emulated {
namespace {

// Kernels use little of the stack; sanitizers need more.
constexpr size_t kStackBytes = size_t{128} << 10;
constexpr size_t kGuardBytes = 4096;
constexpr size_t kMaxIdleFibers = 2048;
// Stacks begin at this many different places in a page. Otherwise the few cache lines that each kernel thread
// uses would fall into the same cache set.
constexpr uint32_t kStackPlaces = 32;
constexpr size_t kPlaceBytes = 128;

// The fiber that is being entered: a new stack holds no arguments.
thread_local Fiber* entered = nullptr;

// Tells the sanitizers of each switch, both before it on the one stack and after it on the other.
#if defined(__SANITIZE_ADDRESS__)
class Sanitizer {
 public:
  void before_enter(const std::byte* stack) {
    __sanitizer_start_switch_fiber(&resumer_fake_stack_, stack, kStackBytes);
  }
  void after_enter() { __sanitizer_finish_switch_fiber(own_fake_stack_, &resumer_stack_, &resumer_bytes_); }
  void before_leave() { __sanitizer_start_switch_fiber(&own_fake_stack_, resumer_stack_, resumer_bytes_); }
  void after_leave() { __sanitizer_finish_switch_fiber(resumer_fake_stack_, nullptr, nullptr); }
  // The fiber may be in the middle of a function, whose stack frames are still poisoned: memory that is
  // mapped there next must not be.
  static void forget(const std::byte* stack) { __asan_unpoison_memory_region(stack, kStackBytes); }

 private:
  void* own_fake_stack_ = nullptr;
  void* resumer_fake_stack_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_bytes_ = 0;
};
#elif defined(__SANITIZE_THREAD__)
class Sanitizer {
 public:
  Sanitizer() : own_(__tsan_create_fiber(0)) {}
  ~Sanitizer() { __tsan_destroy_fiber(own_); }
  Sanitizer(const Sanitizer&) = delete;
  Sanitizer& operator=(const Sanitizer&) = delete;

  void before_enter(const std::byte*) {
    resumer_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(own_, 0);
  }
  void after_enter() {}
  void before_leave() { __tsan_switch_to_fiber(resumer_, 0); }
  void after_leave() {}
  static void forget(const std::byte*) {}

 private:
  void* own_;
  void* resumer_ = nullptr;
};
#else
class Sanitizer {
 public:
  void before_enter(const std::byte*) {}
  void after_enter() {}
  void before_leave() {}
  void after_leave() {}
  static void forget(const std::byte*) {}
};
#endif

// The saved stack pointers of the fiber and of the thread that resumed it.
class Registers {
 public:
  Registers(std::byte* stack, size_t bytes, void (*begin)()) {
    auto** top = reinterpret_cast<void**>(stack + bytes);
    *--top = nullptr;  // so that begin() finds the stack aligned as after a call
    *--top = reinterpret_cast<void*>(begin);
    for (int i = 0; i < 6; ++i) *--top = nullptr;  // popped first
    own_ = top;
  }
  void enter() { embstore_switch_stacks(&resumer_, own_); }
  void leave() { embstore_switch_stacks(&own_, resumer_); }

 private:
  void* own_;
  void* resumer_ = nullptr;
};

}  // namespace

struct Fiber::Context {
  Context(std::byte* stack, size_t bytes, void (*begin)()) : registers(stack, bytes, begin) {}

  Registers registers;
  Sanitizer sanitizer;
};

Fiber::Fiber() {
  void* const memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuardBytes, PROT_NONE);
  stack_ = static_cast<std::byte*>(memory) + kGuardBytes;
  static std::atomic<uint32_t> made{0};
  const size_t unused = (made.fetch_add(1, std::memory_order_relaxed) % kStackPlaces) * kPlaceBytes;
  context_ = std::make_unique<Context>(stack_, kStackBytes - unused, &Fiber::begin);
}

Fiber::~Fiber() {
  Sanitizer::forget(stack_);
  munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
}

void Fiber::resume(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  entered = this;
  context_->sanitizer.before_enter(stack_);
  context_->registers.enter();
  context_->sanitizer.after_leave();
}

void Fiber::give_way() {
  context_->sanitizer.before_leave();
  context_->registers.leave();
  context_->sanitizer.after_enter();
}

void Fiber::begin() {
  Fiber* const self = entered;
  self->context_->sanitizer.after_enter();
  while (true) {
    self->body_(self->argument_);
    self->give_way();
  }
}

Spares<std::unique_ptr<Fiber>>& idle_fibers() {
  // Never freed: a device may be closed when the process ends.
  static auto& idle = *new Spares<std::unique_ptr<Fiber>>(kMaxIdleFibers);
  return idle;
}

}  // namespace embstore::gpu::emulated
