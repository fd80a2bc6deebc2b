// Limits the descriptors of a test.
#pragma once

#include <sys/resource.h>

#include "testing/check.h"

namespace embstore {

// Sets the descriptor limit of the process for a scope.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    check(getrlimit(RLIMIT_NOFILE, &before_) == 0, "the limit can't be asked for");
    rlimit limit = before_;
    limit.rlim_cur = most;
    check(setrlimit(RLIMIT_NOFILE, &limit) == 0, "the limit can't be set");
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace embstore
