// The kinds of accesses to a tier's bytes. The numbers are those of embstore.devices.Access.
#pragma once

#include <cstddef>
#include <cstdint>

namespace embstore {

enum class Access : uint8_t {
  kLoad,           // random reads of whole or part rows
  kUpdate,         // load and store in place, left to the CPU's caches to write back
  kStore,          // a row written as a whole, left to the caches
  kStoreFlushed,   // written and flushed line by line
  kStoreStreamed,  // written past the caches
  kFileRead,       // one read call
  kFileWrite,      // one write call
};
inline constexpr size_t kAccesses = 7;

}  // namespace embstore
