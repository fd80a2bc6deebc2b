// Tests the CUDA device with libraries that stand in for CUDA's: its calls of the driver, and which Error
// each of the driver's errors becomes. The tests don't cover what a GPU does with the calls.
#include "gpu/cuda/cuda_device.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/kernels/scan.h"
#include "gpu/testing/fake_cuda.h"
#include "memory/huge_pages.h"
#include "testing/child.h"
#include "testing/files.h"
#include "testing/tests.h"

namespace embstore::gpu {
namespace {

// Makes a function of the fake libraries fail for a while.
class Failing {
 public:
  Failing(const std::string& function, int result) {
    setenv("FAKE_CUDA_FAILS", (function + ":" + std::to_string(result)).c_str(), 1);
  }
  ~Failing() { unsetenv("FAKE_CUDA_FAILS"); }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
};

CudaDevice::Options fake_options() {
  return {.nvrtc = FAKE_CUDA, .cache_directory = "", .driver = FAKE_CUDA};
}

FakeCuda& fake() {
  static const auto of_library =
      reinterpret_cast<FakeCuda* (*)()>(dlsym(dlopen(FAKE_CUDA, RTLD_NOW), "fake_cuda"));
  return *of_library();
}

void check_not_opened(CudaDevice::Options options, ErrorKind kind, const std::string& part) {
  const int retained = fake().retained;
  check_throws(kind, part, [&] { const CudaDevice device(options); });
  check(fake().retained == retained, "the context is still held");
  check(fake().pushed == 0, "the context is still current");
}

TEST(errors_say_what_is_missing_and_what_to_do) {
  CudaDevice::Options options = fake_options();
  options.driver = "libno-such-driver.so.1";
  check_not_opened(options, ErrorKind::kMissingLibrary, "install NVIDIA's driver");
  options = fake_options();
  options.ordinal = 1;
  check_not_opened(options, ErrorKind::kMissingDevice, "there is no GPU 1: 1 can be seen");
  options = fake_options();
  options.nvrtc = "";
  check_not_opened(options, ErrorKind::kMissingLibrary, "pip install 'embstore[gpu]'");
  options.nvrtc = "/no/such/libnvrtc.so.12";
  check_not_opened(options, ErrorKind::kMissingLibrary, "pip install 'embstore[gpu]'");
  {
    const Failing failing("cuInit", 100);
    check_not_opened(fake_options(), ErrorKind::kMissingDevice,
                     "CUDA_ERROR_OF_NUMBER_100 (as the driver puts it); look at nvidia-smi");
  }
  {
    const Failing failing("nvrtcCompileProgram", 6);
    check_not_opened(fake_options(), ErrorKind::kMissingLibrary, "words of the log");
  }
  const Failing failing("cuModuleLoadData", 222);
  check_not_opened(fake_options(), ErrorKind::kMissingLibrary, "the driver is older than NVRTC 12.9");
}

TEST(a_forked_child_is_told_why_it_gets_no_gpu) {
  const Failing failing("cuInit", 3);
  check_not_opened(fake_options(), ErrorKind::kMissingDevice, "CUDA_ERROR_OF_NUMBER_3");
  in_child([] { check_not_opened(fake_options(), ErrorKind::kForked, "start workers by spawn"); });
}

TEST(a_device_is_opened_and_closed) {
  {
    CudaDevice device(fake_options());
    check(device.name() == "Fake GPU", device.name());
    check(std::string(fake().architecture) == "--gpu-architecture=compute_90", fake().architecture);
    check(fake().loaded_ptx, "the PTX was loaded as NVRTC gave it");
    check(device.memory().total_bytes == 3000 && device.memory().free_bytes == 1000, "memory");
    check(fake().retained == 1, "the primary context is held once");
  }
  check(fake().retained == 0 && fake().pushed == 0, "the context is given back");
}

TEST(kernels_are_compiled_once_for_a_cache) {
  const TemporaryDirectory directory;
  CudaDevice::Options options = fake_options();
  options.cache_directory = directory / "kept";
  const int compiled = fake().compiled;
  for (int time = 0; time < 3; ++time) {
    const CudaDevice device(options);
    check(fake().loaded_ptx, "the PTX from the cache is as NVRTC gave it");
  }
  check(fake().compiled == compiled + 1, "each device compiled the kernels");
  const std::vector<std::string> files = files_in(options.cache_directory);
  check(files.size() == 1, "one file is kept, and no temporary one");

  for (const char* damage : {"", "// crc32c 00000000\n// PTX of a test\n", "// PTX of a test\n"}) {
    put_file(files.front(), damage);
    const int before = fake().compiled;
    const CudaDevice device(options);
    check(fake().compiled == before + 1 && fake().loaded_ptx, "a damaged file was taken");
  }
  options.cache_directory = "/proc/no/such/place";
  const CudaDevice device(options);
  check(fake().loaded_ptx, "a cache that can't be written stops nobody");
}

TEST(memory_copies_and_kernels_reach_the_driver) {
  CudaDevice device(fake_options());
  {
    OwnedStream stream(device);
    OwnedEvent event(device);
    DeviceArray<uint32_t> array(device, 4), copy(device, 4);
    PinnedArray<uint32_t> pinned(device, 4);
    const uint64_t before = device.host_waits();
    const std::vector<uint32_t> values = {1, 2, 3, 4};
    std::copy(values.begin(), values.end(), pinned.data());
    array.copy_from(pinned.data(), 4, stream);
    device.copy_on_device(copy.address(), array.address(), 16, stream);
    copy.copy_to(pinned.data(), 4, stream);
    check(std::equal(values.begin(), values.end(), pinned.data()), "what was copied");
    copy.fill(7, stream);
    copy.copy_to(pinned.data(), 4, stream);
    check(pinned[3] == 0x07070707, "what was filled");
    device.record(event, stream);
    device.wait(stream, event);
    check(device.query(event), "the event was reached");
    {
      const Failing failing("cuEventQuery", 600);
      check(!device.query(event), "the event was not reached yet");
    }
    bool called = false;
    device.call_host([&] { called = true; }, stream);
    check(called, "the host was not called");
    check(device.host_waits() == before, "nobody waited");
    std::vector<uint32_t> pageable(4);
    array.copy_to(pageable.data(), 4, stream);
    array.copy_from(pageable.data(), 4, stream);
    device.synchronise(stream);
    device.synchronise(event);
    check(device.host_waits() == before + 4, "all four waited");

    device.launch(scan_counts, {1, 64}, {array.global(), copy.global()}, stream);
    const Stream used = stream;
    check(std::string(fake().launched) == "embstore_scan_counts", fake().launched);
    check(fake().blocks == 1 && fake().threads == 64 && fake().stream == reinterpret_cast<void*>(used.handle),
          "grid");
    const uint64_t argument[] = {array.address().value, array.count()};
    check(std::memcmp(fake().argument, argument, sizeof(argument)) == 0,
          "the arguments are passed as they are");
  }
  check(fake().pushed == 0, "the context is still current");
}

TEST(full_memory_is_an_error_that_changes_nothing) {
  CudaDevice device(fake_options());
  {
    const Failing failing("cuMemAlloc_v2", 2);
    check_throws(ErrorKind::kStoreFull, "5000 bytes were asked for, and 1000 of 3000 are free",
                 [&] { device.allocate(5000); });
  }
  {
    const Failing failing("cuMemHostAlloc", 2);
    check_throws(ErrorKind::kStoreFull, "can't pin 5000 bytes", [&] { device.allocate_pinned(5000); });
  }
  device.free(device.allocate(5000));
}

// True if the kernel says that the mapping at the address has the flag.
bool has_flag(const void* address, const std::string& flag) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool is_there = false;
  while (std::getline(maps, line)) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      is_there = begin <= at && at < end;
    }
    if (is_there && line.starts_with("VmFlags:")) return line.find(" " + flag) != std::string::npos;
  }
  return false;
}

