// What the operating system refused, and why.
#pragma once

#include <string>

#include "errors/error.h"

namespace embstore::files {

class FileError : public Error {
 public:
  // "PATH: WHAT: the system's words for `reason`", which is an errno.
  FileError(const std::string& path, const std::string& what, int reason);
  int reason() const { return reason_; }

 private:
  int reason_;
};

}  // namespace embstore::files
