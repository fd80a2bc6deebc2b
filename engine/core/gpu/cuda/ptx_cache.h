// Keeps compiled kernels in a directory: compiling takes each process a second or more.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "gpu/cuda/kernel_sources.h"
#include "gpu/cuda/nvrtc.h"

namespace embstore::gpu::cuda {

class PtxCache {
 public:
  // Makes the directory if it doesn't exist. With an empty name nothing is kept.
  explicit PtxCache(std::string directory) : directory_(std::move(directory)) {}

  // Returns the PTX for an architecture: from the directory if it was compiled from the same sources, by the
  // same version of NVRTC with the same options, and else compiled. A damaged file is compiled anew; a
  // directory that can't be written only costs time.
  std::string compiled(const Nvrtc& nvrtc, std::span<const KernelSource> sources,
                       const std::string& architecture) const;

 private:
  std::optional<std::string> read(const std::string& path) const;
  void write(const std::string& path, const std::string& ptx) const;

  const std::string directory_;
};

}  // namespace embstore::gpu::cuda
