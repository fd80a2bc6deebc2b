// One launch of a kernel on the emulated device, which runs slice by slice.
//
// Some blocks run at once, in a drawn order, and so do the threads of each block. A thread runs until it
// waits at a barrier, ends, or is drawn to give way before an atomic access. So under some schedules a thread
// doesn't see another thread's write unless a barrier or the order of atomic accesses guarantees it. Some
// runs also look for races, which takes longer, and finds them whatever the schedule is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/emulated/draws.h"
#include "gpu/emulated/emulated_memory.h"
#include "gpu/emulated/fibers.h"
#include "gpu/emulated/races.h"
#include "gpu/kernel.h"

namespace embstore::gpu::emulated {

class KernelRun {
 public:
  // The device's parts that the run uses. earlier_runs: how often the kernel ran on the device before.
  struct DeviceState {
    EmulatedMemory& memory;
    Draws& draws;
    uint64_t earlier_runs;
  };

  KernelRun(const char* name, void (*thread)(const void* arguments), Grid grid,
            std::vector<std::byte> arguments, const DeviceState& device_state);
  ~KernelRun();
  KernelRun(const KernelRun&) = delete;
  KernelRun& operator=(const KernelRun&) = delete;

  // Runs some slices. Returns false when all threads of all blocks have ended. Throws Fault for an error that
  // would end the kernel on a GPU.
  bool step();

  // --- For the kernel's threads
  static KernelRun& running();
  uint32_t thread_index() const { return current_->thread; }
  uint32_t block_index() const { return current_->block->index; }
  uint32_t run_index() const { return current_->block->run; }
  uint32_t block_threads() const { return grid_.block_threads; }
  void sync_block();
  void before_atomic();
  void* global_element(uint64_t address, uint64_t index, uint64_t count, size_t bytes, size_t alignment);
  void* shared_array(const void* declaration, size_t bytes, size_t alignment);
  void check_access(const void* element, Access access);

 private:
  struct Block;
  // A fiber and the thread that it runs now.
  struct Runner {
    KernelRun* run;
    Block* block;
    std::unique_ptr<Fiber> fiber;
    uint32_t thread = 0;
    bool idle = true;
  };
  struct Block {
    uint32_t number;  // in the launch
    uint32_t run;     // among the runs of the launch
    uint32_t index;   // in the run
    std::vector<uint32_t> unstarted;
    std::vector<Runner*> ready;
    std::vector<Runner*> waiting;  // at the barrier
    std::vector<std::unique_ptr<Runner>> runners;
    std::vector<Runner*> idle;
    uint32_t ended = 0;
    uint32_t phase = 0;  // number of barriers that it has passed
    std::map<const void*, std::unique_ptr<std::byte[]>> shared;
    std::map<const std::byte*, const std::byte*> shared_ends;  // the end of each array, by its begin
    Races shared_races{};
  };

  // Runs threads of one block until one of them waits, gives way or ends. Returns false and throws Fault as
  // step() does.
  bool run_slice();
  void start_block();
  Runner* choose(Block& block);
  void release_barrier(Block& block);
  void end_block(size_t active);
  void run_threads(Runner& runner);
  std::string described(const std::string& what) const;

  const std::string name_;
  void (*const thread_)(const void* arguments);
  const Grid grid_;
  const std::vector<std::byte> arguments_;
  EmulatedMemory& memory_;
  Spares<std::unique_ptr<Fiber>>& fibers_ = idle_fibers();
  Draws& draws_;

  std::vector<uint32_t> unstarted_;  // blocks
  std::vector<std::unique_ptr<Block>> active_;
  size_t max_active_;
  const uint64_t slices_at_once_;  // no other stream runs between these slices
  uint64_t atomic_switches_;       // one in this many atomic accesses gives way
  const bool looks_for_races_;
  Races races_;  // races in device memory
  Runner* current_ = nullptr;
  std::string fault_;
};

}  // namespace embstore::gpu::emulated
