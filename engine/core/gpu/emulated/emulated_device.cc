#include "gpu/emulated/emulated_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors/error.h"
#include "gpu/emulated/fault.h"

namespace embstore::gpu {

using emulated::CopyEnd;
using emulated::Milestone;

namespace {

constexpr size_t kRememberedRuns = 200;
constexpr uint64_t kEagernesses = 4;

// True if the calling thread is inside a host function, which must not use the device.
thread_local bool in_host_function = false;

}  // namespace

EmulatedDevice::EmulatedDevice(const Options& options)
    : seed_(options.seed),
      draws_(options.seed),
      memory_(options.memory_bytes),
      eagerness_(emulated::Draws(~options.seed).below(kEagernesses)) {
  queues_[0];  // the default stream
}

EmulatedDevice::~EmulatedDevice() {
  // In a child, threads that held locks no longer exist: objects whose destructors take a lock are leaked.
  if (is_inherited()) new auto(std::move(queues_));
  // Kernels under way refer to the memory, so they go first.
  queues_.clear();
}

// A call by the host: holds the mutex to its end. Throws if the device can't be used.
class SCOPED_CAPABILITY EmulatedDevice::Call {
 public:
  explicit Call(EmulatedDevice& device) ACQUIRE(device.mutex_) NO_THREAD_SAFETY_ANALYSIS
      : lock_(mutex_of(device)) {
    device.check_usable();
  }
  ~Call() RELEASE() {}

