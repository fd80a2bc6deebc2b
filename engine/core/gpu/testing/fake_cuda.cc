// A library in place of libcuda.so.1 and libnvrtc.so.12: device memory is host memory, work on streams is
// done at once, and no kernel runs. FAKE_CUDA_FAILS="cuMemAlloc_v2:2" makes a function return an error.
#include "gpu/testing/fake_cuda.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace {

FakeCuda fake;
// All memory and handles in use. On a lost device nothing is given back.
std::map<void*, std::unique_ptr<char[]>> held;
std::set<void*> pinned;

void* take(size_t bytes) {
  auto memory = std::make_unique<char[]>(bytes);
  void* const address = memory.get();
  held[address] = std::move(memory);
  return address;
}

int result_of(const char* function) {
  ++fake.calls;
  const char* const fails = std::getenv("FAKE_CUDA_FAILS");
  if (fails == nullptr) return 0;
  const char* const colon = std::strchr(fails, ':');
  const bool is_this = std::string(function) == std::string(fails, colon);
  return is_this ? std::atoi(colon + 1) : 0;
}

template <class T>
int give(const char* function, T* to, T value) {
  const int result = result_of(function);
  if (result == 0) *to = value;
  return result;
}

}  // namespace

extern "C" {

FakeCuda* fake_cuda() { return &fake; }

int cuInit(unsigned) { return result_of("cuInit"); }
int cuDriverGetVersion(int* version) { return give("cuDriverGetVersion", version, 12090); }
int cuGetErrorName(int result, const char** name) {
  static thread_local std::string text;
  text = "CUDA_ERROR_OF_NUMBER_" + std::to_string(result);
  *name = text.c_str();
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "as the driver puts it";
  return 0;
}
int cuDeviceGetCount(int* count) { return give("cuDeviceGetCount", count, 1); }
int cuDeviceGet(int* device, int ordinal) { return give("cuDeviceGet", device, ordinal); }
int cuDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(bytes));
  return result_of("cuDeviceGetName");
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  return give("cuDeviceGetAttribute", value, attribute == 75 ? 9 : 0);
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  ++fake.retained;
  return give("cuDevicePrimaryCtxRetain", context, static_cast<void*>(&fake));
}
int cuDevicePrimaryCtxRelease_v2(int) {
  --fake.retained;
  return result_of("cuDevicePrimaryCtxRelease_v2");
}
int cuCtxPushCurrent_v2(void* context) {
  const int result = result_of("cuCtxPushCurrent_v2");
  if (result == 0 && context == &fake) ++fake.pushed;
  return result;
}
int cuCtxPopCurrent_v2(void** context) {
  --fake.pushed;
  return give("cuCtxPopCurrent_v2", context, static_cast<void*>(&fake));
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = 1000;
  return give("cuMemGetInfo_v2", total, size_t{3000});
}
int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  const int result = result_of("cuMemAlloc_v2");
  if (result == 0) *address = reinterpret_cast<unsigned long long>(take(bytes));
  return result;
}
int cuMemFree_v2(unsigned long long address) {
  const int result = result_of("cuMemFree_v2");
  if (result == 0) held.erase(reinterpret_cast<void*>(address));
  return result;
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  const int result = result_of("cuMemHostAlloc");
  if (result != 0) return result;
  if (flags != 3) return 1;
  *memory = take(bytes);
  pinned.insert(*memory);
  return 0;
}
int cuMemFreeHost(void* memory) {
  const int result = result_of("cuMemFreeHost");
  if (result == 0 && pinned.erase(memory) == 1) held.erase(memory);
  return result;
}
int cuMemHostRegister_v2(void* memory, size_t, unsigned flags) {
  const int result = result_of("cuMemHostRegister_v2");
  if (result != 0) return result;
  if (flags != 3 || !pinned.insert(memory).second) return 1;
  return 0;
}
int cuMemHostUnregister(void* memory) {
  const int result = result_of("cuMemHostUnregister");
  if (result == 0 && pinned.erase(memory) != 1) return 1;
  return result;
}
int cuMemHostGetDevicePointer_v2(unsigned long long* address, void* memory, unsigned) {
  return give("cuMemHostGetDevicePointer_v2", address, reinterpret_cast<unsigned long long>(memory));
}
int cuPointerGetAttributes(unsigned count, int* attributes, void** values, unsigned long long address) {
  if (count != 1 || attributes[0] != 2) return 1;
  return give("cuPointerGetAttributes", static_cast<unsigned*>(values[0]),
              pinned.contains(reinterpret_cast<void*>(address)) ? 1u : 0u);
}

