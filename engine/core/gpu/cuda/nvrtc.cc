#include "gpu/cuda/nvrtc.h"

#include <algorithm>

#include "errors/error.h"

namespace embstore::gpu::cuda {
namespace {

constexpr const char* kProgram = "#include \"gpu/kernels/all.h\"\n";

// NVRTC has no headers of the standard library.
constexpr KernelSource kStandardIntegers = {"cstdint", R"(
#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
)"};

// Without fused multiply-add, and with division and square root rounded as IEEE 754 says, results have the
// CPU's bits.
std::vector<std::string> options() {
  return {"--std=c++20",      "--fmad=false", "--prec-div=true",
          "--prec-sqrt=true", "--ftz=false",  "--device-as-default-execution-space"};
}

}  // namespace

class Nvrtc::OwnedProgram {
 public:
  explicit OwnedProgram(const Nvrtc& nvrtc) : nvrtc_(nvrtc) {}
  ~OwnedProgram() {
    if (program != nullptr) nvrtc_.destroy_program_(&program);
  }
  OwnedProgram(const OwnedProgram&) = delete;
  OwnedProgram& operator=(const OwnedProgram&) = delete;

  Program program = nullptr;

 private:
  const Nvrtc& nvrtc_;
};

Nvrtc::Nvrtc(const std::string& library)
    : library_(library, {"install it: pip install 'embstore[gpu]', or nvidia-cuda-nvrtc-cu12"}) {
  library_.load(get_error_string_, "nvrtcGetErrorString");
  library_.load(get_version_, "nvrtcVersion");
  library_.load(get_arch_count_, "nvrtcGetNumSupportedArchs");
  library_.load(get_archs_, "nvrtcGetSupportedArchs");
  library_.load(create_program_, "nvrtcCreateProgram");
  library_.load(destroy_program_, "nvrtcDestroyProgram");
  library_.load(compile_program_, "nvrtcCompileProgram");
  library_.load(get_log_size_, "nvrtcGetProgramLogSize");
  library_.load(get_log_, "nvrtcGetProgramLog");
  library_.load(get_ptx_size_, "nvrtcGetPTXSize");
  library_.load(get_ptx_, "nvrtcGetPTX");
  check(get_version_(&major_, &minor_), "tell its version");
}

void Nvrtc::check(Result result, const std::string& what) const {
  if (result == 0) return;
  throw Error(ErrorKind::kMissingLibrary, "NVRTC " + version() + " can't " + what + ": " +
                                              get_error_string_(result) +
                                              "; install another version of nvidia-cuda-nvrtc-cu12");
}

std::string Nvrtc::architecture_for(int capability) const {
  int count = 0;
  check(get_arch_count_(&count), "count its architectures");
  std::vector<int> architectures(static_cast<size_t>(count));
  check(get_archs_(architectures.data()), "list its architectures");
  int newest = 0;
  for (const int architecture : architectures) {
    if (architecture <= capability) newest = std::max(newest, architecture);
  }
  if (newest == 0) {
    throw Error(ErrorKind::kMissingDevice,
                "the GPU's compute capability is " + std::to_string(capability / 10) + "." +
                    std::to_string(capability % 10) + ", and NVRTC " + version() +
                    " compiles for none so old; install an older nvidia-cuda-nvrtc-cu12");
  }
  return "compute_" + std::to_string(newest);
}

std::vector<std::string> Nvrtc::settings() {
  std::vector<std::string> all = options();
  all.insert(all.end(), {kProgram, kStandardIntegers.name, kStandardIntegers.text});
  return all;
}

std::string Nvrtc::compile(std::span<const KernelSource> sources, const std::string& architecture) const {
  std::vector<const char*> names = {kStandardIntegers.name};
  std::vector<const char*> texts = {kStandardIntegers.text};
  for (const KernelSource& source : sources) {
    names.push_back(source.name);
    texts.push_back(source.text);
  }
  OwnedProgram owned(*this);
  check(create_program_(&owned.program, kProgram, "kernels.cu", static_cast<int>(names.size()), texts.data(),
                        names.data()),
        "take the kernels");
  std::vector<std::string> words = options();
  words.push_back("--gpu-architecture=" + architecture);
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  const Result compiled =
      compile_program_(owned.program, static_cast<int>(arguments.size()), arguments.data());
  if (compiled != 0) {
    size_t bytes = 0;
    std::string log;
    if (get_log_size_(owned.program, &bytes) == 0) {
      log.resize(bytes);
      get_log_(owned.program, log.data());
    }
    check(compiled, "compile the kernels for " + architecture + ":\n" + log.c_str());
  }
  size_t bytes = 0;
  check(get_ptx_size_(owned.program, &bytes), "give the PTX");
  std::string ptx(bytes, '\0');
  check(get_ptx_(owned.program, ptx.data()), "give the PTX");
  ptx.resize(ptx.find('\0'));  // the size includes the terminating zero
  return ptx;
}

}  // namespace embstore::gpu::cuda