 private:
  static Mutex& mutex_of(EmulatedDevice& device) {
    device.check_not_inherited();
    return device.mutex_;
  }
  const MutexLock lock_;
};

void EmulatedDevice::check_usable() const {
  if (in_host_function) {
    throw Error(ErrorKind::kInvalidArgument, "the device was used by a function that a stream had called");
  }
  if (!lost_.empty()) {
    throw Error(ErrorKind::kDeviceLost, "the emulated device is lost: " + lost_);
  }
}

void EmulatedDevice::fail(const std::string& reason) {
  lost_ = reason;
  throw Error(ErrorKind::kDeviceLost, "the emulated device is lost: " + reason);
}

void EmulatedDevice::lose(const std::string& reason) {
  const MutexLock lock(mutex_);
  lost_ = reason;
}

// --- Memory

DeviceAddress EmulatedDevice::allocate(size_t bytes) {
  const Call call(*this);
  count_host_wait();
  run_some();
  return memory_.allocate(bytes, draws_);
}

void EmulatedDevice::free(DeviceAddress address) {
  const Call call(*this);
  count_host_wait();
  run_some();
  memory_.free(address);
}

MemorySize EmulatedDevice::memory() {
  const Call call(*this);
  return memory_.size();
}

void* EmulatedDevice::allocate_pinned(size_t bytes) {
  const Call call(*this);
  count_host_wait();
  return memory_.allocate_pinned(bytes, draws_);
}

void EmulatedDevice::free_pinned(void* memory) {
  const Call call(*this);
  count_host_wait();
  run_some();
  memory_.free_pinned(memory);
}

DeviceAddress EmulatedDevice::address_of_pinned(void* memory) {
  const Call call(*this);
  if (!memory_.is_pinned(memory, 1)) {
    throw Error(ErrorKind::kInvalidArgument, "kernels reach no host memory that isn't pinned");
  }
  return {reinterpret_cast<uint64_t>(memory)};
}

DeviceAddress EmulatedDevice::try_pin(std::span<std::byte> memory) {
  const Call call(*this);
  count_host_wait();
  memory_.pin(memory);
  return {reinterpret_cast<uint64_t>(memory.data())};
}

void EmulatedDevice::unpin(std::span<std::byte> memory) {
  check_not_inherited();
  count_host_wait();
  const MutexLock lock(mutex_);
  memory_.unpin(memory);
}

// --- Streams and events

Stream EmulatedDevice::make_stream() {
  const Call call(*this);
  const Stream stream{next_handle_++};
  queues_[stream.handle];
  return stream;
}

void EmulatedDevice::destroy(Stream stream) {
  const Call call(*this);
  run_some();
  Queue& queue = queue_of(stream);
  queue.destroyed = true;
  if (queue.operations.empty()) queues_.erase(stream.handle);
}

Event EmulatedDevice::make_event() {
  const Call call(*this);
  const Event event{next_handle_++};
  auto reached = std::make_shared<Milestone>();
  reached->reached = true;
  events_[event.handle] = std::move(reached);
  return event;
}

void EmulatedDevice::destroy(Event event) {
  const Call call(*this);
  if (events_.erase(event.handle) == 0)
    throw Error(ErrorKind::kInvalidArgument, "the device has no such event");
}

void EmulatedDevice::record(Event event, Stream stream) {
  const Call call(*this);
  auto milestone = std::make_shared<Milestone>(Milestone{stream, queue_of(stream).put + 1});
  milestone_of(event) = milestone;
  put(stream,
      std::make_unique<emulated::RecordOperation>("record event " + std::to_string(event.handle), milestone));
}

void EmulatedDevice::wait(Stream stream, Event event) {
  const Call call(*this);
  put(stream, std::make_unique<emulated::WaitOperation>("wait for event " + std::to_string(event.handle),
                                                        milestone_of(event)));
}

bool EmulatedDevice::query(Event event) {
  const Call call(*this);
  // A caller that asks again and again gets there, however lazy the device is.
  run_some();
  if (draws_.one_in(2)) run_any();
  return milestone_of(event)->reached;
}

// --- Work on streams

void EmulatedDevice::copy_to_device(DeviceAddress to, const void* from, size_t bytes, Stream stream) {
  const Call call(*this);
  if (memory_.is_pinned(from, bytes)) {
    copy("copy to device", on_device(to), on_host(from), bytes, stream);
    return;
  }
  // As the driver does, this copies pageable memory to staging memory before it returns, and may wait for the
  // stream first.
  count_host_wait();
  if (draws_.one_in(2)) run_until(stream, queue_of(stream).put);
  const auto* const first = static_cast<const std::byte*>(from);
  copy("copy to device", on_device(to), {CopyEnd::Kind::kStaged, 0, {first, first + bytes}}, bytes, stream);
}

void EmulatedDevice::copy_to_host(void* to, DeviceAddress from, size_t bytes, Stream stream) {
  const Call call(*this);
  if (memory_.is_pinned(to, bytes)) {
    copy("copy to host", on_host(to), on_device(from), bytes, stream);
    return;
  }
  // As with the driver, this returns when the copy is done.
  count_host_wait();
  run_until(stream, queue_of(stream).put);
  try {
    std::memcpy(to, memory_.reach(from.value, bytes), bytes);
  } catch (const emulated::Fault& fault) {
    fail(std::string("copy to host: ") + fault.what());
  }
}

void EmulatedDevice::copy_on_device(DeviceAddress to, DeviceAddress from, size_t bytes, Stream stream) {
  const Call call(*this);
  copy("copy on device", on_device(to), on_device(from), bytes, stream);
}

void EmulatedDevice::fill(DeviceAddress to, uint8_t value, size_t bytes, Stream stream) {
  const Call call(*this);
  put(stream, std::make_unique<emulated::FillOperation>("fill", to, value, bytes, memory_));
}

void EmulatedDevice::call_host(std::function<void()> function, Stream stream) {
  const Call call(*this);
  put(stream, std::make_unique<emulated::HostOperation>("call of the host", std::move(function)));
}

void EmulatedDevice::launch_kernel(const AnyKernel& kernel, Grid grid, const void* arguments, Stream stream) {
  const Call call(*this);
  if (grid.blocks == 0 || grid.block_threads == 0 || grid.block_threads > kMaxBlockThreads) {
    throw Error(ErrorKind::kInvalidArgument, std::string("kernel ") + kernel.name + ": a grid of " +
                                                 std::to_string(grid.blocks) + " blocks of " +
                                                 std::to_string(grid.block_threads) + " threads");
  }
  const auto* const first = static_cast<const std::byte*>(arguments);
  const std::vector<std::byte> kept(first, first + kernel.launch_bytes);
  const emulated::KernelRun::DeviceState device_state{memory_, draws_, launches_[kernel.name]++};
  const auto start = [=] {
    return std::make_unique<emulated::KernelRun>(kernel.name, kernel.run, grid, kept, device_state);
  };
  put(stream, std::make_unique<emulated::KernelOperation>(kernel.name, start));
}

CopyEnd EmulatedDevice::on_device(DeviceAddress address) {
  return {CopyEnd::Kind::kDevice, address.value, {}};
}

CopyEnd EmulatedDevice::on_host(const void* memory) const {
  return {CopyEnd::Kind::kPinned, reinterpret_cast<uint64_t>(memory), {}};
}

void EmulatedDevice::copy(const char* what, CopyEnd to, CopyEnd from, size_t bytes, Stream stream) {
  put(stream, std::make_unique<emulated::CopyOperation>(what, std::move(to), std::move(from), bytes, memory_,
                                                        draws_));
}

// --- Scheduling

std::shared_ptr<Milestone>& EmulatedDevice::milestone_of(Event event) {
  const auto found = events_.find(event.handle);
  if (found == events_.end()) {
    throw Error(ErrorKind::kInvalidArgument, "the device has no event " + std::to_string(event.handle));
  }
  return found->second;
}

EmulatedDevice::Queue& EmulatedDevice::queue_of(Stream stream) {
  const auto found = queues_.find(stream.handle);
  if (found == queues_.end() || found->second.destroyed) {
    throw Error(ErrorKind::kInvalidArgument, "the device has no stream " + std::to_string(stream.handle));
  }
  return found->second;
}

void EmulatedDevice::put(Stream stream, std::unique_ptr<emulated::Operation> operation) {
  Queue& queue = queue_of(stream);
  queue.operations.push_back(std::move(operation));
  ++queue.put;
  run_some();
}

bool EmulatedDevice::can_run(const Queue& queue) const {
  if (queue.operations.empty() || queue.busy) return false;
  const Milestone* const milestone = queue.operations.front()->waits_for();
  return milestone == nullptr || milestone->reached;
}

void EmulatedDevice::run_part_of(Stream stream) {
  Queue& queue = queues_.at(stream.handle);
  emulated::Operation& operation = *queue.operations.front();
  note_part(stream, queue.done, operation);
  bool more = false;
  if (operation.is_host_function()) {
    // Other threads, and with them other streams, go on meanwhile.
    queue.busy = true;
    mutex_.unlock();
    in_host_function = true;
    operation.step();
    in_host_function = false;
    mutex_.lock();
    queue.busy = false;
    host_function_ended_.notify_all();
  } else {
    try {
      more = operation.step();
    } catch (const emulated::Fault& fault) {
      fail(fault.what());
    }
  }
  if (more) return;
  queue.operations.pop_front();
  ++queue.done;
  if (queue.destroyed && queue.operations.empty()) queues_.erase(stream.handle);
}

void EmulatedDevice::note_part(Stream stream, uint64_t number, const emulated::Operation& operation) {
  if (!last_ran_.empty() && last_ran_.back().stream == stream.handle && last_ran_.back().number == number) {
    ++last_ran_.back().parts;
    return;
  }
  last_ran_.push_back({stream.handle, number, operation.label(), 1});
  if (last_ran_.size() > kRememberedRuns) last_ran_.pop_front();
}

bool EmulatedDevice::run_any() {
  can_run_.clear();
  for (const auto& [handle, queue] : queues_) {
    if (can_run(queue)) can_run_.push_back({handle});
  }
  if (can_run_.empty()) return false;
  run_part_of(can_run_[draws_.below(can_run_.size())]);
  return true;
}

void EmulatedDevice::run_some() {
  constexpr uint64_t kMaxParts[kEagernesses] = {1, 3, 16, 256};
  for (uint64_t parts = draws_.below(kMaxParts[eagerness_]); parts > 0; --parts) {
    if (!run_any()) return;
  }
}

bool EmulatedDevice::is_done(Stream stream, uint64_t done) {
  const auto found = queues_.find(stream.handle);
  return found == queues_.end() || found->second.done >= done;
}

// Returns the stream that must run next so that this one can go on.
Stream EmulatedDevice::first_in_the_way_of(Stream stream) {
  while (true) {
    const Milestone* const milestone = queues_.at(stream.handle).operations.front()->waits_for();
    if (milestone == nullptr || milestone->reached) return stream;
    stream = milestone->stream;
  }
}

void EmulatedDevice::run_until(Stream stream, uint64_t done) {
  const bool no_more_than_must = eagerness_ == 0 || draws_.one_in(3);
  while (!is_done(stream, done)) {
    if (!no_more_than_must && draws_.one_in(2) && run_any()) continue;
    const Stream next = first_in_the_way_of(stream);
    if (queues_.at(next.handle).busy) {
      host_function_ended_.wait(mutex_);
    } else {
      run_part_of(next);
    }
    // Another thread's call may have lost the device while the mutex was released.
    check_usable();
  }
}

void EmulatedDevice::wait_for(Stream stream) {
  const Call call(*this);
  run_until(stream, queue_of(stream).put);
  run_some();
}

void EmulatedDevice::wait_for(Event event) {
  const Call call(*this);
  const std::shared_ptr<const Milestone> milestone = milestone_of(event);
  if (!milestone->reached) run_until(milestone->stream, milestone->number);
  run_some();
}

std::string EmulatedDevice::last_schedule() const {
  const MutexLock lock(mutex_);
  std::string text = "seed " + std::to_string(seed_) + ":";
  for (const Ran& ran : last_ran_) {
    text += "\n  stream " + std::to_string(ran.stream) + ", " + std::to_string(ran.number) + ": " + ran.label;
    if (ran.parts > 1) text += " (" + std::to_string(ran.parts) + " parts)";
  }
  return text;
}

}  // namespace embstore::gpu
