#include "memory/memory.h"

#include "errors/error.h"

namespace embstore {

void Memory::extend_to(size_t size_bytes) {
  if (size_bytes <= this->size_bytes()) return;
  throw Error(ErrorKind::kStorage, "memory of a fixed size can't be made " + std::to_string(size_bytes) +
                                       " bytes long; it has " + std::to_string(this->size_bytes()));
}

}  // namespace embstore
