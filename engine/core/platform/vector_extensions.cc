#include "platform/vector_extensions.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "errors/error.h"

namespace embstore {
namespace {

constexpr const char* kVariable = "EMBSTORE_CPU";

std::vector<VectorExtensions> offered() {
  std::vector<VectorExtensions> found = {VectorExtensions::kNone};
  // The builtin also asks whether the operating system saves the wider registers.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) found.push_back(VectorExtensions::kAvx2);
  return found;
}

VectorExtensions choose() {
  const auto offers = offered_vector_extensions();
  const char* const wanted = std::getenv(kVariable);
  if (wanted == nullptr || *wanted == '\0') return offers.back();
  for (const auto extensions : {VectorExtensions::kNone, VectorExtensions::kAvx2}) {
    if (std::string(wanted) != name_of(extensions)) continue;
    if (std::ranges::find(offers, extensions) != offers.end()) return extensions;
    throw Error(ErrorKind::kMissingDevice, std::string(kVariable) + ": this processor has no " + wanted +
                                               "; unset it, or set it to " + name_of(offers.back()));
  }
  throw Error(ErrorKind::kInvalidArgument,
              std::string(kVariable) + ": must be default or avx2, got " + wanted);
}

}  // namespace

const char* name_of(VectorExtensions extensions) {
  switch (extensions) {
    case VectorExtensions::kNone: return "default";
    case VectorExtensions::kAvx2: return "avx2";
  }
  return "";
}

std::span<const VectorExtensions> offered_vector_extensions() {
  static const std::vector<VectorExtensions> found = offered();
  return found;
}

VectorExtensions chosen_vector_extensions() {
  static const VectorExtensions chosen = choose();
  return chosen;
}

}  // namespace embstore
