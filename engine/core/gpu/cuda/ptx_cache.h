// What NVRTC made of the kernels, kept in a directory: compiling takes a second or more of each process.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "gpu/cuda/kernel_sources.h"
#include "gpu/cuda/nvrtc.h"

namespace embstore::gpu::cuda {

class PtxCache {
 public:
  // Empty: nothing is kept. The directory is made where it isn't there.
  explicit PtxCache(std::string directory) : directory_(std::move(directory)) {}

  // The PTX for an architecture, from the directory if it was compiled from the same texts, by the same NVRTC with the same
  // options. A file that is damaged is compiled anew; a directory that can't be written costs time only.
  std::string compiled(const Nvrtc& nvrtc, std::span<const KernelSource> sources,
                       const std::string& architecture) const;

 private:
  std::optional<std::string> read(const std::string& path) const;
  void write(const std::string& path, const std::string& ptx) const;

  const std::string directory_;
};

}  // namespace embstore::gpu::cuda
