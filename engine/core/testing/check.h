// Helpers of the native tests: a check that fails ends the test and says what didn't hold.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "errors/error.h"

namespace embstore {

// The thread sanitizer only looks for races: a test need not repeat under it what a single thread does.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderThreadSanitizer = true;
#else
inline constexpr bool kUnderThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kUnderSanitizer = true;
#else
inline constexpr bool kUnderSanitizer = kUnderThreadSanitizer;
#endif

// Returns how many of `count` scenes to run that differ only by their seed: a fifth under the address
// sanitizer, under which each takes about five times as long, and an eighth under the thread sanitizer, under
// which each takes fifteen times as long.
constexpr uint64_t scaled_count(uint64_t count) {
  const uint64_t share = kUnderThreadSanitizer ? 8 : kUnderSanitizer ? 5 : 1;
  return (count + share - 1) / share;
}

// The name of the case that is being tested; a failure prints it.
inline std::string& tested_case() {
  static std::string name;
  return name;
}

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s%s%s\n", tested_case().c_str(), tested_case().empty() ? "" : ": ",
               what.c_str());
  std::exit(1);
}

// Tests check millions of values: a literal becomes a string only if the check fails.
inline void check(bool holds, const char* what) {
  if (!holds) fail(what);
}
inline void check(bool holds, const std::string& what) {
  if (!holds) fail(what);
}
// For composed messages: `what` is called only if the check fails.
template <std::invocable What>
void check(bool holds, const What& what) {
  if (!holds) fail(what());
}

// Returns the message of the error of `kind` that `call` throws; fails if it throws none or another.
template <class Call>
std::string error_of(ErrorKind kind, Call call) {
  try {
    call();
  } catch (const Error& error) {
    check(error.kind() == kind, std::string("an error of another kind: ") + error.what());
    return error.what();
  }
  fail("there was no error");
}

inline std::vector<int64_t> keys_from(int64_t first, int64_t count) {
  std::vector<int64_t> keys(static_cast<size_t>(count));
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

// A directory of the test's own, empty at first; the destructor removes it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "embstore-XXXXXX").string();
    check(mkdtemp(name.data()) != nullptr, "a temporary directory can't be made");
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace embstore
