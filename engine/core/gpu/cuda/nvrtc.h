// NVRTC, NVIDIA's library that compiles CUDA C++ at run time. It needs no GPU.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "gpu/cuda/kernel_sources.h"
#include "platform/shared_library.h"

namespace embstore::gpu::cuda {

class Nvrtc {
 public:
  // `library` is the path of libnvrtc.so.12. Throws Error(kMissingLibrary).
  explicit Nvrtc(const std::string& library);

  std::string version() const { return std::to_string(major_) + "." + std::to_string(minor_); }
  // Returns the newest architecture that NVRTC compiles for and that a GPU of compute capability `capability`
  // (90 means 9.0) runs: "compute_90". Throws Error(kMissingDevice) if the GPU is older than all of them.
  std::string architecture_for(int capability) const;

  // Compiles the kernels for an architecture and returns their PTX: "compute_90", or "sm_90" to have the
  // compiler try the machine code as well. Throws Error(kMissingLibrary) with the compiler's log.
  std::string compile(std::span<const KernelSource> sources, const std::string& architecture) const;
  // All that compile() gives the compiler beside the sources and the architecture.
  static std::vector<std::string> settings();

 private:
  using Result = int;
  using Program = struct OpaqueProgram*;
  class OwnedProgram;

  void check(Result result, const std::string& what) const;

  const SharedLibrary library_;
  const char* (*get_error_string_)(Result);
  Result (*get_version_)(int* major, int* minor);
  Result (*get_arch_count_)(int* count);
  Result (*get_archs_)(int* archs);
  Result (*create_program_)(Program*, const char* source, const char* name, int header_count,
                            const char* const* headers, const char* const* names);
  Result (*destroy_program_)(Program*);
  Result (*compile_program_)(Program, int option_count, const char* const* options);
  Result (*get_log_size_)(Program, size_t* bytes);
  Result (*get_log_)(Program, char* log);
  Result (*get_ptx_size_)(Program, size_t* bytes);
  Result (*get_ptx_)(Program, char* ptx);
  int major_ = 0;
  int minor_ = 0;
};

}  // namespace embstore::gpu::cuda