TEST(pinned_host_memory_is_not_inherited_by_a_child) {
  CudaDevice device(fake_options());
  const std::string not_copied_on_fork = "dc";
  const PageRange others(8192, 8192, PageSize::kSmall);
  const std::span memory(static_cast<std::byte*>(others.data()), 8192);
  {
    const Failing failing("cuMemHostRegister_v2", 2);
    check(!device.try_pin(memory), "what the driver refused is pinned");
    check(!has_flag(memory.data(), not_copied_on_fork), "a child hasn't what isn't pinned");
  }
  check(device.try_pin(memory) == DeviceAddress{reinterpret_cast<uint64_t>(memory.data())}, "its address");
  check(has_flag(memory.data(), not_copied_on_fork), "a child has it");
  std::vector<unsigned char> resident(2);
  check(mincore(memory.data(), memory.size(), resident.data()) == 0, "mincore");
  check(resident[0] % 2 == 1 && resident[1] % 2 == 1, "the system is yet to give what is pinned");
  device.unpin(memory);
  check(!has_flag(memory.data(), not_copied_on_fork), "a child hasn't what was unpinned");
  const Failing failing("cuMemHostRegister_v2", 999);
  check_throws(ErrorKind::kDeviceLost, "can't pin 8192 bytes", [&] { device.try_pin(memory); });
}

TEST(an_error_of_one_call_leaves_the_device_as_it_is) {
  CudaDevice device(fake_options());
  {
    const Failing failing("cuMemFree_v2", 1);
    check_throws(ErrorKind::kInvalidArgument, "Fake GPU can't free memory: CUDA_ERROR_OF_NUMBER_1",
                 [&] { device.free({4096}); });
  }
  device.free(device.allocate(5000));
}

TEST(a_lost_device_stays_lost_and_the_driver_is_not_called_again) {
  for (const int result :
       {4, 201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999}) {
    CudaDevice device(fake_options());
    DeviceArray<uint32_t> array(device, 4);
    PinnedArray<uint32_t> pinned(device, 4);
    OwnedStream stream(device);
    OwnedEvent event(device);
    std::string message;
    {
      const Failing failing("cuLaunchKernel", result);
      message = error_of(ErrorKind::kDeviceLost, [&] {
        device.launch(scan_counts, {1, 64}, {array.global(), array.global()}, stream);
      });
      check(message.find("embstore_scan_counts: CUDA_ERROR_OF_NUMBER_" + std::to_string(result)) !=
                std::string::npos,
            message);
      check(message.find("restore the last checkpoint") != std::string::npos, message);
    }
    const int calls = fake().calls;
    const auto is_lost = [&](const auto& call) {
      check(error_of(ErrorKind::kDeviceLost, call) == message, "a lost device says why");
    };
    is_lost([&] { device.allocate(1); });
    is_lost([&] { device.memory(); });
    is_lost([&] { device.allocate_pinned(1); });
    is_lost([&] { device.make_stream(); });
    is_lost([&] { device.synchronise(Stream(stream)); });
    is_lost([&] { device.query(event); });
    is_lost([&] { array.fill(0, stream); });
    is_lost([&] { array.copy_from(pinned.data(), 1, stream); });
    is_lost([&] { device.call_host([] {}, stream); });
    check(fake().calls == calls, "the driver was asked although the device is lost");
  }
  check(fake().retained == 0 && fake().pushed == 0, "the context is given back");
}

}  // namespace
}  // namespace embstore::gpu
