// What a row takes along beside its floats when it moves. NVRTC compiles this file too.
#pragma once

#include <cstdint>

namespace embstore {

struct RowHeader {
  int64_t key;
  uint64_t frequency;
  int64_t version;
  uint64_t served;  // this and the next: by which tiers rank rows, see ranking.h
  uint64_t stamp;
  uint64_t save_span = 0;  // as in RowMeta
};
static_assert(sizeof(RowHeader) == 48);

}  // namespace embstore
