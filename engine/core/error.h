// The one exception type of the core. Its kind decides which class of embstore.errors Python sees.
#pragma once

#include <stdexcept>
#include <string>

namespace embstore {

enum class ErrorKind {
  kInvalidArgument,  // the caller's value is wrong
  kStoreFull,        // a tier's limit is reached; nothing was changed
  kMissingLibrary,   // a shared library is not installed
  kMissingDevice,    // this machine has no such memory
  kStorage,          // the operating system refused a file or a mapping
  kCheckpoint,       // a file of a checkpoint isn't what a save finished
  kClosed,           // the table was closed
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace embstore
