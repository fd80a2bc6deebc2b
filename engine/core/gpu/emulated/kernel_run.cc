#include "gpu/emulated/kernel_run.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "errors/error.h"
#include "gpu/emulated/fault.h"
#include "gpu/kernels/emulated_language.h"

namespace embstore::gpu::emulated {
namespace {

constexpr uint64_t kMaxActiveBlocks = 4;
constexpr uint64_t kSliceDoublings = 5;

// A run of a kernel looks for races with a probability of one in this number: more often in its first runs,
// since a search makes a run take several times as long.
constexpr uint64_t kFirstRuns = 64;
constexpr uint64_t kFirstRaceSearches = 8;
constexpr uint64_t kLaterRaceSearches = 64;

// The model "initial-exec" makes it cheap to read: every access of a kernel reads it.
__attribute__((tls_model("initial-exec"))) thread_local KernelRun* running_here = nullptr;

std::vector<uint32_t> in_drawn_order(uint32_t count, Draws& draws) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), uint32_t{0});
  draws.shuffle(order);
  return order;
}

}  // namespace

// Not inlined: a fiber may go on in another host thread than it began in, so the address of a thread-local
// variable must not be kept across a switch.
[[gnu::noinline]] KernelRun& KernelRun::running() {
  if (running_here == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, "device memory was accessed by the host: only kernels reach it");
  }
  return *running_here;
}

KernelRun::KernelRun(const char* name, void (*thread)(const void* arguments), Grid grid,
                     std::vector<std::byte> arguments, const DeviceState& device_state)
    : name_(name),
      thread_(thread),
      grid_(grid),
      arguments_(std::move(arguments)),
      memory_(device_state.memory),
      draws_(device_state.draws),
      unstarted_(in_drawn_order(grid.runs * grid.blocks, draws_)),
      max_active_(1 + draws_.below(kMaxActiveBlocks)),
      slices_at_once_(uint64_t{1} << draws_.below(kSliceDoublings)),
      atomic_switches_(draws_.one_in(2) ? 4 : 64),
      looks_for_races_(
          draws_.one_in(device_state.earlier_runs < kFirstRuns ? kFirstRaceSearches : kLaterRaceSearches)) {}

KernelRun::~KernelRun() {
  // If the kernel failed or was dropped, stacks that still run a thread are thrown away.
  for (const auto& block : active_) {
    for (const auto& runner : block->runners) {
      if (runner->idle) fibers_.give_back(std::move(runner->fiber));
    }
  }
}

bool KernelRun::step() {
  for (uint64_t slice = 0; slice < slices_at_once_; ++slice) {
    if (!run_slice()) return false;
  }
  return true;
}

bool KernelRun::run_slice() {
  while (active_.size() < max_active_ && !unstarted_.empty()) start_block();
  if (active_.empty()) return false;
  const size_t chosen = draws_.below(active_.size());
  Block& block = *active_[chosen];
  Runner* const runner = choose(block);
  running_here = this;
  current_ = runner;
  const auto run = [](void* of) { static_cast<Runner*>(of)->run->run_threads(*static_cast<Runner*>(of)); };
  runner->fiber->resume(run, runner);
  running_here = nullptr;
  if (!fault_.empty()) throw Fault(fault_);
  if (runner->idle) block.idle.push_back(runner);
  if (block.ended == grid_.block_threads) {
    end_block(chosen);
  } else if (block.waiting.size() == grid_.block_threads) {
    release_barrier(block);
  }
  return !active_.empty() || !unstarted_.empty();
}

void KernelRun::start_block() {
  auto block = std::make_unique<Block>();
  block->number = unstarted_.back();
  block->run = block->number / grid_.blocks;
  block->index = block->number % grid_.blocks;
  unstarted_.pop_back();
  block->unstarted = in_drawn_order(grid_.block_threads, draws_);
  active_.push_back(std::move(block));
}

void KernelRun::end_block(size_t active) {
  for (const auto& runner : active_[active]->runners) fibers_.give_back(std::move(runner->fiber));
  active_.erase(active_.begin() + static_cast<ptrdiff_t>(active));
}

// Returns the runner that goes on: of a thread that can, or of one that hasn't started.
KernelRun::Runner* KernelRun::choose(Block& block) {
  const size_t choices = block.ready.size() + (block.unstarted.empty() ? 0 : 1);
  if (choices == 0) {
    throw Fault("kernel " + name_ + ", block " + std::to_string(block.index) + ": " +
                std::to_string(block.waiting.size()) + " threads wait at a barrier, but " +
                std::to_string(block.ended) + " ended without coming to it");
  }
  const size_t choice = draws_.below(choices);
  if (choice < block.ready.size()) {
    Runner* const runner = block.ready[choice];
    block.ready[choice] = block.ready.back();
    block.ready.pop_back();
    return runner;
  }
  if (block.idle.empty()) {
    std::unique_ptr<Fiber> fiber = fibers_.take_or([] { return std::make_unique<Fiber>(); });
    block.runners.push_back(std::make_unique<Runner>(Runner{this, &block, std::move(fiber)}));
    return block.runners.back().get();
  }
  Runner* const runner = block.idle.back();
  block.idle.pop_back();
  return runner;
}

