// The data that moves with a row's floats from tier to tier. NVRTC compiles this file too.
#pragma once

#include <cstdint>

namespace embstore {

struct RowHeader {
  int64_t key;
  uint64_t frequency;
  int64_t version;
  uint64_t served;  // the rank of the row, with stamp: see ranking.h
  uint64_t stamp;
  uint64_t save_span = 0;  // as in RowMeta
};
static_assert(sizeof(RowHeader) == 48);

}  // namespace embstore
