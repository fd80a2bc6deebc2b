#include "call_stack.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "python_stack.h"

namespace powercut {
namespace {

// Returns "module+0xoffset symbol"; the symbol is for people.
std::string describe(void* return_address) {
  Dl_info info{};
  const ElfW(Sym)* symbol = nullptr;
  std::array<char, 32> offset{};
  // The call is the instruction before the return address.
  char* call = static_cast<char*>(return_address) - 1;
  const int found =
      dladdr1(call, &info, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)), RTLD_DL_SYMENT);
  if (found == 0 || info.dli_fname == nullptr) return "?";
  snprintf(offset.data(), offset.size(), "+0x%zx",
           static_cast<size_t>(call - static_cast<char*>(info.dli_fbase)));
  std::string frame = std::string(info.dli_fname) + offset.data();
  // The nearest symbol before the call may be another function's.
  const bool is_in_it = symbol != nullptr && call < static_cast<char*>(info.dli_saddr) + symbol->st_size;
  if (info.dli_sname != nullptr && is_in_it) frame += std::string(" ") + info.dli_sname;
  return frame;
}

const std::string& described(void* return_address) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_map<void*, std::string>;
  const std::scoped_lock lock(mutex);
  const auto [at, is_new] = known.try_emplace(return_address);
  if (is_new) at->second = describe(return_address);
  return at->second;
}

}  // namespace

CallStack call_stack(void* return_address, size_t frames) {
  if (is_in_python(return_address)) {
    CallStack lines = python_stack(frames);
    if (!lines.empty()) return lines;
  }
  if (frames <= 1) return {described(return_address)};
  constexpr size_t kOwn = 8;  // frames of this library, at most
  std::vector<void*> addresses(frames + kOwn);
  const int found = backtrace(addresses.data(), static_cast<int>(addresses.size()));
  addresses.resize(static_cast<size_t>(found));
  auto first = std::find(addresses.begin(), addresses.end(), return_address);
  CallStack stack;
  if (first == addresses.end()) stack.push_back(described(return_address));
  for (; first != addresses.end() && stack.size() < frames; ++first) {
    if (is_in_python(*first)) break;  // its frames say nothing, and differ from call to call
    stack.push_back(described(*first));
  }
  return stack;
}

}  // namespace powercut
