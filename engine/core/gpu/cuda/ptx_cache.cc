#include "gpu/cuda/ptx_cache.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "platform/crc32c.h"

namespace embstore::gpu::cuda {
namespace {

// FNV-1a, from two different initial values.
class Digest {
 public:
  void add(std::string_view text) {
    for (const char byte : text) step(static_cast<unsigned char>(byte));
    step(0);  // ends the text: else two texts could equal the same bytes cut elsewhere
  }
  std::string hexadecimal() const {
    char text[33];
    std::snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, first_, second_);
    return text;
  }

 private:
  void step(unsigned char byte) {
    first_ = (first_ ^ byte) * 0x100000001b3;
    second_ = (second_ ^ byte) * 0x100000001b3;
  }

  uint64_t first_ = 0xcbf29ce484222325;
  uint64_t second_ = 0x84222325cbf29ce4;
};

std::string checksum_line(const std::string& ptx) {
  char text[40];
  std::snprintf(text, sizeof(text), "// crc32c %08" PRIx32 "\n", crc32c(ptx.data(), ptx.size()));
  return text;
}

}  // namespace

std::string PtxCache::compiled(const Nvrtc& nvrtc, std::span<const KernelSource> sources,
                               const std::string& architecture) const {
  if (directory_.empty()) return nvrtc.compile(sources, architecture);
  Digest digest;
  for (const KernelSource& source : sources) {
    digest.add(source.name);
    digest.add(source.text);
  }
  digest.add(nvrtc.version());
  for (const std::string& setting : Nvrtc::settings()) digest.add(setting);
  const std::string path = directory_ + "/" + architecture + "-" + digest.hexadecimal() + ".ptx";
  if (std::optional<std::string> kept = read(path)) return *kept;
  std::string ptx = nvrtc.compile(sources, architecture);
  write(path, ptx);
  return ptx;
}

std::optional<std::string> PtxCache::read(const std::string& path) const {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  std::string ptx{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (line + "\n" != checksum_line(ptx)) return std::nullopt;
  return ptx;
}

// Writes to a temporary name and renames: other processes may read the file, and this one may end at any
// moment.
void PtxCache::write(const std::string& path, const std::string& ptx) const {
  std::error_code ignored;
  std::filesystem::create_directories(directory_, ignored);
  std::string temporary = path + ".XXXXXX";
  const int descriptor = mkstemp(temporary.data());
  if (descriptor < 0) return;
  close(descriptor);
  std::ofstream file(temporary, std::ios::binary);
  file << checksum_line(ptx) << ptx;
  file.close();
  if (file) std::filesystem::rename(temporary, path, ignored);
  if (!file || ignored) std::filesystem::remove(temporary, ignored);
}

}  // namespace embstore::gpu::cuda
