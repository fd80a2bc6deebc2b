// CRC-32C (Castagnoli; RFC 3720, appendix B.4), which guards what is kept on a medium.
#pragma once

#include <cstddef>
#include <cstdint>

namespace embstore {

// Of `size` bytes at `data`; `crc` is that of the bytes before them. By the processor's instruction where
// it has one (SSE4.2), by tables elsewhere: the same result.
uint32_t crc32c(const void* data, size_t size, uint32_t crc = 0);

// By tables, whatever the processor: for tests.
uint32_t crc32c_by_table(const void* data, size_t size, uint32_t crc = 0);

}  // namespace embstore
