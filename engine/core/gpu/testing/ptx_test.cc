// Tests NVRTC's output for the kernels, for three generations of GPUs. EMBSTORE_NVRTC is the path of
// libnvrtc.so.12; no GPU is needed.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gpu/cuda/kernel_sources.h"
#include "gpu/cuda/nvrtc.h"
#include "testing/tests.h"

namespace embstore::gpu {
namespace {

const char* nvrtc_path() {
  const char* const path = std::getenv("EMBSTORE_NVRTC");
  check(path != nullptr,
        "EMBSTORE_NVRTC must be the path of libnvrtc.so.12: pip install nvidia-cuda-nvrtc-cu12");
  return path;
}

// Returns the instruction of a line of PTX: "add.rn.f32" for "@%p1 add.rn.f32 %f1, %f2, %f3;".
std::string instruction_of(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  if (word.starts_with('@')) words >> word;
  return word;
}

std::vector<std::string> parts_of(const std::string& instruction) {
  std::istringstream text(instruction);
  std::vector<std::string> parts;
  for (std::string part; std::getline(text, part, '.');) parts.push_back(part);
  return parts;
}

// True if the instruction computes with floats. Loads, stores, comparisons and conversions don't count.
bool computes_floats(const std::vector<std::string>& parts) {
  static const std::set<std::string> kLeaveThemAsTheyAre = {
      "ld", "st", "mov", "selp", "setp", "set", "slct", "cvt", "abs", "neg", "min", "max", "atom", "red"};
  const bool has_floats = std::any_of(parts.begin() + 1, parts.end(), [](const std::string& part) {
    return part == "f16" || part == "f16x2" || part == "bf16" || part == "bf16x2" || part == "f32" ||
           part == "f64";
  });
  return has_floats && !kLeaveThemAsTheyAre.contains(parts.front());
}

// Returns instructions whose results may not have the CPU's bits: fused or approximate ones, those that flush
// subnormal numbers, and those without a rounding mode, which the driver may fuse.
std::vector<std::string> inexact_instructions(const std::string& ptx) {
  static const std::set<std::string> kExact = {"add.rn.f32",  "sub.rn.f32", "mul.rn.f32", "div.rn.f32",
                                               "sqrt.rn.f32", "add.rn.f64", "sub.rn.f64", "mul.rn.f64",
                                               "div.rn.f64",  "sqrt.rn.f64"};
  std::vector<std::string> found;
  std::istringstream text(ptx);
  for (std::string line; std::getline(text, line);) {
    const std::string instruction = instruction_of(line);
    if (instruction.find('.', 1) == std::string::npos || instruction.starts_with('.')) continue;
    if (computes_floats(parts_of(instruction)) && !kExact.contains(instruction)) found.push_back(instruction);
  }
  return found;
}

std::vector<std::string> kernel_names() {
  const std::string definition = "\nEMBSTORE_KERNEL(";
  std::vector<std::string> names;
  for (const KernelSource& source : kernel_sources()) {
    const std::string text = source.text;
    for (size_t at = text.find(definition); at != std::string::npos; at = text.find(definition, at + 1)) {
      const size_t begin = at + definition.size();
      names.push_back(text.substr(begin, text.find(',', begin) - begin));
    }
  }
  return names;
}

TEST(inexact_instructions_are_told_from_exact_ones) {
  const auto is_exact = [](const std::string& line) {
    return inexact_instructions("\t" + line + ";\n").empty();
  };
  for (const char* line :
       {"add.rn.f32 \t%f3, %f1, %f2", "@%p3 mul.rn.f32 %f3, %f1, %f2", "div.rn.f32 %f3, %f1, %f2",
        "sqrt.rn.f32 %f1, %f2", "mad.lo.s32 %r1, %r2, %r3, %r4",
        "fma_is_no_instruction: ", "ld.global.v4.f32 {%f1}, [%rd1]"}) {
    check(is_exact(line), std::string("is exact: ") + line);
  }
  for (const char* line :
       {"fma.rn.f32 %f4, %f1, %f2, %f3", "@%p3 fma.rn.f32 %f4, %f1, %f2, %f3",
        "@!%p12 mad.rn.f32 %f4, %f1, %f2, %f3", "mul.f32 %f3, %f1, %f2", "add.ftz.f32 %f3, %f1, %f2",
        "add.rn.ftz.f32 %f3, %f1, %f2", "div.full.f32 %f3, %f1, %f2", "sqrt.approx.f32 %f1, %f2",
        "rcp.rn.f32 %f1, %f2", "fma.rn.f64 %f4, %f1, %f2, %f3", "add.rz.f32 %f3, %f1, %f2",
        "fma.rn.f16x2 %r4, %r1, %r2, %r3"}) {
    check(!is_exact(line), std::string("is not exact: ") + line);
  }
}

TEST(all_kernels_compile_to_exact_instructions) {
  const cuda::Nvrtc nvrtc(nvrtc_path());
  check(kernel_names().size() >= 20, "the kernels are found in their sources");
  for (const char* architecture : {"sm_80", "sm_90", "sm_100"}) {
    tested_case() = architecture;
    const std::string ptx = nvrtc.compile(kernel_sources(), architecture);
    for (const std::string& kernel : kernel_names()) {
      check(ptx.find(".entry embstore_" + kernel + "(") != std::string::npos, kernel + " is not in the PTX");
    }
    for (const std::string& instruction : inexact_instructions(ptx))
      check(false, "the PTX has " + instruction);
    for (const char* wanted : {"add.rn.f32", "mul.rn.f32", "div.rn.f32", "sqrt.rn.f32", "div.rn.f64",
                               "sqrt.rn.f64", "ld.global.v4", "st.global.v4"}) {
      check(ptx.find(wanted) != std::string::npos, std::string(wanted) + " is not in the PTX");
    }
  }
}

TEST(an_architecture_is_chosen_that_the_gpu_runs) {
  const cuda::Nvrtc nvrtc(nvrtc_path());
  check(nvrtc.architecture_for(90) == "compute_90", "of an H200");
  check(nvrtc.architecture_for(80) == "compute_80", "of an A100");
  check(nvrtc.architecture_for(999) != "compute_999", "of a GPU that NVRTC doesn't know");
  check_throws(ErrorKind::kMissingDevice, "compute capability is 2.0", [&] { nvrtc.architecture_for(20); });
}

TEST(a_compile_error_has_the_compilers_log) {
  const cuda::Nvrtc nvrtc(nvrtc_path());
  const std::vector<KernelSource> broken = {
      {"gpu/kernels/all.h", "__global__ void kernel() { no_such_name(); }"}};
  check_throws(ErrorKind::kMissingLibrary, "no_such_name", [&] { nvrtc.compile(broken, "compute_90"); });
}

TEST(a_fused_operation_would_be_noticed) {
  // The engine compiles without fused operations only because of the option that it sets.
  const cuda::Nvrtc nvrtc(nvrtc_path());
  const std::vector<KernelSource> fused = {
      {"gpu/kernels/all.h",
       "extern \"C\" __global__ void kernel(float* a) { *a = __fmaf_rn(a[1], a[2], a[3]); }"}};
  check(!inexact_instructions(nvrtc.compile(fused, "compute_90")).empty(), "a fused operation was not seen");
  const std::vector<KernelSource> plain = {
      {"gpu/kernels/all.h", "extern \"C\" __global__ void kernel(float* a) { *a = a[1] * a[2] + a[3]; }"}};
  check(inexact_instructions(nvrtc.compile(plain, "compute_90")).empty(), "a product and a sum were fused");
}

}  // namespace
}  // namespace embstore::gpu
