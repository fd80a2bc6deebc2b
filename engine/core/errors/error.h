// The one exception type of the core. Its kind decides which class of embstore.errors Python sees.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace embstore {

enum class ErrorKind {
  kInvalidArgument,  // the caller's value is wrong
  kStoreFull,        // a tier's limit is reached, or there is no room for it; nothing was changed
  kMissingLibrary,   // a shared library is not installed
  kMissingDevice,    // this machine has no such memory
  kStorage,          // the operating system refused a file or a mapping
  kInUse,            // another variable, here or in another process, has the place; see InUseError
  kDamagedRows,      // a medium doesn't give rows back as they were written; see DamagedRowsError
  kCheckpoint,       // a checkpoint's file is damaged, or no save completed it
  kClosed,           // the table was closed
  kDeviceLost,       // a GPU failed, and what its memory held is gone
  kForked,           // the table was made by the process that this one was forked from
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Thrown if another variable uses a place. Trying again may help once that variable lets go of it.
class InUseError : public Error {
 public:
  // `reason`: the system's or a library's own message, if there is one.
  explicit InUseError(const std::string& place, const std::string& reason = "")
      : Error(ErrorKind::kInUse,
              place + ": is in use by another variable; give each its own name or storage_path" +
                  (reason.empty() ? "" : " (" + reason + ")")) {}
};

// Thrown if a medium's fault lost some rows; all other rows are as they were.
class DamagedRowsError : public Error {
 public:
  // `first_reason` names the file and the place of the first damaged row.
  DamagedRowsError(std::vector<int64_t> keys, const std::string& first_reason)
      : Error(ErrorKind::kDamagedRows, described(keys) + ": " + first_reason),
        keys_(std::move(keys)),
        first_reason_(first_reason) {}
  const std::vector<int64_t>& keys() const { return keys_; }
  const std::string& first_reason() const { return first_reason_; }

 private:
  static std::string described(const std::vector<int64_t>& keys) {
    constexpr size_t kMaxNamed = 8;
    std::string text =
        keys.size() == 1 ? "the row of key " : "the rows of " + std::to_string(keys.size()) + " keys (";
    for (size_t i = 0; i < keys.size() && i < kMaxNamed; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(keys[i]);
    }
    if (keys.size() > kMaxNamed) text += ", ...";
    return text + (keys.size() == 1 ? " can't be read" : ") can't be read");
  }

  std::vector<int64_t> keys_;
  std::string first_reason_;
};

}  // namespace embstore
