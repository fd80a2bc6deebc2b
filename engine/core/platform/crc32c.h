// CRC-32C (Castagnoli; RFC 3720, appendix B.4), which guards what is kept on a medium.
#pragma once

#include <cstddef>
#include <cstdint>

namespace embstore {

// Returns the CRC of `size` bytes at `data`; `crc` is the CRC of the bytes before them. Uses the
// processor's instruction (SSE4.2) if it has one, and tables otherwise, with the same result.
uint32_t crc32c(const void* data, size_t size, uint32_t crc = 0);

// The same by tables on any processor: for tests.
uint32_t crc32c_by_table(const void* data, size_t size, uint32_t crc = 0);

}  // namespace embstore
