// CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4), which guards the records that are kept on a
// medium.
#pragma once

#include <cstddef>
#include <cstdint>

namespace embstore {

// Of `size` bytes at `data`; `crc` is that of the bytes before them.
uint32_t crc32c(const void* data, size_t size, uint32_t crc = 0);

}  // namespace embstore