void KernelRun::release_barrier(Block& block) {
  block.ready.swap(block.waiting);
  ++block.phase;
}

// Runs on the fiber. Threads that neither wait nor give way follow each other without a switch.
void KernelRun::run_threads(Runner& runner) {
  runner.idle = false;
  Block& block = *runner.block;
  while (!block.unstarted.empty()) {
    runner.thread = block.unstarted.back();
    block.unstarted.pop_back();
    try {
      thread_(arguments_.data());
    } catch (const std::exception& error) {
      fault_ = described(error.what());
      break;
    }
    ++block.ended;
  }
  runner.idle = true;
}

std::string KernelRun::described(const std::string& what) const {
  const std::string run = grid_.runs == 1 ? "" : ", run " + std::to_string(current_->block->run);
  return "kernel " + name_ + run + ", block " + std::to_string(current_->block->index) + ", thread " +
         std::to_string(current_->thread) + ": " + what;
}

void KernelRun::sync_block() {
  current_->block->waiting.push_back(current_);
  current_->fiber->give_way();
}

void KernelRun::before_atomic() {
  if (!draws_.one_in(atomic_switches_)) return;
  current_->block->ready.push_back(current_);
  current_->fiber->give_way();
}

void* KernelRun::global_element(uint64_t address, uint64_t index, uint64_t count, size_t bytes,
                                size_t alignment) {
  if (index >= count) {
    throw Fault("element " + std::to_string(index) + " of an array of " + std::to_string(count));
  }
  std::byte* const element = memory_.reach(address + index * bytes, bytes);
  if (reinterpret_cast<uintptr_t>(element) % alignment != 0) {
    throw Fault("an access of " + std::to_string(bytes) + " bytes that isn't aligned to " +
                std::to_string(alignment));
  }
  return element;
}

void* KernelRun::shared_array(const void* declaration, size_t bytes, size_t alignment) {
  std::unique_ptr<std::byte[]>& array = current_->block->shared[declaration];
  if (array == nullptr) {
    array = std::make_unique<std::byte[]>(bytes);
    const uint64_t pattern = draws_.next() | 0xf000'0000'f000'0000;
    for (size_t i = 0; i < bytes; i += sizeof(pattern)) {
      std::memcpy(array.get() + i, &pattern, std::min(sizeof(pattern), bytes - i));
    }
    current_->block->shared_ends[array.get()] = array.get() + bytes;
  }
  if (alignment > alignof(std::max_align_t)) throw Fault("shared memory has no such alignment");
  return array.get();
}

void KernelRun::check_access(const void* element, Access access) {
  if (!looks_for_races_) return;
  Block& block = *current_->block;
  const auto* const byte = static_cast<const std::byte*>(element);
  const auto after = block.shared_ends.upper_bound(byte);
  const bool is_shared = after != block.shared_ends.begin() && byte < std::prev(after)->second;
  const std::string race = (is_shared ? block.shared_races : races_)
                               .note(element, access, {block.number, current_->thread, block.phase});
  if (!race.empty()) throw Fault(race);
}

uint32_t run_index() { return KernelRun::running().run_index(); }
void before_atomic() { KernelRun::running().before_atomic(); }
void* global_element(uint64_t address, uint64_t index, uint64_t count, size_t bytes, size_t alignment) {
  return KernelRun::running().global_element(address, index, count, bytes, alignment);
}
void* shared_array(const void* declaration, size_t bytes, size_t alignment) {
  return KernelRun::running().shared_array(declaration, bytes, alignment);
}
void check_access(const void* element, Access access) { KernelRun::running().check_access(element, access); }
void check_shared_index(uint64_t index, uint64_t count) {
  if (index >= count) {
    throw Fault("element " + std::to_string(index) + " of a shared array of " + std::to_string(count));
  }
}

}  // namespace embstore::gpu::emulated

namespace embstore::gpu {

uint32_t thread_index() { return emulated::KernelRun::running().thread_index(); }
uint32_t block_index() { return emulated::KernelRun::running().block_index(); }
uint32_t block_threads() { return emulated::KernelRun::running().block_threads(); }
void sync_block() { emulated::KernelRun::running().sync_block(); }

}  // namespace embstore::gpu
