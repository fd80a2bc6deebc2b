// An error for which a GPU would end a kernel or a copy, and then its context. The emulated device says
// exactly what it was.
#pragma once

#include <stdexcept>

namespace embstore::gpu::emulated {

class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace embstore::gpu::emulated