int cuStreamCreate(void** stream, unsigned flags) {
  if (flags != 1) return 1;
  return give("cuStreamCreate", stream, take(1));
}
int cuStreamDestroy_v2(void* stream) {
  held.erase(stream);
  return result_of("cuStreamDestroy_v2");
}
int cuStreamSynchronize(void*) { return result_of("cuStreamSynchronize"); }
int cuStreamWaitEvent(void*, void*, unsigned) { return result_of("cuStreamWaitEvent"); }
int cuEventCreate(void** event, unsigned flags) {
  if (flags != 3) return 1;  // waiting threads sleep, and there are no timings
  return give("cuEventCreate", event, take(1));
}
int cuEventDestroy_v2(void* event) {
  held.erase(event);
  return result_of("cuEventDestroy_v2");
}
int cuEventRecord(void*, void*) { return result_of("cuEventRecord"); }
int cuEventQuery(void*) { return result_of("cuEventQuery"); }
int cuEventSynchronize(void*) { return result_of("cuEventSynchronize"); }

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void*) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return result_of("cuMemcpyHtoDAsync_v2");
}
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void*) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return result_of("cuMemcpyDtoHAsync_v2");
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void*) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return result_of("cuMemcpyDtoDAsync_v2");
}
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void*) {
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return result_of("cuMemsetD8Async");
}
int cuLaunchHostFunc(void*, void (*function)(void*), void* argument) {
  const int result = result_of("cuLaunchHostFunc");
  if (result == 0) function(argument);
  return result;
}
int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned shared_bytes, void* stream, void** parameters, void** extra) {
  fake.launched = static_cast<const char*>(function);
  fake.blocks = blocks;
  fake.threads = threads;
  fake.stream = stream;
  std::memcpy(fake.argument, parameters[0], sizeof(fake.argument));
  if (shared_bytes != 0 || extra != nullptr) return 1;
  return result_of("cuLaunchKernel");
}

int cuModuleLoadData(void** module, const void* image) {
  fake.loaded_ptx = static_cast<const char*>(image) == std::string("// PTX of a test\n");
  return give("cuModuleLoadData", module, static_cast<void*>(&fake));
}
int cuModuleUnload(void*) { return result_of("cuModuleUnload"); }
int cuModuleGetFunction(void** function, void*, const char* name) {
  static std::set<std::string> names;
  return give("cuModuleGetFunction", function,
              const_cast<void*>(static_cast<const void*>(names.insert(name).first->c_str())));
}

const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR_OF_A_TEST"; }
int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  return give("nvrtcVersion", minor, 9);
}
int nvrtcGetNumSupportedArchs(int* count) { return give("nvrtcGetNumSupportedArchs", count, 3); }
int nvrtcGetSupportedArchs(int* architectures) {
  architectures[0] = 80;
  architectures[1] = 90;
  return give("nvrtcGetSupportedArchs", architectures + 2, 100);
}
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
  return give("nvrtcCreateProgram", program, static_cast<void*>(&fake));
}
int nvrtcDestroyProgram(void**) { return result_of("nvrtcDestroyProgram"); }
int nvrtcCompileProgram(void*, int count, const char* const* options) {
  ++fake.compiled;
  std::strncpy(fake.architecture, options[count - 1], sizeof(fake.architecture) - 1);
  return result_of("nvrtcCompileProgram");
}
int nvrtcGetProgramLogSize(void*, size_t* bytes) { return give("nvrtcGetProgramLogSize", bytes, size_t{20}); }
int nvrtcGetProgramLog(void*, char* log) {
  std::strcpy(log, "words of the log");
  return 0;
}
int nvrtcGetPTXSize(void*, size_t* bytes) { return give("nvrtcGetPTXSize", bytes, size_t{18}); }
int nvrtcGetPTX(void*, char* ptx) {
  std::strcpy(ptx, "// PTX of a test\n");
  return result_of("nvrtcGetPTX");
}

}  // extern "C"
