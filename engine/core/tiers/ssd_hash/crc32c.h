// CRC-32C (Castagnoli; RFC 3720, appendix B.4): reflected polynomial 0x82f63b78, start and final xor ~0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace embstore::ssd_hash {

// By the processor's instruction where it has one (SSE4.2), by tables elsewhere: the same result.
uint32_t crc32c(const void* data, size_t bytes);

// The table version, whatever the processor: for tests.
uint32_t crc32c_by_table(const void* data, size_t bytes);

}  // namespace embstore::ssd_hash
